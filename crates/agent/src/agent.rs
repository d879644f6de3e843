//! What a row of the catalogue says about an agent. They all speak ACP; only data differs.

use std::collections::BTreeMap;

use oubliette_model::{Level, Usage};
use oubliette_wire::merge_json;
use serde_json::{Value, json};

use crate::handshake::McpServerConfig;
use crate::home::HomeLayout;
use crate::restrictions::{self, RestrictionSettings, Restrictions};
use crate::sign_in::{self, LoginFile, SignInMethods, set_json_field};
use crate::tool_filter::{ToolEnforcement, ToolFilter};

/// The npm package of an agent, which is installed if the container's image does not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package {
    pub npm: &'static str,
    pub version: &'static str,
    /// The name of the executable.
    pub program: &'static str,
    /// The one file of the package that is needed, with `{arch}` for npm's name of the architecture; none
    /// for a script that needs Node.js and its dependencies.
    pub binary: Option<&'static str>,
    /// The variable with the directory into which the program unpacks itself, if it does that when it is
    /// started first.
    pub unpack_variable: Option<&'static str>,
}

/// A file of its home from which an agent starts MCP servers.
#[derive(Debug, Clone, Copy)]
pub struct McpFile {
    pub path: &'static str,
    /// The JSON that is merged into the user's file.
    pub content: fn(&[McpServerConfig]) -> Value,
}

/// Texts that an agent writes itself, and sends as if they were parts of its model's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnTexts {
    /// What a notice begins with.
    pub notice: &'static str,
    /// What the reason begins with why a turn has failed, if nothing follows it.
    pub failure: &'static str,
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
    /// It lists them again when it is notified, and uses them some time later. Notified once more, it lists them
    /// only when it uses those that it listed before.
    Slow,
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
    /// Variables with the path of a file of its home.
    pub home_env: &'static [(&'static str, &'static str)],
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
    /// Where it finds its MCP servers, if it does not start those that it is given over ACP.
    pub mcp_file: Option<McpFile>,
    pub own_texts: Option<OwnTexts>,
    /// Whether the tokens in the response to a prompt are all that its process has used.
    pub reports_totals: bool,
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
            home_env: &[],
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
            mcp_file: None,
            own_texts: None,
            reports_totals: false,
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

    /// The kinds of credentials that it takes: keys in variables, and files.
    pub fn credential_kinds(&self) -> impl Iterator<Item = &str> {
        let files = self.sign_in.login_files.iter().map(|file| file.kind);
        self.credentials.keys().map(String::as_str).chain(files)
    }

    /// Whether it takes credentials of a kind.
    pub fn takes_credential(&self, kind: &str) -> bool {
        self.credential_kinds().any(|taken| taken == kind)
    }

    /// The file that a credential of a kind is, if it is one.
    pub fn login_file(&self, kind: &str) -> Option<&'static LoginFile> {
        let mut files = self.sign_in.login_files.iter();
        files.find(|file| file.kind == kind)
    }

    /// Tells the agent its model by its environment, if it can be told so. The error says why it cannot.
    pub fn set_model(&self, model: &str, env: &mut BTreeMap<String, String>) -> Result<(), String> {
        match self.model_setting {
            ModelSetting::Offered => {}
            ModelSetting::Variable(name) => {
                env.insert(name.to_owned(), model.to_owned());
            }
            ModelSetting::JsonVariable(name) => set_json_field(env, name, &["model"], model)?,
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
