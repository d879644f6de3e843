//! Settings that keep an agent to the level and the tools of its session, where its own modes and
//! permission requests do not.

use oubliette_model::Level;
use oubliette_wire::{FileFormat, HomeFile};
use serde_json::{Value, json};

use crate::tool_filter::ToolFilter;

/// Where a file of the restrictions is, in the agent's home.
const CODEX_PROGRAMS: &str = ".codex/programs";
const CODEX_BWRAP: &str = ".codex/programs/bwrap";
/// It prefers this to its own if it has the options that it needs, and takes the message for a denial.
const DENYING_BWRAP: &str = "#!/bin/sh
case \"$1\" in --help) echo '--argv0 --as-pid-1 --perms --ro-bind-fd'; exit 0 ;; esac
echo 'bwrap: Operation not permitted' >&2
exit 1
";
const DROID_HOOKS: &str = ".factory/hooks.json";
const GEMINI_POLICIES: &str = ".gemini/policies/oubliette.toml";

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

pub(crate) const CLAUDE: RestrictionSettings = RestrictionSettings {
    paths: &[],
    build: claude,
};

pub(crate) const CODEX: RestrictionSettings = RestrictionSettings {
    paths: &[CODEX_BWRAP],
    build: codex,
};

pub(crate) const DROID: RestrictionSettings = RestrictionSettings {
    paths: &[DROID_HOOKS],
    build: droid,
};

pub(crate) const GEMINI: RestrictionSettings = RestrictionSettings {
    paths: &[GEMINI_POLICIES],
    build: gemini,
};

/// Its default mode does not ask before it reads; a hook makes it ask before everything.
fn claude(level: Level, tools: &ToolFilter) -> Restrictions {
    let mut hooks: Vec<Value> = denying_hook(tools).into_iter().collect();
    if level == Level::Off {
        let decision = json!({ "hookSpecificOutput": {
            "hookEventName": "PreToolUse", "permissionDecision": "ask",
        } });
        hooks.push(hook(".*", &format!("echo '{decision}'")));
    }
    if hooks.is_empty() {
        return Restrictions::default();
    }
    // These settings override those of the workspace.
    let settings = json!({ "disableAllHooks": false, "hooks": { "PreToolUse": hooks } });
    Restrictions {
        session_meta: json!({ "claudeCode": { "options": { "settings": settings } } }),
        ..Restrictions::default()
    }
}

/// It asks before it repeats a command that its own sandbox did not permit, and only then. So that sandbox
/// permits none, also where a container could create it.
fn codex(level: Level, _: &ToolFilter) -> Restrictions {
    if level == Level::High {
        return Restrictions::default();
    }
    Restrictions {
        files: vec![HomeFile::new(
            CODEX_BWRAP,
            FileFormat::Program,
            DENYING_BWRAP,
        )],
        programs: Some(CODEX_PROGRAMS),
        ..Restrictions::default()
    }
}

fn droid(_: Level, tools: &ToolFilter) -> Restrictions {
    let hooks = denying_hook(tools).map(|hook| json!({ "PreToolUse": [hook] }).to_string());
    let file = |content| HomeFile::new(DROID_HOOKS, FileFormat::Json, content);
    Restrictions {
        files: hooks.map(file).into_iter().collect(),
        ..Restrictions::default()
    }
}

/// A hook that denies the tools that a filter does not permit.
fn denying_hook(tools: &ToolFilter) -> Option<Value> {
    let matcher = denied_names(tools)?;
    let command = "echo 'The session may not use this tool.' >&2; exit 2";
    Some(hook(&matcher, command))
}

fn hook(matcher: &str, command: &str) -> Value {
    json!({ "matcher": matcher, "hooks": [{ "type": "command", "command": command }] })
}

/// A regular expression for the names that a filter does not permit.
fn denied_names(tools: &ToolFilter) -> Option<String> {
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

/// Its own policies come after these, also those of its mode.
fn gemini(level: Level, tools: &ToolFilter) -> Restrictions {
    let permitted = match level {
        // The server decides on each request.
        Level::Off | Level::Low | Level::Medium => "ask_user",
        Level::High => "allow",
    };
    let all = ["*".to_owned()];
    let mut rules = Vec::new();
    if !tools.allowed.is_empty() {
        rules.push((&all[..], "deny", 900));
        rules.push((&tools.allowed[..], permitted, 901));
    } else if level == Level::Off {
        rules.push((&all[..], "ask_user", 900));
    }
    if !tools.disallowed.is_empty() {
        rules.push((&tools.disallowed[..], "deny", 902));
    }
    if rules.is_empty() {
        return Restrictions::default();
    }
    let rules = rules.iter().map(|(names, decision, priority)| {
        let names = json!(names);
        format!("[[rule]]\ntoolName = {names}\ndecision = \"{decision}\"\npriority = {priority}\n")
    });
    let content: String = rules.collect();
    Restrictions {
        files: vec![HomeFile::new(GEMINI_POLICIES, FileFormat::Text, content)],
        ..Restrictions::default()
    }
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

    #[test]
    fn nothing_is_set_without_a_restriction() {
        let all = ToolFilter::default();
        let below_high = (CODEX.build)(Level::Medium, &all);
        assert_eq!(below_high.files[0].path, CODEX_BWRAP);
        assert_eq!((CODEX.build)(Level::High, &all), Restrictions::default());
        for settings in [CLAUDE, DROID, GEMINI] {
            for level in [Level::Low, Level::Medium, Level::High] {
                assert_eq!((settings.build)(level, &all), Restrictions::default());
            }
            let some = (settings.build)(Level::High, &tools(&["a"], &[]));
            assert_ne!(some, Restrictions::default());
            let written = some.files.iter().map(|file| &file.path);
            assert!(
                written
                    .into_iter()
                    .all(|path| settings.paths.contains(&path.as_str()))
            );
        }
    }

    #[test]
    fn policies_deny_what_is_not_allowed() {
        let built = gemini(Level::Low, &tools(&["read_file"], &["glob"]));
        let text = &built.files[0].content;
        for (names, decision) in [
            (r#"["*"]"#, "deny"),
            (r#"["read_file"]"#, "ask_user"),
            (r#"["glob"]"#, "deny"),
        ] {
            let rule = format!("toolName = {names}\ndecision = \"{decision}\"");
            assert!(text.contains(&rule), "{text}");
        }
    }
}
