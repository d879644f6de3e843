//! The handshake: from a process that has just started to a session that accepts prompts.
//!
//! Nothing here is durable. If the server dies during a handshake, the next one ends the process and
//! starts another, because no prompt was sent yet.

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, AuthenticateRequest, ClientCapabilities, ClientSessionCapabilities,
    EnvVariable, Implementation, InitializeRequest, LoadSessionRequest, McpServer, McpServerStdio,
    NewSessionRequest, NoticeCapabilities, ResumeSessionRequest, SessionConfigOptionValue,
    SetSessionConfigOptionRequest, SetSessionModeRequest,
};
use oubliette_model::{Level, nearest};
use oubliette_wire::{Message, RpcError};
use serde_json::{Value, json};

use crate::message::AgentMessage;
use crate::opened_session::{find_config_option, model_in_use, offered_models, value_by_name};
use crate::request::method_not_found;
use crate::update::AgentUpdate;

/// An MCP server that the agent starts.
#[derive(Debug, Clone, PartialEq)]
pub struct McpServerConfig {
    pub name: String,
    pub command: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
}

/// What the session is opened with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionOptions {
    pub cwd: String,
    pub servers: Vec<McpServerConfig>,
    /// The agent's own id of the session to resume.
    pub resume: Option<String>,
    /// The authentication method, for an agent that does not choose one itself.
    pub auth_method: Option<String>,
    pub mode: Option<String>,
    /// Whether the handshake fails if the agent does not have that mode.
    pub requires_mode: bool,
    pub model: Option<String>,
    /// Whether the agent was started with the model, so that it need not offer it.
    pub is_model_set: bool,
    pub reasoning: Option<Level>,
    /// `_meta` of the request that opens the session, if it is an object.
    pub meta: Value,
}

/// How a session was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeMethod {
    /// It is a new conversation.
    New,
    Resume,
    Load,
    /// The agent could not restore its session: it needs a transcript of the conversation.
    FromTranscript,
}

/// A session that accepts prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenedSession {
    pub session: String,
    pub resume_method: ResumeMethod,
    /// The first request id that is not used yet.
    pub next_id: u64,
    /// The model that the agent uses, as far as it says.
    pub model: Option<String>,
    /// The models that the agent offers.
    pub models: Vec<String>,
    /// What failed and does not keep the session from working.
    pub warnings: Vec<String>,
    /// Whether the agent takes images in prompts.
    pub takes_images: bool,
    /// The agent's mode and slash commands, if it has reported them.
    pub updates: Vec<AgentUpdate>,
}

/// What to do after a message of the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum HandshakeStep {
    /// Wait for the next message.
    Wait,
    Send(Vec<u8>),
    Ready(OpenedSession),
    /// A sentence for the user.
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Initialize,
    Authenticate,
    Open(ResumeMethod),
    Mode,
    Model,
    Reasoning,
}

/// A handshake with one agent.
#[derive(Debug)]
pub struct Handshake {
    options: SessionOptions,
    stage: Stage,
    /// The id of the request that is pending.
    request_id: u64,
    capabilities: Value,
    /// The result of the request that opened the session.
    opened: Value,
    session: String,
    resume_method: ResumeMethod,
    warnings: Vec<String>,
    mode: Option<AgentUpdate>,
    commands: Option<AgentUpdate>,
}

impl Handshake {
    /// Starts a handshake and returns the first line for the agent.
    pub fn start(options: SessionOptions) -> (Self, Vec<u8>) {
        let request = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(client_capabilities())
            .client_info(Implementation::new("oubliette", env!("CARGO_PKG_VERSION")));
        let handshake = Self {
            options,
            stage: Stage::Initialize,
            request_id: 1,
            capabilities: Value::Null,
            opened: Value::Null,
            session: String::new(),
            resume_method: ResumeMethod::New,
            warnings: Vec::new(),
            mode: None,
            commands: None,
        };
        let line = Message::request(1, AGENT_METHOD_NAMES.initialize, &request).to_line();
        (handshake, line)
    }

    pub fn handle_message(&mut self, message: &AgentMessage) -> HandshakeStep {
        match message {
            AgentMessage::Response { id, outcome } if *id == self.request_id => {
                self.handle_response(outcome)
            }
            AgentMessage::Request { id, method, .. } => {
                HandshakeStep::Send(method_not_found(id, method))
            }
            AgentMessage::Notification { method, params } => {
                match AgentUpdate::from_notification(method, params) {
                    Some(update @ AgentUpdate::Mode(_)) => self.mode = Some(update),
                    Some(update @ AgentUpdate::Commands(_)) => self.commands = Some(update),
                    // For example those of a session that is loaded: the log has them already.
                    _ => {}
                }
                HandshakeStep::Wait
            }
            _ => HandshakeStep::Wait,
        }
    }

    fn handle_response(&mut self, outcome: &Result<Value, RpcError>) -> HandshakeStep {
        match (self.stage, outcome) {
            (Stage::Initialize, Ok(result)) => {
                let version = result["protocolVersion"].as_u64().unwrap_or(1);
                if version != 1 {
                    return HandshakeStep::Failed(format!(
                        "the agent speaks version {version} of the Agent Client Protocol; this \
                         server speaks version 1"
                    ));
                }
                self.capabilities = result["agentCapabilities"].clone();
                match self.options.auth_method.clone() {
                    Some(method) => {
                        let request = AuthenticateRequest::new(method);
                        let name = AGENT_METHOD_NAMES.authenticate;
                        self.send_request(Stage::Authenticate, name, &request)
                    }
                    None => self.open_session(),
                }
            }
            (Stage::Authenticate, Ok(_)) => self.open_session(),
            (Stage::Authenticate, Err(error)) => {
                HandshakeStep::Failed(format!("the agent could not sign in: {error}"))
            }
            (Stage::Initialize, Err(error)) => {
                HandshakeStep::Failed(format!("the agent refused to start: {error}"))
            }
            (Stage::Open(how), Ok(result)) => {
                self.opened = result.clone();
                self.resume_method = how;
                let new_id = result["sessionId"].as_str().map(str::to_owned);
                let resumed = matches!(how, ResumeMethod::Resume | ResumeMethod::Load);
                let old_id = self.options.resume.clone().filter(|_| resumed);
                match old_id.or(new_id) {
                    Some(session) => self.session = session,
                    None => {
                        return HandshakeStep::Failed(
                            "the agent opened a session without an id".to_owned(),
                        );
                    }
                }
                self.set_mode()
            }
            (Stage::Open(ResumeMethod::Resume), Err(error)) => {
                self.warnings
                    .push(format!("the agent could not resume: {error}"));
                self.open(if self.can_load() {
                    ResumeMethod::Load
                } else {
                    ResumeMethod::FromTranscript
                })
            }
            (Stage::Open(ResumeMethod::Load), Err(error)) => {
                self.warnings
                    .push(format!("the agent could not load: {error}"));
                self.open(ResumeMethod::FromTranscript)
            }
            (Stage::Open(_), Err(error)) => {
                HandshakeStep::Failed(format!("the agent could not open a session: {error}"))
            }
            (Stage::Mode, Err(error)) if self.options.requires_mode => {
                HandshakeStep::Failed(format!(
                    "the agent has no mode `{}`, and no other way to keep to the permissions of the \
                     session: {error}",
                    self.options.mode.as_deref().unwrap_or_default()
                ))
            }
            (Stage::Mode, outcome) => {
                if let Err(error) = outcome {
                    let mode = self.options.mode.clone().unwrap_or_default();
                    self.warnings
                        .push(format!("the agent has no mode `{mode}`: {error}"));
                }
                self.set_model()
            }
            (Stage::Model, Err(error)) => HandshakeStep::Failed(format!(
                "the agent cannot use the model `{}`: {error}",
                self.options.model.as_deref().unwrap_or_default()
            )),
            (Stage::Model, Ok(result)) => {
                // Which levels of reasoning there are depends on the model.
                self.update_options(&result["configOptions"]);
                self.set_reasoning()
            }
            (Stage::Reasoning, Err(error)) => {
                self.warnings
                    .push(format!("the agent rejected `reasoning`: {error}"));
                self.ready()
            }
            (Stage::Reasoning, Ok(_)) => self.ready(),
        }
    }

    fn can_resume(&self) -> bool {
        let resume = &self.capabilities["sessionCapabilities"]["resume"];
        !resume.is_null() && *resume != Value::Bool(false)
    }

    fn can_load(&self) -> bool {
        self.capabilities["loadSession"] == Value::Bool(true)
    }

    fn send_request(
        &mut self,
        stage: Stage,
        method: &str,
        params: &impl serde::Serialize,
    ) -> HandshakeStep {
        self.stage = stage;
        self.request_id += 1;
        HandshakeStep::Send(Message::request(self.request_id, method, params).to_line())
    }

    fn open_session(&mut self) -> HandshakeStep {
        self.open(match self.options.resume {
            None => ResumeMethod::New,
            Some(_) if self.can_resume() => ResumeMethod::Resume,
            Some(_) if self.can_load() => ResumeMethod::Load,
            Some(_) => ResumeMethod::FromTranscript,
        })
    }

    fn open(&mut self, how: ResumeMethod) -> HandshakeStep {
        let names = AGENT_METHOD_NAMES;
        let cwd = self.options.cwd.clone();
        let servers: Vec<McpServer> = self.options.servers.iter().map(mcp_server).collect();
        let old_id = self.options.resume.clone().unwrap_or_default();
        let meta = self.options.meta.as_object().cloned();
        let stage = Stage::Open(how);
        match how {
            ResumeMethod::Resume => {
                let request = ResumeSessionRequest::new(old_id, cwd)
                    .mcp_servers(servers)
                    .meta(meta);
                self.send_request(stage, names.session_resume, &request)
            }
            ResumeMethod::Load => {
                let request = LoadSessionRequest::new(old_id, cwd)
                    .mcp_servers(servers)
                    .meta(meta);
                self.send_request(stage, names.session_load, &request)
            }
            ResumeMethod::New | ResumeMethod::FromTranscript => {
                let request = NewSessionRequest::new(cwd).mcp_servers(servers).meta(meta);
                self.send_request(stage, names.session_new, &request)
            }
        }
    }

    /// Also after a load: some agents do not restore their mode.
    fn set_mode(&mut self) -> HandshakeStep {
        let Some(mode) = self.options.mode.clone() else {
            return self.set_model();
        };
        let request = SetSessionModeRequest::new(self.session.clone(), mode);
        self.send_request(Stage::Mode, AGENT_METHOD_NAMES.session_set_mode, &request)
    }

    fn set_model(&mut self) -> HandshakeStep {
        let Some(model) = self.options.model.clone() else {
            return self.set_reasoning();
        };
        let Some((option, values)) = find_config_option(&self.opened, "model", &["model"]) else {
            if self.options.is_model_set {
                return self.set_reasoning();
            }
            // Not in the protocol; agents without configuration options support it.
            let params = json!({ "sessionId": self.session, "modelId": model });
            return self.send_request(Stage::Model, "session/set_model", &params);
        };
        if !values.is_empty() && !values.contains(&model) {
            if let Some(value) = value_by_name(&self.opened, &option, &model) {
                return self.set_config_option(Stage::Model, option, value);
            }
            if self.options.is_model_set {
                self.warnings.push(format!(
                    "the agent does not offer the model `{model}`; it was started with it all the same"
                ));
                return self.set_reasoning();
            }
            let nearest = nearest(&model, values.iter().map(String::as_str));
            let hint = nearest.map_or_else(
                || {
                    let shown: Vec<&str> = values.iter().take(20).map(String::as_str).collect();
                    format!("it has {}", shown.join(", "))
                },
                |nearest| format!("did you mean `{nearest}`?"),
            );
            return HandshakeStep::Failed(format!("the agent has no model `{model}`; {hint}"));
        }
        self.set_config_option(Stage::Model, option, model)
    }

    /// Takes over the options that an agent reports again, and keeps the others.
    fn update_options(&mut self, reported: &Value) {
        let Some(known) = self.opened["configOptions"].as_array_mut() else {
            return;
        };
        for option in reported.as_array().into_iter().flatten() {
            match known.iter_mut().find(|one| one["id"] == option["id"]) {
                Some(same) => *same = option.clone(),
                None => known.push(option.clone()),
            }
        }
    }

    fn set_reasoning(&mut self) -> HandshakeStep {
        let Some(level) = self.options.reasoning else {
            return self.ready();
        };
        let ids = ["reasoning", "reasoning_effort", "thought_level", "effort"];
        let Some((option, values)) = find_config_option(&self.opened, "thought_level", &ids) else {
            self.warnings
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
            Some(value) => self.set_config_option(Stage::Reasoning, option, (*value).to_owned()),
            None => {
                let shown = values.join(", ");
                self.warnings
                    .push(format!("the agent supports for `reasoning` only: {shown}"));
                self.ready()
            }
        }
    }

    fn set_config_option(&mut self, stage: Stage, option: String, value: String) -> HandshakeStep {
        let value = SessionConfigOptionValue::value_id(value);
        let request = SetSessionConfigOptionRequest::new(self.session.clone(), option, value);
        self.send_request(
            stage,
            AGENT_METHOD_NAMES.session_set_config_option,
            &request,
        )
    }

    fn ready(&mut self) -> HandshakeStep {
        HandshakeStep::Ready(OpenedSession {
            session: self.session.clone(),
            resume_method: self.resume_method,
            next_id: self.request_id + 1,
            model: model_in_use(&self.opened, self.options.model.as_deref()),
            models: offered_models(&self.opened),
            warnings: std::mem::take(&mut self.warnings),
            takes_images: self.capabilities["promptCapabilities"]["image"] == Value::Bool(true),
            updates: self
                .mode
                .take()
                .into_iter()
                .chain(self.commands.take())
                .collect(),
        })
    }
}

/// Without notices, agents write warnings into their answers.
fn client_capabilities() -> ClientCapabilities {
    let session = ClientSessionCapabilities::new().notices(NoticeCapabilities::new());
    ClientCapabilities::new().session(session)
}

fn mcp_server(server: &McpServerConfig) -> McpServer {
    let env = server
        .env
        .iter()
        .map(|(name, value)| EnvVariable::new(name.clone(), value.clone()));
    McpServer::Stdio(
        McpServerStdio::new(server.name.clone(), server.command.clone())
            .args(server.args.clone())
            .env(env.collect()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn success(id: u64, result: Value) -> AgentMessage {
        AgentMessage::Response {
            id,
            outcome: Ok(result),
        }
    }

    fn failure(id: u64, message: &str) -> AgentMessage {
        AgentMessage::Response {
            id,
            outcome: Err(RpcError::new(-32603, message)),
        }
    }

    fn sent(step: HandshakeStep) -> Value {
        match step {
            HandshakeStep::Send(line) => serde_json::from_slice(&line).unwrap(),
            other => panic!("nothing was sent: {other:?}"),
        }
    }

    fn options() -> SessionOptions {
        SessionOptions {
            cwd: "/workspace".to_owned(),
            servers: vec![McpServerConfig {
                name: "oubliette".to_owned(),
                command: "/c".to_owned(),
                args: vec!["mcp".to_owned()],
                env: vec![("A".to_owned(), "b".to_owned())],
            }],
            ..SessionOptions::default()
        }
    }

    #[test]
    fn a_new_session_is_opened_with_its_servers_and_its_mode() {
        let (mut handshake, first) = Handshake::start(SessionOptions {
            mode: Some("auto".to_owned()),
            ..options()
        });
        let first: Value = serde_json::from_slice(&first).unwrap();
        assert_eq!(
            (&first["method"], &first["id"]),
            (&json!("initialize"), &json!(1))
        );
        let new = sent(handshake.handle_message(&success(1, json!({ "protocolVersion": 1 }))));
        assert_eq!(new["method"], "session/new");
        assert_eq!(new["params"]["cwd"], "/workspace");
        assert_eq!(new["params"]["mcpServers"][0]["env"][0]["value"], "b");
        assert_eq!(
            handshake.handle_message(&AgentMessage::Invalid("x".to_owned())),
            HandshakeStep::Wait
        );
        let mode = sent(handshake.handle_message(&success(2, json!({ "sessionId": "s1" }))));
        assert_eq!(mode["params"]["modeId"], "auto");
        // An agent without that mode still works: the server decides its permission requests.
        let HandshakeStep::Ready(opened) = handshake.handle_message(&failure(3, "no such mode"))
        else {
            panic!()
        };
        assert_eq!((opened.session.as_str(), opened.next_id), ("s1", 4));
        assert_eq!(
            (opened.resume_method, opened.warnings.len()),
            (ResumeMethod::New, 1)
        );
    }

    #[test]
    fn notices_meta_images_mode_and_commands_are_part_of_the_handshake() {
        let (mut handshake, first) = Handshake::start(SessionOptions {
            meta: json!({ "x": 1 }),
            ..options()
        });
        let first: Value = serde_json::from_slice(&first).unwrap();
        let notices = &first["params"]["clientCapabilities"]["session"]["notices"];
        assert!(notices.is_object(), "{first}");
        let capabilities = json!({ "protocolVersion": 1,
            "agentCapabilities": { "promptCapabilities": { "image": true } } });
        let new = sent(handshake.handle_message(&success(1, capabilities)));
        assert_eq!(new["params"]["_meta"]["x"], 1);
        let commands = AgentMessage::Notification {
            method: "session/update".to_owned(),
            params: json!({ "update": { "sessionUpdate": "available_commands_update",
                "availableCommands": [{ "name": "compact" }] } }),
        };
        handshake.handle_message(&commands);
        let HandshakeStep::Ready(opened) =
            handshake.handle_message(&success(2, json!({ "sessionId": "s" })))
        else {
            panic!()
        };
        assert!(opened.takes_images);
        let commands = AgentUpdate::Commands(json!([{ "name": "compact" }]));
        assert_eq!(opened.updates, [commands]);
    }

    #[test]
    fn an_old_session_is_resumed_else_loaded_else_restored_from_a_transcript() {
        let options = SessionOptions {
            resume: Some("old".to_owned()),
            ..options()
        };
        let (mut handshake, _) = Handshake::start(options);
        let capabilities = json!({ "protocolVersion": 1, "agentCapabilities": {
            "loadSession": true, "sessionCapabilities": { "resume": {} } } });
        assert_eq!(
            sent(handshake.handle_message(&success(1, capabilities)))["method"],
            "session/resume"
        );
        let load = sent(handshake.handle_message(&failure(2, "gone")));
        assert_eq!(
            (&load["method"], &load["params"]["sessionId"]),
            (&json!("session/load"), &json!("old"))
        );
        assert_eq!(
            sent(handshake.handle_message(&failure(3, "gone")))["method"],
            "session/new"
        );
        let HandshakeStep::Ready(opened) =
            handshake.handle_message(&success(4, json!({ "sessionId": "new" })))
        else {
            panic!()
        };
        assert_eq!(
            (opened.session.as_str(), opened.resume_method),
            ("new", ResumeMethod::FromTranscript)
        );
    }

    #[test]
    fn an_agent_with_an_authentication_method_authenticates_first() {
        let options = SessionOptions {
            auth_method: Some("api-key".to_owned()),
            ..options()
        };
        let (mut handshake, _) = Handshake::start(options.clone());
        let authenticate =
            sent(handshake.handle_message(&success(1, json!({ "protocolVersion": 1 }))));
        assert_eq!(authenticate["method"], "authenticate");
        assert_eq!(authenticate["params"]["methodId"], "api-key");
        assert_eq!(
            sent(handshake.handle_message(&success(2, json!({}))))["method"],
            "session/new"
        );
        let (mut handshake, _) = Handshake::start(options);
        handshake.handle_message(&success(1, json!({ "protocolVersion": 1 })));
        let HandshakeStep::Failed(why) = handshake.handle_message(&failure(2, "bad key")) else {
            panic!()
        };
        assert!(why.contains("bad key"), "{why}");
    }

    #[test]
    fn an_unknown_model_is_reported_with_the_nearest_name() {
        let options = SessionOptions {
            model: Some("mock/modle".to_owned()),
            ..options()
        };
        let (mut handshake, _) = Handshake::start(options);
        handshake.handle_message(&success(1, json!({ "protocolVersion": 1 })));
        let opened = json!({ "sessionId": "s", "configOptions": [
            { "id": "model", "category": "model", "options": [ { "value": "mock/model" } ] } ] });
        let HandshakeStep::Failed(why) = handshake.handle_message(&success(2, opened)) else {
            panic!()
        };
        assert!(why.contains("did you mean `mock/model`?"), "{why}");
    }

    #[test]
    fn model_and_reasoning_are_set_as_options() {
        let options = SessionOptions {
            model: Some("m".to_owned()),
            reasoning: Some(Level::High),
            ..options()
        };
        let (mut handshake, _) = Handshake::start(options);
        handshake.handle_message(&success(1, json!({ "protocolVersion": 1 })));
        let opened = json!({ "sessionId": "s", "configOptions": [
            { "id": "model", "options": [ { "name": "group", "options": [ { "value": "m" } ] } ] },
            { "id": "effort", "category": "thought_level", "options": [ { "value": "high" } ] } ] });
        let model = sent(handshake.handle_message(&success(2, opened)));
        assert_eq!(
            (&model["params"]["configId"], &model["params"]["value"]),
            (&json!("model"), &json!("m"))
        );
        let effort = sent(handshake.handle_message(&success(3, json!({}))));
        assert_eq!(effort["params"]["configId"], "effort");
        assert!(matches!(
            handshake.handle_message(&success(4, json!({}))),
            HandshakeStep::Ready(_)
        ));
    }

    #[test]
    fn an_error_of_the_agent_is_part_of_the_failure() {
        let (mut handshake, _) = Handshake::start(options());
        handshake.handle_message(&success(1, json!({ "protocolVersion": 1 })));
        let HandshakeStep::Failed(why) =
            handshake.handle_message(&failure(2, "Authentication required"))
        else {
            panic!()
        };
        assert!(why.contains("Authentication required"), "{why}");
        let (mut handshake, _) = Handshake::start(options());
        let step = handshake.handle_message(&success(1, json!({ "protocolVersion": 7 })));
        assert!(matches!(step, HandshakeStep::Failed(_)));
    }
}
