//! Which agents Oubliette knows by itself. They all speak ACP; only data differs.

use std::collections::BTreeMap;

use oubliette_model::Level;

use crate::tools::{Keeper, Rules, Tools};

/// Where an agent comes from, if it is not in the container's image already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package {
    pub npm: &'static str,
    pub version: &'static str,
    /// The name of the program.
    pub program: &'static str,
    /// The file in the package that is the whole of it; none for a script that needs Node.js and
    /// everything else that is installed with it.
    pub binary: Option<&'static str>,
}

/// A file that an agent keeps about a session, as a pattern for the shell with `{home}` and
/// `{session}` in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnFile(pub &'static str);

impl OwnFile {
    /// The pattern for one session; none if the agent's name for it is no plain word.
    pub fn of(self, home: &str, session: &str) -> Option<String> {
        is_plain(session).then(|| self.0.replace("{home}", home).replace("{session}", session))
    }
}

/// Whether a shell takes a word as it is, and no pattern finds anything else in it.
pub(crate) fn is_plain(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !word.is_empty() && word.chars().all(plain)
}

/// One agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    pub name: String,
    pub about: String,
    /// The program and its arguments.
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// More of it, by autonomy.
    pub env_by_autonomy: BTreeMap<String, [String; 4]>,
    /// Files it needs in its home directory, if they are not there.
    pub files: BTreeMap<String, String>,
    pub package: Option<Package>,
    /// Which kinds of credentials it takes, and in which variable.
    pub credentials: BTreeMap<String, String>,
    /// How it is told to use the credential that it was given, where it does not by itself.
    pub sign_in: Option<String>,
    /// Its own modes for no, low, medium and high autonomy.
    pub modes: Option<[String; 4]>,
    /// Whether it can be told which model to use, and how hard to think.
    pub takes_model: bool,
    pub takes_reasoning: bool,
    /// What keeps it to the tools that a session names.
    pub keeper: Keeper,
    /// Where it keeps the tokens it used, if it does not report them.
    pub usage_file: Option<OwnFile>,
    /// Where it keeps what tools said, if it does not report all of it.
    pub output_file: Option<OwnFile>,
}

impl Agent {
    /// An agent of which only the command is known.
    pub fn command(name: &str, argv: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            about: "an ACP agent of the configuration".to_owned(),
            argv,
            env: BTreeMap::new(),
            env_by_autonomy: BTreeMap::new(),
            files: BTreeMap::new(),
            package: None,
            credentials: BTreeMap::new(),
            sign_in: None,
            modes: None,
            takes_model: true,
            takes_reasoning: true,
            keeper: Keeper::Nobody("nothing is known about how it could be told"),
            usage_file: None,
            output_file: None,
        }
    }

    /// Its mode at a level of autonomy, and whether it may not run in any other.
    pub fn mode(&self, autonomy: Level, tools: &Tools) -> (Option<String>, bool) {
        if let Keeper::Question { mode } = self.keeper
            && !tools.is_empty()
        {
            return (Some(mode.to_owned()), true);
        }
        let modes = self.modes.as_ref();
        (modes.map(|modes| modes[place(autonomy)].clone()), false)
    }

    /// Its environment at a level of autonomy, with these tools.
    pub fn environment(&self, autonomy: Level, tools: &Tools) -> BTreeMap<String, String> {
        let by_level = self.env_by_autonomy.iter();
        let by_level =
            by_level.map(|(name, values)| (name.clone(), values[place(autonomy)].clone()));
        let mut env: BTreeMap<String, String> =
            self.env.clone().into_iter().chain(by_level).collect();
        if let Keeper::Rules(rules) = self.keeper
            && !tools.is_empty()
        {
            let usual = env.get(rules.variable).map_or("{}", String::as_str);
            env.extend(rules.environment(tools, usual));
        }
        env
    }
}

fn place(level: Level) -> usize {
    match level {
        Level::Off => 0,
        Level::Low => 1,
        Level::Medium => 2,
        Level::High => 3,
    }
}

fn words(words: &[&str]) -> Vec<String> {
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

/// The agents, in the order of their names.
pub fn catalogue() -> Vec<Agent> {
    vec![claude(), codex(), demo(), droid(), gemini(), opencode()]
}

fn demo() -> Agent {
    Agent {
        about: "a scripted agent that needs no key and no network".to_owned(),
        modes: Some(levels(["ask", "ask", "auto", "auto"])),
        keeper: Keeper::Question { mode: "each" },
        takes_model: false,
        takes_reasoning: false,
        ..Agent::command(
            "demo",
            words(&["/usr/local/bin/oubliette-client", "demo-agent"]),
        )
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
        keeper: Keeper::Rules(Rules {
            variable: "OPENCODE_PERMISSION",
            together: &["edit", "write"],
            others: &["external_directory", "doom_loop"],
            // Settings of the workspace could give each of its own agents other rules.
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
        ..Agent::command("opencode", words(&["opencode", "acp"]))
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
        keeper: Keeper::Nobody(
            "it ignores `--only-tools` and `--remove-tools` where it speaks the Agent Client \
             Protocol, and does not ask before each tool",
        ),
        usage_file: Some(OwnFile(
            "{home}/.factory/sessions/*/{session}.settings.json",
        )),
        output_file: Some(OwnFile("{home}/.factory/sessions/*/{session}.jsonl")),
        ..Agent::command("droid", words(&["droid", "exec", "--output-format", "acp"]))
    }
}

fn claude() -> Agent {
    Agent {
        about: "Claude Code".to_owned(),
        env: pairs(&[
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("ENABLE_TOOL_SEARCH", "false"),
            // Its mode without questions is offered to root only where it says it is fenced in.
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
        ..Agent::command("claude", words(&["claude-agent-acp"]))
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
        // Holds for new, loaded and resumed sessions, where its own mode request is forgotten.
        env_by_autonomy: BTreeMap::from([("INITIAL_AGENT_MODE".to_owned(), modes.clone())]),
        package: Some(Package {
            npm: "@agentclientprotocol/codex-acp",
            version: "2.6.0",
            program: "codex-acp",
            binary: None,
        }),
        credentials: pairs(&[("openai", "OPENAI_API_KEY")]),
        sign_in: Some("api-key".to_owned()),
        modes: Some(modes),
        ..Agent::command("codex", words(&["codex-acp"]))
    }
}

fn gemini() -> Agent {
    let settings = r#"{"security":{"auth":{"selectedType":"gemini-api-key"}},"general":{"enableAutoUpdate":false},"privacy":{"usageStatisticsEnabled":false}}"#;
    Agent {
        about: "Gemini CLI".to_owned(),
        // Without it no MCP server is started, and nothing says so.
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
        ..Agent::command("gemini", words(&["gemini", "--acp"]))
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
    fn a_file_is_found_only_for_a_plain_name() {
        let file = OwnFile("{home}/x/*/{session}.json");
        assert_eq!(
            file.of("/root", "a-1_B").as_deref(),
            Some("/root/x/*/a-1_B.json")
        );
        for session in ["", "a b", "../a", "*", "$(x)"] {
            assert_eq!(file.of("/root", session), None, "{session}");
        }
    }

    #[test]
    fn autonomy_chooses_mode_and_environment() {
        let agents = catalogue();
        let of = |name: &str| agents.iter().find(|agent| agent.name == name).unwrap();
        let (all, some) = (
            Tools::default(),
            Tools {
                allowed: vec!["read".to_owned()],
                ..Tools::default()
            },
        );
        let high = ("auto-high".to_owned(), false);
        assert_eq!(of("droid").mode(Level::High, &all), (Some(high.0), high.1));
        assert_eq!(of("opencode").mode(Level::High, &some), (None, false));
        let each = (Some("each".to_owned()), true);
        assert_eq!(of("demo").mode(Level::High, &some), each);
        let kept = of("opencode").environment(Level::Low, &some);
        let rules = &kept["OPENCODE_PERMISSION"];
        assert!(rules.starts_with(r#"{"*":"deny""#), "{rules}");
        assert!(rules.contains(r#""read":"ask""#), "{rules}");
        let asking = of("opencode").environment(Level::Low, &all);
        assert_eq!(asking["OPENCODE_PERMISSION"], r#"{"*":"ask"}"#);
    }
}
