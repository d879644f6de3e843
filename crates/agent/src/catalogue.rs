//! The agents that Oubliette knows without configuration. They all speak ACP; only data differs.

use std::collections::BTreeMap;

use oubliette_model::{Level, Usage};
use oubliette_wire::{AGENT_INSTRUCTIONS, CLIENT_PATH, FileFormat, HomeFile, merge_json};
use serde_json::{Value, json};

use crate::droid;
use crate::home::HomeLayout;
use crate::restrictions::{self, RestrictionSettings, Restrictions};
use crate::sign_in::{self, SignInMethods};
use crate::signals::claude_session_meta;
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

/// Which models an agent can be told to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelSetting {
    /// Those that it offers.
    Offered,
    /// Any, by a variable of its environment.
    Variable(&'static str),
    /// Any, by the field `model` of a JSON object in a variable of its environment.
    JsonVariable(&'static str),
}

/// How an agent learns that the tools of its MCP servers have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolRefresh {
    /// It lists them when it uses them, or nothing is known about it.
    OnUse,
    /// It lists them again when it is notified.
    Notified,
    /// It lists them again when it is notified, and accepts prompts before it has listed them at first.
    Late,
    /// It lists them only when it starts.
    Restart,
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
    /// Variables with a JSON object that is merged into what the user sets in them.
    pub json_env: BTreeMap<String, Value>,
    /// Variables that get a new random value at each start: passwords of listeners that only the agent
    /// itself uses.
    pub random_env: Vec<String>,
    /// Files of the configuration, written into its home at each start.
    pub files: BTreeMap<String, String>,
    pub home: HomeLayout,
    pub package: Option<Package>,
    /// The kinds of credentials that it accepts, each with its environment variable.
    pub credentials: BTreeMap<String, String>,
    /// How it signs in otherwise, and how it is told of a gateway.
    pub sign_in: SignInMethods,
    /// The ACP authentication method, for an agent that does not use its credential otherwise.
    pub auth_method: Option<String>,
    /// Its own modes for the levels of autonomy: off, low, medium, high.
    pub modes: Option<[String; 4]>,
    /// Whether the model and the level of reasoning can be set.
    pub takes_model: bool,
    pub takes_reasoning: bool,
    pub model_setting: ModelSetting,
    pub tool_enforcement: ToolEnforcement,
    pub restrictions: RestrictionSettings,
    /// What it calls the tools of Oubliette's MCP server, in requests for permission: patterns in which `*`
    /// stands for the name.
    pub own_tools: &'static [&'static str],
    /// Whether it has no tool for reading and uses commands.
    pub reads_by_commands: bool,
    pub tool_refresh: ToolRefresh,
    /// Whether its turns cost nothing, because it uses no model.
    pub is_free: bool,
    /// Where it keeps its token counts, if it does not report them.
    pub usage_file: Option<UsageFile>,
    /// Where it keeps its conversation, if it does not report all output of tools.
    pub transcript_file: Option<TranscriptFile>,
    /// `_meta` of the requests that open its session; null if it needs none.
    pub session_meta: Value,
    /// Whether the reason of a failed turn is only in what it wrote last.
    pub writes_failure_reason: bool,
    /// Whether a turn that ends well without any token has failed: it reports the tokens of every other
    /// turn, and the end of a model's broken stream as success.
    pub needs_tokens: bool,
    /// Whether a command that it started runs on after its turn was cancelled.
    pub leaves_commands: bool,
    /// Whether its plan is only in the input of the tool with which its model writes it.
    pub plans_by_tool: bool,
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
            json_env: BTreeMap::new(),
            random_env: Vec::new(),
            files: BTreeMap::new(),
            home: HomeLayout::default(),
            package: None,
            credentials: BTreeMap::new(),
            sign_in: sign_in::UNKNOWN,
            auth_method: None,
            modes: None,
            takes_model: true,
            takes_reasoning: true,
            model_setting: ModelSetting::Offered,
            tool_enforcement: ToolEnforcement::Unsupported(
                "the catalogue does not say how to configure its tools",
            ),
            restrictions: restrictions::NONE,
            own_tools: &[],
            reads_by_commands: false,
            tool_refresh: ToolRefresh::OnUse,
            is_free: false,
            usage_file: None,
            transcript_file: None,
            session_meta: Value::Null,
            writes_failure_reason: false,
            needs_tokens: false,
            leaves_commands: false,
            plans_by_tool: false,
        }
    }

    /// Its mode at a level of autonomy, and whether the mode is required: without it the agent could do
    /// more than the session may.
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
        (mode.cloned(), mode.is_some() && autonomy != Level::High)
    }

    /// `_meta` of the requests that open its session, and files of ours for its home.
    pub fn restricted(&self, autonomy: Level, tools: &ToolFilter) -> Restrictions {
        let Restrictions {
            session_meta,
            files,
            programs,
        } = (self.restrictions.build)(autonomy, tools);
        let session_meta = match (&self.session_meta, session_meta) {
            (own, Value::Null) => own.clone(),
            (Value::Null, added) => added,
            (own, added) => merge_json(own.clone(), added),
        };
        let files = self.home.files.iter().cloned().chain(files).collect();
        Restrictions {
            session_meta,
            files,
            programs,
        }
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

    /// Tells the agent its model by its environment, if it can be told so.
    pub fn set_model(&self, model: &str, env: &mut BTreeMap<String, String>) {
        match self.model_setting {
            ModelSetting::Offered => {}
            ModelSetting::Variable(name) => {
                env.insert(name.to_owned(), model.to_owned());
            }
            ModelSetting::JsonVariable(name) => {
                let given = env.get(name).map_or("{}", String::as_str);
                if let Ok(Value::Object(mut settings)) = serde_json::from_str(given) {
                    settings.insert("model".to_owned(), model.into());
                    env.insert(name.to_owned(), Value::Object(settings).to_string());
                }
            }
        }
    }

    /// Merges its JSON settings into the variables of an environment, where the user's values win. A
    /// value that is not JSON is left to the agent, which reports it.
    pub fn merge_json_env(&self, env: &mut BTreeMap<String, String>) {
        for (name, settings) in &self.json_env {
            let given = match env.get(name) {
                Some(text) => serde_json::from_str(text).ok(),
                None => Some(json!({})),
            };
            if let Some(given) = given {
                env.insert(
                    name.clone(),
                    merge_json(settings.clone(), given).to_string(),
                );
            }
        }
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
        modes: Some(levels(["ask", "ask", "ask", "auto"])),
        own_tools: &["*"],
        tool_enforcement: ToolEnforcement::PermissionRequests { mode: "each" },
        takes_model: false,
        takes_reasoning: false,
        is_free: true,
        sign_in: sign_in::DEMO,
        home: HomeLayout {
            private: &[".oubliette-demo"],
            ..HomeLayout::default()
        },
        ..Agent::from_command("demo", argv(&[CLIENT_PATH, "demo-agent"]))
    }
}

fn opencode() -> Agent {
    let ask = r#"{"*":"ask"}"#;
    // It asks for the file itself, too, and the server decides on that.
    let ask_once = r#"{"*":"ask","external_directory":"allow"}"#;
    let allow = r#"{"*":"allow","external_directory":"allow","doom_loop":"allow"}"#;
    Agent {
        about: "OpenCode".to_owned(),
        env: pairs(&[
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
        ]),
        env_by_autonomy: BTreeMap::from([(
            "OPENCODE_PERMISSION".to_owned(),
            levels([ask, ask_once, ask_once, allow]),
        )]),
        // It serves an HTTP API on loopback, which containers with the host's network share.
        random_env: argv(&["OPENCODE_SERVER_PASSWORD"]),
        tool_enforcement: ToolEnforcement::Rules(PermissionRules {
            variable: "OPENCODE_PERMISSION",
            grouped_tools: &["edit", "write"],
            other_rules: &["external_directory", "doom_loop"],
            // Settings in the workspace could define agents with other rules.
            env: &[("OPENCODE_DISABLE_PROJECT_CONFIG", "1")],
        }),
        own_tools: &["oubliette_*"],
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
        sign_in: sign_in::OPENCODE,
        home: HomeLayout {
            private: &[
                ".config/opencode",
                ".local/share/opencode",
                ".local/state/opencode",
            ],
            copied: &[".config/opencode"],
            ..HomeLayout::default()
        },
        tool_refresh: ToolRefresh::Notified,
        plans_by_tool: true,
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
        sign_in: sign_in::DROID,
        modes: Some(levels(["normal", "normal", "normal", "auto-high"])),
        tool_enforcement: ToolEnforcement::Hooks,
        restrictions: restrictions::DROID,
        own_tools: &["oubliette___*"],
        home: HomeLayout {
            private: &[".factory"],
            copied: &[
                ".factory/settings.json",
                ".factory/AGENTS.md",
                ".factory/mcp.json",
                ".factory/commands",
                ".factory/droids",
                ".factory/skills",
            ],
            leftovers: &[],
            // It does not tell its model the instructions of MCP servers.
            files: vec![HomeFile::new(
                ".factory/AGENTS.md",
                FileFormat::Text,
                format!("## MCP server `oubliette`\n\n{AGENT_INSTRUCTIONS}"),
            )],
        },
        usage_file: Some(droid::USAGE_FILE),
        transcript_file: Some(droid::TRANSCRIPT_FILE),
        writes_failure_reason: true,
        tool_refresh: ToolRefresh::Late,
        ..Agent::from_command("droid", argv(&["droid", "exec", "--output-format", "acp"]))
    }
}

fn claude() -> Agent {
    Agent {
        about: "Claude Code".to_owned(),
        env: pairs(&[
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            // A call of the main model after each turn, for a suggestion that is not shown.
            ("CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION", "false"),
            // About 20 seconds; its default takes three minutes to report a wrong key.
            ("CLAUDE_CODE_MAX_RETRIES", "5"),
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
        credentials: pairs(&[
            ("anthropic", "ANTHROPIC_API_KEY"),
            ("claude_oauth", "CLAUDE_CODE_OAUTH_TOKEN"),
        ]),
        sign_in: sign_in::CLAUDE,
        model_setting: ModelSetting::Variable("ANTHROPIC_MODEL"),
        modes: Some(levels([
            "default",
            "default",
            // `acceptEdits` also allows commands.
            "default",
            "bypassPermissions",
        ])),
        tool_enforcement: ToolEnforcement::Hooks,
        restrictions: restrictions::CLAUDE,
        own_tools: &["mcp__oubliette__*"],
        home: HomeLayout {
            private: &[".claude", ".claude.json"],
            copied: &[
                ".claude/settings.json",
                ".claude/CLAUDE.md",
                ".claude/agents",
                ".claude/commands",
                ".claude/skills",
            ],
            ..HomeLayout::default()
        },
        session_meta: claude_session_meta(),
        writes_failure_reason: true,
        tool_refresh: ToolRefresh::Notified,
        ..Agent::from_command("claude", argv(&["claude-agent-acp"]))
    }
}

const CODEX_CONFIG: &str = r#"cli_auth_credentials_store = "ephemeral"
features.shell_snapshot = false
default_permissions = "oubliette"
approvals_reviewer = "user"
approval_policy.granular.sandbox_approval = true
approval_policy.granular.rules = true
approval_policy.granular.mcp_elicitations = true
approval_policy.granular.request_permissions = true
approval_policy.granular.skill_approval = true
permissions.oubliette.filesystem.":root" = "read"
"#;

fn codex() -> Agent {
    // A profile of ours: it asks before edits, and before it repeats a command without its own sandbox.
    let asking = "permission-profile:oubliette";
    let modes = levels([asking, asking, asking, "agent-full-access"]);
    Agent {
        about: "Codex".to_owned(),
        // Otherwise most of its models are told of no tool of an MCP server, nor of its instructions.
        json_env: BTreeMap::from([(
            "CODEX_CONFIG".to_owned(),
            json!({ "features": {
                "code_mode": { "direct_only_tool_namespaces": ["mcp__oubliette"] },
                // Files with the whole environment of the agent, its key included.
                "shell_snapshot": false,
            } }),
        )]),
        // Also holds for loaded and resumed sessions, which do not keep the mode set over ACP.
        env_by_autonomy: BTreeMap::from([("INITIAL_AGENT_MODE".to_owned(), modes.clone())]),
        package: Some(Package {
            npm: "@agentclientprotocol/codex-acp",
            version: "2.6.0",
            program: "codex-acp",
            binary: None,
        }),
        credentials: pairs(&[("openai", "OPENAI_API_KEY")]),
        sign_in: sign_in::CODEX,
        auth_method: Some("api-key".to_owned()),
        modes: Some(modes),
        tool_enforcement: ToolEnforcement::Unsupported(
            "its models call tools from programs that it runs without asking",
        ),
        restrictions: restrictions::CODEX,
        own_tools: &["mcp.oubliette.*"],
        reads_by_commands: true,
        home: HomeLayout {
            private: &[".codex"],
            copied: &[
                ".codex/config.toml",
                ".codex/AGENTS.md",
                ".codex/prompts",
                ".codex/skills",
            ],
            // Its key, in plain text.
            leftovers: &[
                (".codex/auth.json", "\"OPENAI_API_KEY\": \""),
                (".codex/shell_snapshots", ""),
            ],
            // Otherwise it writes the key that it signs in with to a file, or its whole environment.
            files: vec![HomeFile::new(
                ".codex/config.toml",
                FileFormat::Toml,
                CODEX_CONFIG,
            )],
        },
        writes_failure_reason: true,
        leaves_commands: true,
        tool_refresh: ToolRefresh::Restart,
        model_setting: ModelSetting::JsonVariable("CODEX_CONFIG"),
        ..Agent::from_command("codex", argv(&["codex-acp"]))
    }
}

fn gemini() -> Agent {
    let settings = r#"{"security":{"auth":{"selectedType":"gemini-api-key"}},"general":{"enableAutoUpdate":false},"privacy":{"usageStatisticsEnabled":false}}"#;
    Agent {
        about: "Gemini CLI".to_owned(),
        // Without it the agent starts no MCP servers and reports no error.
        env: pairs(&[("GEMINI_CLI_TRUST_WORKSPACE", "true")]),
        home: HomeLayout {
            private: &[".gemini"],
            copied: &[
                ".gemini/settings.json",
                ".gemini/GEMINI.md",
                ".gemini/commands",
                ".gemini/extensions",
            ],
            leftovers: &[],
            files: vec![HomeFile::new(
                ".gemini/settings.json",
                FileFormat::Json,
                settings,
            )],
        },
        package: Some(Package {
            npm: "@google/gemini-cli",
            version: "0.61.0",
            program: "gemini",
            binary: None,
        }),
        credentials: pairs(&[("gemini", "GEMINI_API_KEY"), ("google", "GEMINI_API_KEY")]),
        sign_in: sign_in::GEMINI,
        modes: Some(levels(["default", "default", "default", "yolo"])),
        tool_enforcement: ToolEnforcement::Policies {
            server_prefix: "mcp_",
        },
        restrictions: restrictions::GEMINI,
        own_tools: &["* (oubliette MCP Server)"],
        needs_tokens: true,
        plans_by_tool: true,
        tool_refresh: ToolRefresh::Notified,
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
    fn settings_in_json_are_merged_into_what_the_user_sets() {
        let agents = catalogue();
        let codex = agents.iter().find(|agent| agent.name == "codex").unwrap();
        let merged = |given: Option<&str>| {
            let given = given.map(|text| ("CODEX_CONFIG".to_owned(), text.to_owned()));
            let mut env = given.into_iter().collect();
            codex.merge_json_env(&mut env);
            env["CODEX_CONFIG"].clone()
        };
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let namespaces = "/features/code_mode/direct_only_tool_namespaces";
        let alone = json(&merged(None));
        assert_eq!(alone.pointer(namespaces), Some(&json!(["mcp__oubliette"])));
        let both = json(&merged(Some(
            r#"{"model":"m","features":{"shell_snapshot":true,"code_mode":{"direct_only_tool_namespaces":["mcp__own"]}}}"#,
        )));
        assert_eq!(both["model"], "m");
        assert_eq!(both["features"]["shell_snapshot"], true);
        assert_eq!(
            both.pointer(namespaces),
            Some(&json!(["mcp__oubliette", "mcp__own"]))
        );
        assert_eq!(merged(Some("not json")), "not json");

        let mut env = BTreeMap::from([("CODEX_CONFIG".to_owned(), r#"{"a":1}"#.to_owned())]);
        codex.set_model("gpt-9", &mut env);
        assert_eq!(env["CODEX_CONFIG"], r#"{"a":1,"model":"gpt-9"}"#);
        let claude = agents.iter().find(|agent| agent.name == "claude").unwrap();
        claude.set_model("claude-next", &mut env);
        assert_eq!(env["ANTHROPIC_MODEL"], "claude-next");
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
        let normal = (Some("normal".to_owned()), true);
        assert_eq!(agent("droid").mode(Level::Medium, &all), normal);
        assert_eq!(agent("opencode").mode(Level::High, &some), (None, false));
        let each = (Some("each".to_owned()), true);
        assert_eq!(agent("demo").mode(Level::High, &some), each);
        let limited = agent("opencode").environment(Level::Low, &some);
        let rules = &limited["OPENCODE_PERMISSION"];
        assert!(rules.starts_with(r#"{"*":"deny""#), "{rules}");
        assert!(rules.contains(r#""read":"ask""#), "{rules}");
        let asking = agent("opencode").environment(Level::Off, &all);
        assert_eq!(asking["OPENCODE_PERMISSION"], r#"{"*":"ask"}"#);
    }
}
