//! Which tools an agent may use, and how that is enforced.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The tools of a session, by the agent's own names for them; `*` matches any part of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFilter {
    /// All tools if empty.
    pub allowed: Vec<String>,
    pub disallowed: Vec<String>,
}

/// How a [`ToolFilter`] is enforced on an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolEnforcement {
    /// It cannot be enforced; the reason, as the end of a sentence.
    Unsupported(&'static str),
    /// In this mode the agent requests permission before each tool call, and the server decides.
    PermissionRequests { mode: &'static str },
    /// The agent itself applies rules that it is started with.
    Rules(PermissionRules),
    /// A hook that the agent runs before each tool call denies it.
    Hooks,
    /// The agent itself applies policies that know only whole names, and `*` for all tools or, after
    /// this prefix, for all of a server.
    Policies { server_prefix: &'static str },
}

/// Rules in an environment variable: a JSON object from tool names to actions. The last rule that
/// matches applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermissionRules {
    pub variable: &'static str,
    /// Tools that share one rule, which has the name of the first.
    pub grouped_tools: &'static [&'static str],
    /// Names of rules that are not about tools.
    pub other_rules: &'static [&'static str],
    /// Variables that keep other settings from overriding the rules.
    pub env: &'static [(&'static str, &'static str)],
}

impl ToolFilter {
    pub fn is_empty(&self) -> bool {
        self.allowed.is_empty() && self.disallowed.is_empty()
    }

    pub fn permits(&self, name: &str) -> bool {
        let is_in = |list: &[String]| list.iter().any(|pattern| matches_pattern(pattern, name));
        !is_in(&self.disallowed) && (self.allowed.is_empty() || is_in(&self.allowed))
    }

    /// The tools of a child session, which never has more than its parent. None if no tool remains.
    pub fn narrowed_by(&self, child: &Self) -> Option<Self> {
        let allowed: Vec<String> = match (&self.allowed[..], &child.allowed[..]) {
            (own, []) => own.to_vec(),
            ([], given) => given.to_vec(),
            (_, given) => {
                let permitted = given.iter().filter(|name| self.permits(name));
                let names: Vec<String> = permitted.cloned().collect();
                if names.is_empty() {
                    return None;
                }
                names
            }
        };
        let added = child
            .disallowed
            .iter()
            .filter(|name| !self.disallowed.contains(name));
        Some(Self {
            allowed,
            disallowed: self.disallowed.iter().chain(added).cloned().collect(),
        })
    }
}

/// What the `*` of a pattern with one of them stands for in a name that matches.
pub(crate) fn captured_by_pattern<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    let (start, end) = pattern.split_once('*')?;
    name.strip_prefix(start)?.strip_suffix(end)
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

impl ToolEnforcement {
    /// Why a filter cannot be enforced, as a sentence without its subject, which is the agent.
    pub fn unsupported_reason(self, tools: &ToolFilter) -> Option<String> {
        match self {
            _ if tools.is_empty() => None,
            Self::Unsupported(why) => {
                Some(format!("cannot be limited to some of its tools: {why}"))
            }
            Self::PermissionRequests { .. } | Self::Hooks => None,
            Self::Policies { server_prefix } => {
                let is_pattern = |name: &&String| {
                    let rest = name.strip_suffix('*').unwrap_or(name);
                    let is_whole = rest.len() == name.len();
                    rest.contains('*')
                        || !(is_whole || rest.is_empty() || rest.starts_with(server_prefix))
                };
                let name = tools.allowed.iter().chain(&tools.disallowed);
                let name = name.into_iter().find(is_pattern)?;
                Some(format!(
                    "has policies for whole names, `*` and `{server_prefix}SERVER_*`, and none for \
                     `{name}`; name each tool"
                ))
            }
            Self::Rules(rules) => {
                let mut permitted = rules.grouped_tools.iter().map(|name| tools.permits(name));
                let first = permitted.next();
                let differs = permitted.any(|other| Some(other) != first);
                let names = rules.grouped_tools.join("` and `");
                differs.then(|| {
                    format!("has one rule for `{names}` together; name all of them or none")
                })
            }
        }
    }
}

impl PermissionRules {
    /// The environment that enforces a filter; `base` are the agent's rules without one.
    pub(crate) fn environment(&self, tools: &ToolFilter, base: &str) -> BTreeMap<String, String> {
        let mut rules: Map<String, Value> = serde_json::from_str(base).unwrap_or_default();
        let permit = rules.get("*").cloned().unwrap_or_else(|| "ask".into());
        let deny = Value::from("deny");
        if !tools.allowed.is_empty() {
            rules.clear();
            rules.insert("*".to_owned(), deny.clone());
            let other_rules = self.other_rules.iter().map(ToString::to_string);
            for name in other_rules.chain(tools.allowed.iter().cloned()) {
                rules.insert(name, permit.clone());
            }
        }
        let denied = tools.disallowed.iter().map(|name| (name.clone(), &deny));
        let grouped = self.grouped_tools.first().map(|name| {
            let permitted = tools.permits(name);
            ((*name).to_owned(), if permitted { &permit } else { &deny })
        });
        for (name, rule) in denied.chain(grouped) {
            // At the end, because the last rule that matches applies.
            rules.shift_remove(&name);
            rules.insert(name, rule.clone());
        }
        self.env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .chain([(self.variable.to_owned(), Value::Object(rules).to_string())])
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tools(allowed: &[&str], disallowed: &[&str]) -> ToolFilter {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        ToolFilter {
            allowed: names(allowed),
            disallowed: names(disallowed),
        }
    }

    #[test]
    fn a_tool_is_permitted_if_it_is_allowed_and_not_disallowed() {
        assert!(tools(&[], &[]).permits("sh"));
        assert!(tools(&["sh"], &[]).permits("sh") && !tools(&["sh"], &[]).permits("shell"));
        assert!(!tools(&[], &["s*"]).permits("sh"));
        let some = tools(&["app_*", "*_x_*y"], &["app_delete"]);
        for (name, permitted) in [
            ("app_list", true),
            ("app_delete", false),
            ("a_x_by", true),
            ("a_x_b", false),
            ("_x_y", true),
            ("_x_", false),
            ("", false),
        ] {
            assert_eq!(some.permits(name), permitted, "{name}");
        }
        assert!(!tools(&["a*a"], &[]).permits("a"));
    }

    #[test]
    fn a_child_never_has_more_tools_than_its_parent() {
        let parent = tools(&["a_*", "b"], &["a_x"]);
        let same = parent.narrowed_by(&ToolFilter::default()).unwrap();
        assert_eq!(same, parent);
        let less = parent
            .narrowed_by(&tools(&["b", "c", "a_x"], &["d"]))
            .unwrap();
        assert_eq!(less, tools(&["b"], &["a_x", "d"]));
        assert_eq!(parent.narrowed_by(&tools(&["c"], &[])), None);
        let free = ToolFilter::default()
            .narrowed_by(&tools(&["c"], &[]))
            .unwrap();
        assert_eq!(free, tools(&["c"], &[]));
    }

    #[test]
    fn rules_express_the_filter() {
        let rules = PermissionRules {
            variable: "RULES",
            grouped_tools: &["edit", "write"],
            other_rules: &["outside"],
            env: &[("MORE", "1")],
        };
        let base = r#"{"*":"allow","outside":"allow"}"#;
        let variable = |tools: &ToolFilter| rules.environment(tools, base)["RULES"].clone();
        assert_eq!(
            variable(&tools(&[], &["bash"])),
            r#"{"*":"allow","outside":"allow","bash":"deny","edit":"allow"}"#
        );
        assert_eq!(
            variable(&tools(&["read", "x_*"], &["x_y"])),
            r#"{"*":"deny","outside":"allow","read":"allow","x_*":"allow","x_y":"deny","edit":"deny"}"#
        );
        assert_eq!(rules.environment(&tools(&["a"], &[]), base)["MORE"], "1");
        let enforcement = ToolEnforcement::Rules(rules);
        assert_eq!(
            enforcement.unsupported_reason(&tools(&["edit", "write"], &[])),
            None
        );
        let half = enforcement
            .unsupported_reason(&tools(&[], &["write"]))
            .unwrap();
        assert!(half.contains("`edit` and `write` together"), "{half}");
        let reason =
            ToolEnforcement::Unsupported("it is free").unsupported_reason(&tools(&["a"], &[]));
        assert!(reason.unwrap().ends_with("it is free"));
    }
}
