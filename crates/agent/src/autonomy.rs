//! What an agent may do without the caller's permission: the same at each level for every agent.
//!
//! The server decides on requests as the agent describes them. A description can be wrong, so one that
//! is incomplete or contradicts itself is left to the caller, and so are files that make an agent run
//! commands.

use oubliette_model::Level;
use serde_json::Value;

use crate::agent::Agent;
use crate::permission_request::PermissionRequest;
use crate::tool_filter::captured_by_pattern;

/// More files than this in one request are left to the caller.
const MAX_FILES: usize = 64;

/// Names of files and directories whose content makes an agent or git run commands, or gives an agent
/// more permissions.
const GUARDED_NAMES: [&str; 14] = [
    ".agents",
    ".claude",
    ".codex",
    ".copilot",
    ".factory",
    ".gemini",
    ".git",
    ".gitmodules",
    ".mcp.json",
    ".opencode",
    ".qwen",
    "opencode.json",
    "opencode.jsonc",
    "opencode.toml",
];

/// Programs that only read, whatever their options and arguments are.
const READERS: [&str; 8] = ["cat", "grep", "head", "ls", "nl", "pwd", "tail", "wc"];

/// A decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AutonomyDecision {
    Allow,
    /// Allowed if none of these paths, which are relative to the workspace, leads through a link.
    AllowEdit(Vec<String>),
    /// The caller decides.
    Ask,
}

/// The level of a session, and what its agent's requests are about.
#[derive(Debug, Clone, Copy)]
pub struct AutonomyPolicy<'a> {
    pub level: Level,
    pub agent: &'a Agent,
    /// The directory of the workspace, as the agent sees it.
    pub workspace: &'a str,
}

impl AutonomyPolicy<'_> {
    pub fn decide(&self, request: &PermissionRequest) -> AutonomyDecision {
        match self.level {
            // The container is the boundary.
            Level::High => return AutonomyDecision::Allow,
            Level::Off => return AutonomyDecision::Ask,
            Level::Low | Level::Medium => {}
        }
        if self.is_own_tool(request) {
            return AutonomyDecision::Allow;
        }
        if let Some(command) = command_of(&request.input) {
            let reads = self.agent.reads_by_commands && is_reader(&command);
            return if reads {
                AutonomyDecision::Allow
            } else {
                AutonomyDecision::Ask
            };
        }
        match request.kind.as_str() {
            "read" | "search" | "think" => AutonomyDecision::Allow,
            "edit" | "delete" | "move" if self.level == Level::Medium => self.decide_edit(request),
            _ => AutonomyDecision::Ask,
        }
    }

    fn decide_edit(&self, request: &PermissionRequest) -> AutonomyDecision {
        let paths = request.edited_paths();
        let needed = if request.kind == "move" { 2 } else { 1 };
        if paths.len() < needed || paths.len() > MAX_FILES {
            return AutonomyDecision::Ask;
        }
        let files = paths
            .iter()
            .map(|path| path_in_workspace(self.workspace, path));
        match files.collect::<Option<Vec<String>>>() {
            Some(files) if !files.iter().any(|file| is_guarded(file)) => {
                AutonomyDecision::AllowEdit(files)
            }
            _ => AutonomyDecision::Ask,
        }
    }

    /// Whether the request is for a tool for child sessions or of a caller. Children have no more
    /// autonomy, and callers decide on each call. The tools of the agent's key, which can do more, are
    /// those with the prefix `oubliette_`.
    fn is_own_tool(&self, request: &PermissionRequest) -> bool {
        // The title of a command can be what the model calls it.
        if request.kind == "execute" && command_of(&request.input).is_some() {
            return false;
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let mut patterns = self.agent.own_tools.iter();
        patterns.any(|pattern| {
            let name = captured_by_pattern(pattern, request.tool_name());
            // Their names have the noun or the caller before the verb or the tool.
            name.is_some_and(|name| {
                name.contains('_') && !name.starts_with("oubliette_") && name.chars().all(is_name)
            })
        })
    }
}

/// A path relative to the workspace; none if it is not below it.
fn path_in_workspace(workspace: &str, path: &str) -> Option<String> {
    let is_plain = !path.is_empty() && !path.contains("://") && !path.contains(char::is_control);
    if !is_plain || path.starts_with('~') {
        return None;
    }
    let relative = match path.strip_prefix(workspace) {
        Some(rest) => rest.strip_prefix('/')?,
        None if path.starts_with('/') => return None,
        None => path,
    };
    let mut names: Vec<&str> = Vec::new();
    for name in relative.split('/') {
        match name {
            "" | "." => {}
            // A name before it may be a link.
            ".." => return None,
            name => names.push(name),
        }
    }
    (!names.is_empty()).then(|| names.join("/"))
}

fn is_guarded(file: &str) -> bool {
    file.split('/')
        .any(|name| GUARDED_NAMES.contains(&name.to_ascii_lowercase().as_str()))
}

/// The command of a tool call, whatever its kind is said to be.
fn command_of(input: &Value) -> Option<String> {
    let mut names = ["command", "cmd", "script", "code"].into_iter();
    match names.find_map(|name| input.get(name))? {
        Value::String(command) => Some(command.clone()),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            Some(match &words[..] {
                [shell, "-c" | "-lc", script] if is_shell(shell) => (*script).to_owned(),
                words => words.join(" "),
            })
        }
        other => Some(other.to_string()),
    }
}

fn is_shell(program: &str) -> bool {
    matches!(program.rsplit('/').next(), Some("sh" | "bash" | "zsh"))
}

/// Whether a command is one program that only reads, without anything that a shell interprets.
fn is_reader(command: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " _-./,:=+@%".contains(c);
    if !command.chars().all(is_plain) {
        return false;
    }
    let words: Vec<&str> = command.split_whitespace().collect();
    match &words[..] {
        ["sed", "-n", range, file] => is_line_range(range) && !file.starts_with('-'),
        [program, ..] => READERS.contains(program),
        [] => false,
    }
}

/// `3p` or `1,200p`.
fn is_line_range(range: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let Some(lines) = range.strip_suffix('p') else {
        return false;
    };
    match lines.split_once(',') {
        Some((first, last)) => is_number(first) && is_number(last),
        None => is_number(lines),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalogue::catalogue;

    fn decide(agent: &str, level: Level, call: Value) -> AutonomyDecision {
        let agents = catalogue();
        let agent = agents.iter().find(|row| row.name == agent).unwrap();
        let policy = AutonomyPolicy {
            level,
            agent,
            workspace: "/workspace",
        };
        policy.decide(&PermissionRequest::parse("1", &json!({ "toolCall": call })))
    }

    fn is_asked(level: Level, call: Value) -> bool {
        decide("claude", level, call) == AutonomyDecision::Ask
    }

    #[test]
    fn a_level_allows_reading_then_edits_in_the_workspace_then_everything() {
        let levels = [Level::Off, Level::Low, Level::Medium, Level::High];
        let edit = |path: &str| json!({ "kind": "edit", "rawInput": { "file_path": path } });
        for (call, asked) in [
            (
                json!({ "kind": "read", "rawInput": { "file_path": "/etc/hosts" } }),
                [true, false, false, false],
            ),
            (edit("/workspace/a/b.txt"), [true, true, false, false]),
            (edit("src/main.rs"), [true, true, false, false]),
            (edit("/workspaces/a"), [true, true, true, false]),
            (edit("/workspace/../etc/passwd"), [true, true, true, false]),
            (edit("/workspace/.git/hooks/x"), [true, true, true, false]),
            (edit("a/.Claude/settings.json"), [true, true, true, false]),
            (edit("~/.bashrc"), [true, true, true, false]),
            (edit("file:///etc/passwd"), [true, true, true, false]),
            (json!({ "kind": "edit" }), [true, true, true, false]),
            (
                json!({ "kind": "execute", "rawInput": { "command": "ls" } }),
                [true, true, true, false],
            ),
            (json!({ "kind": "fetch" }), [true, true, true, false]),
            (json!({ "kind": "other" }), [true, true, true, false]),
            (json!({}), [true, true, true, false]),
        ] {
            let seen = levels.map(|level| is_asked(level, call.clone()));
            assert_eq!(seen, asked, "{call}");
        }
    }

    #[test]
    fn a_request_that_contradicts_itself_is_asked_for() {
        // A command with another kind, and an edit that shows another file than it names.
        let command = json!({ "kind": "read", "rawInput": { "command": "rm -rf ." } });
        assert!(is_asked(Level::Medium, command));
        let edit = json!({ "kind": "edit", "rawInput": { "file_path": "/workspace/a" },
            "locations": [{ "path": "/root/.profile" }] });
        assert!(is_asked(Level::Medium, edit));
        let moved = json!({ "kind": "move", "rawInput": { "path": "a" } });
        assert!(is_asked(Level::Medium, moved));
        let many: Vec<Value> = (0..=MAX_FILES)
            .map(|n| json!({ "path": format!("/workspace/{n}") }))
            .collect();
        assert!(is_asked(
            Level::Medium,
            json!({ "kind": "edit", "locations": many })
        ));
    }

    #[test]
    fn the_tools_for_children_and_of_callers_are_not_asked_for() {
        for (agent, prefix, suffix) in [
            ("claude", "mcp__oubliette__", ""),
            ("opencode", "oubliette_", ""),
            ("droid", "oubliette___", ""),
            ("gemini", "", " (oubliette MCP Server)"),
            ("copilot", "oubliette-", ""),
            ("qwen", "mcp__oubliette__", ""),
        ] {
            let of =
                |name: &str| json!({ "kind": "other", "title": format!("{prefix}{name}{suffix}") });
            for name in ["session_message", "app_ping"] {
                assert_eq!(
                    decide(agent, Level::Off, of(name)),
                    AutonomyDecision::Ask,
                    "{agent}"
                );
                assert_eq!(
                    decide(agent, Level::Low, of(name)),
                    AutonomyDecision::Allow,
                    "{agent}"
                );
            }
            let of_key = of("oubliette_container");
            assert_eq!(
                decide(agent, Level::Medium, of_key),
                AutonomyDecision::Ask,
                "{agent}"
            );
            let odd = of("x y");
            assert_eq!(
                decide(agent, Level::Medium, odd),
                AutonomyDecision::Ask,
                "{agent}"
            );
        }
    }

    #[test]
    fn a_command_with_the_title_of_such_a_tool_is_asked_for() {
        for (agent, title) in [
            ("copilot", "oubliette-session_message"),
            ("opencode", "oubliette_session_message"),
        ] {
            let call =
                json!({ "kind": "execute", "title": title, "rawInput": { "command": "rm x" } });
            assert_eq!(
                decide(agent, Level::Medium, call),
                AutonomyDecision::Ask,
                "{agent}"
            );
        }
    }

    #[test]
    fn commands_that_only_read_are_read() {
        for (command, reads) in [
            ("cat a.txt", true),
            ("sed -n 1,200p src/main.rs", true),
            ("ls -la /workspace", true),
            ("cat a > b", false),
            ("cat $(x)", false),
            ("cat a; rm b", false),
            ("cat a\nrm b", false),
            ("sed -n 1,2w/etc/x a", false),
            ("sed -i s/a/b/ a", false),
            ("./cat a", false),
            ("find . -delete", false),
            ("", false),
        ] {
            let call = json!({ "kind": "execute", "rawInput": { "command": command } });
            let decision = decide("codex", Level::Low, call.clone());
            assert_eq!(decision == AutonomyDecision::Allow, reads, "{command}");
            assert_eq!(
                decide("codex", Level::Off, call.clone()),
                AutonomyDecision::Ask
            );
            assert_eq!(decide("claude", Level::Low, call), AutonomyDecision::Ask);
        }
        let wrapped = json!({ "rawInput": { "command": ["/bin/bash", "-lc", "cat a"] } });
        assert_eq!(
            decide("codex", Level::Low, wrapped),
            AutonomyDecision::Allow
        );
    }
}
