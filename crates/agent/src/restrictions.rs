//! Settings that keep an agent to the level and the tools of its session, where its own modes and
//! permission requests do not.

use oubliette_model::Level;
use oubliette_wire::HomeFile;
use serde_json::{Value, json};

use crate::tool_filter::ToolFilter;

/// What an agent is started with in addition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Restrictions {
    /// Merged into `_meta` of the requests that open its session.
    pub session_meta: Value,
    /// Written into its home.
    pub files: Vec<HomeFile>,
    /// A directory of its home in which it finds programs first.
    pub programs: Option<&'static str>,
}

/// How an agent is restricted.
#[derive(Debug, Clone, Copy)]
pub struct RestrictionSettings {
    /// All files that `build` can return: they are removed when they are not needed.
    pub paths: &'static [&'static str],
    pub build: fn(Level, &ToolFilter) -> Restrictions,
}

pub(crate) const NONE: RestrictionSettings = RestrictionSettings {
    paths: &[],
    build: |_, _| Restrictions::default(),
};

/// A hook that denies the tools that a filter does not permit.
pub(crate) fn denying_hook(tools: &ToolFilter) -> Option<Value> {
    let matcher = denied_names(tools)?;
    let command = "echo 'The session may not use this tool.' >&2; exit 2";
    Some(hook(&matcher, command))
}

/// A hook before the tools whose names match a regular expression.
pub(crate) fn hook(matcher: &str, command: &str) -> Value {
    json!({ "matcher": matcher, "hooks": [{ "type": "command", "command": command }] })
}

/// A regular expression for the names that a filter does not permit.
pub(crate) fn denied_names(tools: &ToolFilter) -> Option<String> {
    let any_of = |names: &[String]| {
        let escaped = names.iter().map(|name| escape(name));
        escaped.collect::<Vec<_>>().join("|")
    };
    let disallowed = match &tools.disallowed[..] {
        [] => None,
        names => Some(format!("^(?:{})$", any_of(names))),
    };
    let not_allowed = match &tools.allowed[..] {
        [] => None,
        names => Some(format!("^(?!(?:{})$).*$", any_of(names))),
    };
    match (disallowed, not_allowed) {
        (Some(one), Some(other)) => Some(format!("(?:{one})|(?:{other})")),
        (one, other) => one.or(other),
    }
}

fn escape(pattern: &str) -> String {
    let mut escaped = String::new();
    for c in pattern.chars() {
        match c {
            '*' => escaped.push_str(".*"),
            c if c.is_ascii_alphanumeric() || c == '_' => escaped.push(c),
            c => {
                escaped.push('\\');
                escaped.push(c);
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_filter::tests::tools;

    #[test]
    fn a_hook_is_for_the_tools_that_are_not_permitted() {
        for (filter, expected) in [
            (tools(&[], &[]), None),
            (
                tools(&[], &["Bash", "mcp__x.y__*"]),
                Some(r"^(?:Bash|mcp__x\.y__.*)$"),
            ),
            (tools(&["Read"], &[]), Some("^(?!(?:Read)$).*$")),
            (
                tools(&["Read"], &["R*"]),
                Some("(?:^(?:R.*)$)|(?:^(?!(?:Read)$).*$)"),
            ),
        ] {
            assert_eq!(denied_names(&filter).as_deref(), expected);
        }
    }
}
