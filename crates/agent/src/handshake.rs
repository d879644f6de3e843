//! From a process that has just started to a session in it that takes prompts.
//!
//! Nothing here is durable: a server that dies in the middle of it ends the process and begins
//! again, because no prompt has gone out yet.

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, AuthenticateRequest, ClientCapabilities, EnvVariable, Implementation,
    InitializeRequest, LoadSessionRequest, McpServer, McpServerStdio, NewSessionRequest,
    ResumeSessionRequest, SessionConfigOptionValue, SetSessionConfigOptionRequest,
    SetSessionModeRequest,
};
use oubliette_model::{Level, nearest};
use serde_json::{Value, json};

use crate::line::{Line, RpcError};
use crate::request::{refuse, request_line};

/// An MCP server for the agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    pub name: String,
    pub command: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
}

/// What the session is to be like.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    pub cwd: String,
    pub servers: Vec<Server>,
    /// The agent's own name for the conversation to go on with.
    pub resume: Option<String>,
    /// The way to sign in, for an agent that must be told.
    pub sign_in: Option<String>,
    pub mode: Option<String>,
    /// Whether it may not go on in another mode.
    pub needs_mode: bool,
    pub model: Option<String>,
    pub reasoning: Option<Level>,
}

/// How a conversation went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resumed {
    /// There was nothing before.
    New,
    Resume,
    Load,
    /// The agent could not: it knows nothing of what was before.
    Afresh,
}

/// A session that takes prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    pub session: String,
    pub resumed: Resumed,
    /// The first id for requests that is free.
    pub next_id: u64,
    /// What did not work and does not matter enough to stop.
    pub notes: Vec<String>,
}

/// What to do after a line.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    Nothing,
    Send(Vec<u8>),
    Ready(Opened),
    /// A sentence for the user.
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Initialize,
    SignIn,
    Open(Resumed),
    Mode,
    Model,
    Reasoning,
}

/// The way to a session, step by step.
#[derive(Debug)]
pub struct Handshake {
    plan: Plan,
    stage: Stage,
    id: u64,
    capabilities: Value,
    opened: Value,
    session: String,
    resumed: Resumed,
    notes: Vec<String>,
}

impl Handshake {
    /// Begins; the first line.
    pub fn begin(plan: Plan) -> (Self, Vec<u8>) {
        let request = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(ClientCapabilities::new())
            .client_info(Implementation::new("oubliette", env!("CARGO_PKG_VERSION")));
        let handshake = Self {
            plan,
            stage: Stage::Initialize,
            id: 1,
            capabilities: Value::Null,
            opened: Value::Null,
            session: String::new(),
            resumed: Resumed::New,
            notes: Vec::new(),
        };
        (
            handshake,
            request_line(1, AGENT_METHOD_NAMES.initialize, &request),
        )
    }

    pub fn hear(&mut self, line: &Line) -> Heard {
        match line {
            Line::Reply { id, outcome } if *id == self.id => self.go_on(outcome),
            // What an agent may ask before there is a session, nobody here can answer.
            Line::Request { id, method, .. } => Heard::Send(refuse(id, method)),
            // A conversation that is loaded is told again; the log has it already.
            _ => Heard::Nothing,
        }
    }

    fn go_on(&mut self, outcome: &Result<Value, RpcError>) -> Heard {
        match (self.stage, outcome) {
            (Stage::Initialize, Ok(result)) => {
                let version = result["protocolVersion"].as_u64().unwrap_or(1);
                if version != 1 {
                    return Heard::Failed(format!(
                        "the agent speaks version {version} of the Agent Client Protocol; this \
                         server speaks version 1"
                    ));
                }
                self.capabilities = result["agentCapabilities"].clone();
                match self.plan.sign_in.clone() {
                    Some(method) => {
                        let request = AuthenticateRequest::new(method);
                        let name = AGENT_METHOD_NAMES.authenticate;
                        self.ask(Stage::SignIn, name, &request)
                    }
                    None => self.open_first(),
                }
            }
            (Stage::SignIn, Ok(_)) => self.open_first(),
            (Stage::SignIn, Err(error)) => {
                Heard::Failed(format!("the agent could not sign in: {error}"))
            }
            (Stage::Initialize, Err(error)) => {
                Heard::Failed(format!("the agent refused to start: {error}"))
            }
            (Stage::Open(how), Ok(result)) => {
                self.opened = result.clone();
                self.resumed = how;
                let named = result["sessionId"].as_str().map(str::to_owned);
                let known = self.plan.resume.clone();
                let own = matches!(how, Resumed::Resume | Resumed::Load);
                match if own { known.or(named) } else { named } {
                    Some(session) => self.session = session,
                    None => {
                        return Heard::Failed(
                            "the agent opened a session without an id".to_owned(),
                        );
                    }
                }
                self.set_mode()
            }
            (Stage::Open(Resumed::Resume), Err(error)) => {
                self.notes
                    .push(format!("the agent could not resume: {error}"));
                match self.can_load() {
                    true => self.open(Resumed::Load),
                    false => self.open(Resumed::Afresh),
                }
            }
            (Stage::Open(Resumed::Load), Err(error)) => {
                self.notes
                    .push(format!("the agent could not load: {error}"));
                self.open(Resumed::Afresh)
            }
            (Stage::Open(_), Err(error)) => {
                Heard::Failed(format!("the agent could not open a session: {error}"))
            }
            (Stage::Mode, Err(error)) if self.plan.needs_mode => Heard::Failed(format!(
                "the agent has no mode `{}`, and nothing else keeps it to the tools of the session: \
                 {error}",
                self.plan.mode.as_deref().unwrap_or_default()
            )),
            (Stage::Mode, outcome) => {
                if let Err(error) = outcome {
                    let mode = self.plan.mode.clone().unwrap_or_default();
                    self.notes
                        .push(format!("the agent has no mode `{mode}`: {error}"));
                }
                self.set_model()
            }
            (Stage::Model, Err(error)) => Heard::Failed(format!(
                "the agent cannot use the model `{}`: {error}",
                self.plan.model.as_deref().unwrap_or_default()
            )),
            (Stage::Model, Ok(_)) => self.set_reasoning(),
            (Stage::Reasoning, Err(error)) => {
                self.notes
                    .push(format!("the agent did not take `reasoning`: {error}"));
                self.ready()
            }
            (Stage::Reasoning, Ok(_)) => self.ready(),
        }
    }

    fn can(&self, what: &str) -> bool {
        let can = &self.capabilities["sessionCapabilities"][what];
        !can.is_null() && *can != Value::Bool(false)
    }

    fn can_load(&self) -> bool {
        self.capabilities["loadSession"] == Value::Bool(true)
    }

    fn ask(&mut self, stage: Stage, method: &str, params: &impl serde::Serialize) -> Heard {
        self.stage = stage;
        self.id += 1;
        Heard::Send(request_line(self.id, method, params))
    }

    fn open_first(&mut self) -> Heard {
        self.open(match self.plan.resume.is_some() {
            true if self.can("resume") => Resumed::Resume,
            true if self.can_load() => Resumed::Load,
            true => Resumed::Afresh,
            false => Resumed::New,
        })
    }

    fn open(&mut self, how: Resumed) -> Heard {
        let names = AGENT_METHOD_NAMES;
        let cwd = self.plan.cwd.clone();
        let servers: Vec<McpServer> = self.plan.servers.iter().map(server).collect();
        let known = self.plan.resume.clone().unwrap_or_default();
        let stage = Stage::Open(how);
        match how {
            Resumed::Resume => {
                let request = ResumeSessionRequest::new(known, cwd).mcp_servers(servers);
                self.ask(stage, names.session_resume, &request)
            }
            Resumed::Load => {
                let request = LoadSessionRequest::new(known, cwd).mcp_servers(servers);
                self.ask(stage, names.session_load, &request)
            }
            Resumed::New | Resumed::Afresh => {
                let request = NewSessionRequest::new(cwd).mcp_servers(servers);
                self.ask(stage, names.session_new, &request)
            }
        }
    }

    /// Also after a load: not every agent remembers its mode.
    fn set_mode(&mut self) -> Heard {
        let Some(mode) = self.plan.mode.clone() else {
            return self.set_model();
        };
        let request = SetSessionModeRequest::new(self.session.clone(), mode);
        self.ask(Stage::Mode, AGENT_METHOD_NAMES.session_set_mode, &request)
    }

    fn set_model(&mut self) -> Heard {
        let Some(model) = self.plan.model.clone() else {
            return self.set_reasoning();
        };
        let Some((option, values)) = self.option("model", &["model"]) else {
            // Not in the protocol, and what agents without options take.
            let params = json!({ "sessionId": self.session, "modelId": model });
            return self.ask(Stage::Model, "session/set_model", &params);
        };
        if !values.is_empty() && !values.contains(&model) {
            let near = nearest(&model, values.iter().map(String::as_str));
            let hint = near.map_or_else(
                || {
                    let shown: Vec<&str> = values.iter().take(20).map(String::as_str).collect();
                    format!("it has {}", shown.join(", "))
                },
                |near| format!("did you mean `{near}`?"),
            );
            return Heard::Failed(format!("the agent has no model `{model}`; {hint}"));
        }
        self.choose(Stage::Model, option, model)
    }

    fn set_reasoning(&mut self) -> Heard {
        let Some(level) = self.plan.reasoning else {
            return self.ready();
        };
        let ids = ["reasoning", "reasoning_effort", "thought_level", "effort"];
        let Some((option, values)) = self.option("thought_level", &ids) else {
            self.notes
                .push("the agent has no setting for `reasoning`".to_owned());
            return self.ready();
        };
        let names: &[&str] = match level {
            Level::Off => &["off", "none", "minimal", "low"],
            Level::Low => &["low", "minimal"],
            Level::Medium => &["medium"],
            Level::High => &["high", "xhigh", "max"],
        };
        let value = names.iter().find(|name| values.iter().any(|v| v == *name));
        match value {
            Some(value) => self.choose(Stage::Reasoning, option, (*value).to_owned()),
            None => {
                let shown = values.join(", ");
                self.notes
                    .push(format!("the agent offers for `reasoning` only: {shown}"));
                self.ready()
            }
        }
    }

    fn choose(&mut self, stage: Stage, option: String, value: String) -> Heard {
        let value = SessionConfigOptionValue::value_id(value);
        let request = SetSessionConfigOptionRequest::new(self.session.clone(), option, value);
        self.ask(
            stage,
            AGENT_METHOD_NAMES.session_set_config_option,
            &request,
        )
    }

    /// An option of the session by category or id, and the values it can have.
    fn option(&self, category: &str, ids: &[&str]) -> Option<(String, Vec<String>)> {
        let options = self.opened["configOptions"].as_array()?;
        let is = |option: &&Value| {
            let id = option["id"].as_str().unwrap_or_default();
            option["category"] == category || ids.contains(&id)
        };
        let option = options.iter().find(is)?;
        let mut values = Vec::new();
        collect_values(&option["options"], &mut values);
        Some((option["id"].as_str()?.to_owned(), values))
    }

    fn ready(&mut self) -> Heard {
        Heard::Ready(Opened {
            session: self.session.clone(),
            resumed: self.resumed,
            next_id: self.id + 1,
            notes: std::mem::take(&mut self.notes),
        })
    }
}

/// Values may stand in groups.
fn collect_values(options: &Value, into: &mut Vec<String>) {
    for option in options.as_array().into_iter().flatten() {
        match option["value"].as_str() {
            Some(value) => into.push(value.to_owned()),
            None => collect_values(&option["options"], into),
        }
    }
}

fn server(server: &Server) -> McpServer {
    let env = server.env.iter();
    let env = env.map(|(name, value)| EnvVariable::new(name.clone(), value.clone()));
    McpServer::Stdio(
        McpServerStdio::new(server.name.clone(), server.command.clone())
            .args(server.args.clone())
            .env(env.collect()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(id: u64, result: Value) -> Line {
        Line::Reply {
            id,
            outcome: Ok(result),
        }
    }

    fn refusal(id: u64, message: &str) -> Line {
        let error = RpcError {
            code: -32603,
            message: message.to_owned(),
            data: None,
        };
        Line::Reply {
            id,
            outcome: Err(error),
        }
    }

    fn sent(heard: Heard) -> Value {
        match heard {
            Heard::Send(line) => serde_json::from_slice(&line).unwrap(),
            other => panic!("nothing was sent: {other:?}"),
        }
    }

    fn plan() -> Plan {
        Plan {
            cwd: "/workspace".to_owned(),
            servers: vec![Server {
                name: "oubliette".to_owned(),
                command: "/c".to_owned(),
                args: vec!["mcp".to_owned()],
                env: vec![("A".to_owned(), "b".to_owned())],
            }],
            ..Plan::default()
        }
    }

    #[test]
    fn a_new_session_is_opened_with_its_servers_and_its_mode() {
        let (mut handshake, first) = Handshake::begin(Plan {
            needs_mode: false,
            mode: Some("auto".to_owned()),
            ..plan()
        });
        let first: Value = serde_json::from_slice(&first).unwrap();
        assert_eq!(
            (&first["method"], &first["id"]),
            (&json!("initialize"), &json!(1))
        );
        let new = sent(handshake.hear(&reply(1, json!({ "protocolVersion": 1 }))));
        assert_eq!(new["method"], "session/new");
        assert_eq!(new["params"]["cwd"], "/workspace");
        assert_eq!(new["params"]["mcpServers"][0]["env"][0]["value"], "b");
        assert_eq!(handshake.hear(&Line::Noise("x".to_owned())), Heard::Nothing);
        let mode = sent(handshake.hear(&reply(2, json!({ "sessionId": "s1" }))));
        assert_eq!(mode["params"]["modeId"], "auto");
        // An agent without that mode still works; policy answers what it asks.
        let Heard::Ready(opened) = handshake.hear(&refusal(3, "no such mode")) else {
            panic!()
        };
        assert_eq!((opened.session.as_str(), opened.next_id), ("s1", 4));
        assert_eq!((opened.resumed, opened.notes.len()), (Resumed::New, 1));
    }

    #[test]
    fn an_old_session_is_resumed_else_loaded_else_begun_afresh() {
        let plan = Plan {
            resume: Some("old".to_owned()),
            ..plan()
        };
        let (mut handshake, _) = Handshake::begin(plan);
        let capabilities = json!({ "protocolVersion": 1, "agentCapabilities": {
            "loadSession": true, "sessionCapabilities": { "resume": {} } } });
        assert_eq!(
            sent(handshake.hear(&reply(1, capabilities)))["method"],
            "session/resume"
        );
        let load = sent(handshake.hear(&refusal(2, "gone")));
        assert_eq!(
            (&load["method"], &load["params"]["sessionId"]),
            (&json!("session/load"), &json!("old"))
        );
        assert_eq!(
            sent(handshake.hear(&refusal(3, "gone")))["method"],
            "session/new"
        );
        let Heard::Ready(opened) = handshake.hear(&reply(4, json!({ "sessionId": "new" }))) else {
            panic!()
        };
        assert_eq!(
            (opened.session.as_str(), opened.resumed),
            ("new", Resumed::Afresh)
        );
    }

    #[test]
    fn an_agent_that_must_be_told_signs_in_first() {
        let plan = Plan {
            sign_in: Some("api-key".to_owned()),
            ..plan()
        };
        let (mut handshake, _) = Handshake::begin(plan.clone());
        let sign_in = sent(handshake.hear(&reply(1, json!({ "protocolVersion": 1 }))));
        assert_eq!(sign_in["method"], "authenticate");
        assert_eq!(sign_in["params"]["methodId"], "api-key");
        assert_eq!(
            sent(handshake.hear(&reply(2, json!({}))))["method"],
            "session/new"
        );
        let (mut handshake, _) = Handshake::begin(plan);
        handshake.hear(&reply(1, json!({ "protocolVersion": 1 })));
        let Heard::Failed(why) = handshake.hear(&refusal(2, "bad key")) else {
            panic!()
        };
        assert!(why.contains("bad key"), "{why}");
    }

    #[test]
    fn a_model_that_is_not_there_is_named_with_its_neighbour() {
        let plan = Plan {
            model: Some("mock/modle".to_owned()),
            ..plan()
        };
        let (mut handshake, _) = Handshake::begin(plan);
        handshake.hear(&reply(1, json!({ "protocolVersion": 1 })));
        let opened = json!({ "sessionId": "s", "configOptions": [
            { "id": "model", "category": "model", "options": [ { "value": "mock/model" } ] } ] });
        let Heard::Failed(why) = handshake.hear(&reply(2, opened)) else {
            panic!()
        };
        assert!(why.contains("did you mean `mock/model`?"), "{why}");
    }

    #[test]
    fn options_take_model_and_reasoning() {
        let plan = Plan {
            model: Some("m".to_owned()),
            reasoning: Some(Level::High),
            ..plan()
        };
        let (mut handshake, _) = Handshake::begin(plan);
        handshake.hear(&reply(1, json!({ "protocolVersion": 1 })));
        let opened = json!({ "sessionId": "s", "configOptions": [
            { "id": "model", "options": [ { "name": "group", "options": [ { "value": "m" } ] } ] },
            { "id": "effort", "category": "thought_level", "options": [ { "value": "high" } ] } ] });
        let model = sent(handshake.hear(&reply(2, opened)));
        assert_eq!(
            (&model["params"]["configId"], &model["params"]["value"]),
            (&json!("model"), &json!("m"))
        );
        let effort = sent(handshake.hear(&reply(3, json!({}))));
        assert_eq!(effort["params"]["configId"], "effort");
        assert!(matches!(
            handshake.hear(&reply(4, json!({}))),
            Heard::Ready(_)
        ));
    }

    #[test]
    fn a_refusal_becomes_a_sentence() {
        let (mut handshake, _) = Handshake::begin(plan());
        handshake.hear(&reply(1, json!({ "protocolVersion": 1 })));
        let Heard::Failed(why) = handshake.hear(&refusal(2, "Authentication required")) else {
            panic!()
        };
        assert!(why.contains("Authentication required"), "{why}");
        let (mut handshake, _) = Handshake::begin(plan());
        let heard = handshake.hear(&reply(1, json!({ "protocolVersion": 7 })));
        assert!(matches!(heard, Heard::Failed(_)));
    }
}
