//! The agents that Oubliette knows without configuration. They all speak ACP; only data differs.

use std::collections::BTreeMap;

use oubliette_model::{Level, Usage};
use oubliette_wire::CLIENT_PATH;

use crate::droid;
use crate::tool_filter::{PermissionRules, ToolEnforcement, ToolFilter};

/// The npm package of an agent, which is installed if the container's image does not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package {
    pub npm: &'static str,
    pub version: &'static str,
    /// The name of the executable.
    pub program: &'static str,
    /// The one file of the package that is needed; none for a script that needs Node.js and its
    /// dependencies.
    pub binary: Option<&'static str>,
}

/// A file that an agent keeps about a session: a shell glob with `{home}` and `{session}` in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionFile(pub &'static str);

impl SessionFile {
    /// The glob for one session; none if the agent's id of the session needs quoting in a shell.
    pub fn glob(self, home: &str, session: &str) -> Option<String> {
        is_plain_word(session).then(|| self.0.replace("{home}", home).replace("{session}", session))
    }
}

/// Whether a word needs no quoting, in a shell or in a glob.
pub(crate) fn is_plain_word(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !word.is_empty() && word.chars().all(is_plain)
}

/// A file with the tokens that a session has used.
#[derive(Debug, Clone, Copy)]
pub struct UsageFile {
    pub file: SessionFile,
    /// The totals of the session, from the text of the file.
    pub parse_totals: fn(&str) -> Option<Usage>,
}

/// A file with the conversation of a session, one JSON message a line.
#[derive(Debug, Clone, Copy)]
pub struct TranscriptFile {
    pub file: SessionFile,
    /// A string that only lines with the output of this tool call contain; none if the id of the
    /// call needs quoting.
    pub output_marker: fn(&str) -> Option<String>,
    /// The output of a tool call, from such a line and the id of the call.
    pub parse_output: fn(&str, &str) -> Option<String>,
}

/// One agent.
#[derive(Debug, Clone)]
pub struct Agent {
    pub name: String,
    pub about: String,
    /// The executable and its arguments.
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Variables with a value for each level of autonomy: off, low, medium, high.
    pub env_by_autonomy: BTreeMap<String, [String; 4]>,
    /// Files that are created in its home directory if they do not exist.
    pub files: BTreeMap<String, String>,
    pub package: Option<Package>,
    /// The kinds of credentials that it accepts, each with its environment variable.
    pub credentials: BTreeMap<String, String>,
    /// The ACP authentication method, for an agent that does not use its credential otherwise.
    pub auth_method: Option<String>,
    /// Its own modes for the levels of autonomy: off, low, medium, high.
    pub modes: Option<[String; 4]>,
    /// Whether the model and the level of reasoning can be set.
    pub takes_model: bool,
    pub takes_reasoning: bool,
    pub tool_enforcement: ToolEnforcement,
    /// Where it keeps its token counts, if it does not report them.
    pub usage_file: Option<UsageFile>,
    /// Where it keeps its conversation, if it does not report all output of tools.
    pub transcript_file: Option<TranscriptFile>,
}

impl Agent {
    /// An agent of which only the command is known.
    pub fn from_command(name: &str, argv: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            about: "an ACP agent of the configuration".to_owned(),
            argv,
            env: BTreeMap::new(),
            env_by_autonomy: BTreeMap::new(),
            files: BTreeMap::new(),
            package: None,
            credentials: BTreeMap::new(),
            auth_method: None,
            modes: None,
            takes_model: true,
            takes_reasoning: true,
            tool_enforcement: ToolEnforcement::Unsupported(
                "the catalogue does not say how to configure its tools",
            ),
            usage_file: None,
            transcript_file: None,
        }
    }

    /// Its mode at a level of autonomy, and whether the mode is required.
    pub fn mode(&self, autonomy: Level, tools: &ToolFilter) -> (Option<String>, bool) {
        if let ToolEnforcement::PermissionRequests { mode } = self.tool_enforcement
            && !tools.is_empty()
        {
            return (Some(mode.to_owned()), true);
        }
        let mode = self
            .modes
            .as_ref()
            .map(|modes| &modes[level_index(autonomy)]);
        (mode.cloned(), false)
    }

    /// Its environment at a level of autonomy, with these tools.
    pub fn environment(&self, autonomy: Level, tools: &ToolFilter) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        for (name, values) in &self.env_by_autonomy {
            env.insert(name.clone(), values[level_index(autonomy)].clone());
        }
        if let ToolEnforcement::Rules(rules) = self.tool_enforcement
            && !tools.is_empty()
        {
            let base = env.get(rules.variable).map_or("{}", String::as_str);
            env.extend(rules.environment(tools, base));
        }
        env
    }
}

fn level_index(level: Level) -> usize {
    match level {
        Level::Off => 0,
        Level::Low => 1,
        Level::Medium => 2,
        Level::High => 3,
    }
}

fn argv(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn levels(levels: [&str; 4]) -> [String; 4] {
    levels.map(str::to_owned)
}

/// The agents, sorted by name.
pub fn catalogue() -> Vec<Agent> {
    vec![claude(), codex(), demo(), droid(), gemini(), opencode()]
}

fn demo() -> Agent {
    Agent {
        about: "a scripted agent that needs no key and no network".to_owned(),
        modes: Some(levels(["ask", "ask", "auto", "auto"])),
        tool_enforcement: ToolEnforcement::PermissionRequests { mode: "each" },
        takes_model: false,
        takes_reasoning: false,
        ..Agent::from_command("demo", argv(&[CLIENT_PATH, "demo-agent"]))
    }
}

fn opencode() -> Agent {
    let ask = r#"{"*":"ask"}"#;
    let allow = r#"{"*":"allow","external_directory":"allow","doom_loop":"allow"}"#;
    Agent {
        about: "OpenCode".to_owned(),
        env: pairs(&[
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
        ]),
        env_by_autonomy: BTreeMap::from([(
            "OPENCODE_PERMISSION".to_owned(),
            levels([ask, ask, ask, allow]),
        )]),
        tool_enforcement: ToolEnforcement::Rules(PermissionRules {
            variable: "OPENCODE_PERMISSION",
            grouped_tools: &["edit", "write"],
            other_rules: &["external_directory", "doom_loop"],
            // Settings in the workspace could define agents with other rules.
            env: &[("OPENCODE_DISABLE_PROJECT_CONFIG", "1")],
        }),
        package: Some(Package {
            npm: "opencode-ai",
            version: "1.18.33",
            program: "opencode",
            binary: Some("bin/opencode.exe"),
        }),
        credentials: pairs(&[
            ("anthropic", "ANTHROPIC_API_KEY"),
            ("openai", "OPENAI_API_KEY"),
            ("gemini", "GEMINI_API_KEY"),
            ("google", "GEMINI_API_KEY"),
            ("openrouter", "OPENROUTER_API_KEY"),
            ("opencode", "OPENCODE_API_KEY"),
        ]),
        ..Agent::from_command("opencode", argv(&["opencode", "acp"]))
    }
}

fn droid() -> Agent {
    Agent {
        about: "Factory Droid".to_owned(),
        env: pairs(&[("FACTORY_DROID_AUTO_UPDATE_ENABLED", "false")]),
        package: Some(Package {
            npm: "droid",
            version: "0.215.0",
            program: "droid",
            binary: Some("bin/droid"),
        }),
        credentials: pairs(&[("factory", "FACTORY_API_KEY")]),
        modes: Some(levels(["normal", "auto-low", "auto-medium", "auto-high"])),
        tool_enforcement: ToolEnforcement::Unsupported(
            "it ignores `--only-tools` and `--remove-tools` in its Agent Client Protocol mode, and \
             does not request permission before each tool call",
        ),
        usage_file: Some(droid::USAGE_FILE),
        transcript_file: Some(droid::TRANSCRIPT_FILE),
        ..Agent::from_command("droid", argv(&["droid", "exec", "--output-format", "acp"]))
    }
}

fn claude() -> Agent {
    Agent {
        about: "Claude Code".to_owned(),
        env: pairs(&[
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("ENABLE_TOOL_SEARCH", "false"),
            // As root it offers `bypassPermissions` only with this variable.
            ("IS_SANDBOX", "1"),
        ]),
        package: Some(Package {
            npm: "@agentclientprotocol/claude-agent-acp",
            version: "0.99.1",
            program: "claude-agent-acp",
            binary: None,
        }),
        credentials: pairs(&[("anthropic", "ANTHROPIC_API_KEY")]),
        modes: Some(levels([
            "default",
            "default",
            "acceptEdits",
            "bypassPermissions",
        ])),
        ..Agent::from_command("claude", argv(&["claude-agent-acp"]))
    }
}

fn codex() -> Agent {
    let modes = levels([
        "read-only",
        "read-only",
        "workspace-write",
        "agent-full-access",
    ]);
    Agent {
        about: "Codex".to_owned(),
        // Also holds for loaded and resumed sessions, which do not keep the mode set over ACP.
        env_by_autonomy: BTreeMap::from([("INITIAL_AGENT_MODE".to_owned(), modes.clone())]),
        package: Some(Package {
            npm: "@agentclientprotocol/codex-acp",
            version: "2.6.0",
            program: "codex-acp",
            binary: None,
        }),
        credentials: pairs(&[("openai", "OPENAI_API_KEY")]),
        auth_method: Some("api-key".to_owned()),
        modes: Some(modes),
        ..Agent::from_command("codex", argv(&["codex-acp"]))
    }
}

fn gemini() -> Agent {
    let settings = r#"{"security":{"auth":{"selectedType":"gemini-api-key"}},"general":{"enableAutoUpdate":false},"privacy":{"usageStatisticsEnabled":false}}"#;
    Agent {
        about: "Gemini CLI".to_owned(),
        // Without it the agent starts no MCP servers and reports no error.
        env: pairs(&[("GEMINI_CLI_TRUST_WORKSPACE", "true")]),
        files: pairs(&[(".gemini/settings.json", settings)]),
        package: Some(Package {
            npm: "@google/gemini-cli",
            version: "0.61.0",
            program: "gemini",
            binary: None,
        }),
        credentials: pairs(&[("gemini", "GEMINI_API_KEY"), ("google", "GEMINI_API_KEY")]),
        modes: Some(levels(["default", "default", "autoEdit", "yolo"])),
        ..Agent::from_command("gemini", argv(&["gemini", "--acp"]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sorted() {
        let names: Vec<String> = catalogue().into_iter().map(|agent| agent.name).collect();
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(names, sorted);
    }

    #[test]
    fn a_session_file_has_a_glob_only_for_a_plain_id() {
        let file = SessionFile("{home}/x/*/{session}.json");
        assert_eq!(
            file.glob("/root", "a-1_B").as_deref(),
            Some("/root/x/*/a-1_B.json")
        );
        for session in ["", "a b", "../a", "*", "$(x)"] {
            assert_eq!(file.glob("/root", session), None, "{session}");
        }
    }

    #[test]
    fn autonomy_chooses_mode_and_environment() {
        let agents = catalogue();
        let agent = |name: &str| agents.iter().find(|agent| agent.name == name).unwrap();
        let all = ToolFilter::default();
        let some = ToolFilter {
            allowed: vec!["read".to_owned()],
            ..ToolFilter::default()
        };
        let high = (Some("auto-high".to_owned()), false);
        assert_eq!(agent("droid").mode(Level::High, &all), high);
        assert_eq!(agent("opencode").mode(Level::High, &some), (None, false));
        let each = (Some("each".to_owned()), true);
        assert_eq!(agent("demo").mode(Level::High, &some), each);
        let limited = agent("opencode").environment(Level::Low, &some);
        let rules = &limited["OPENCODE_PERMISSION"];
        assert!(rules.starts_with(r#"{"*":"deny""#), "{rules}");
        assert!(rules.contains(r#""read":"ask""#), "{rules}");
        let asking = agent("opencode").environment(Level::Low, &all);
        assert_eq!(asking["OPENCODE_PERMISSION"], r#"{"*":"ask"}"#);
    }
}
