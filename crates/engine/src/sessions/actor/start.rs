//! Starts an agent: its container, its process, and the handshake after which it takes prompts.

use std::sync::Arc;
use std::time::Duration;

use oubliette_agent::{
    AgentMessage, AgentUpdate, Handshake, HandshakeStep, McpServerConfig, ModelSetting,
    OpenedSession, ResumeMethod, SessionOptions, ToolRefresh,
};
use oubliette_model::{Event, Secret};
use oubliette_store::StoreError;
use oubliette_wire::{
    AGENT_SUBCOMMAND, CLIENT_PATH, CONFIRM_LISTS_VARIABLE, FileFormat, HomeFile, RELAY_SOCKET_PATH,
    StreamKind,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::{ActorError, SessionActor};
use crate::containers::exec::default_environment;
use crate::containers::process::{ProcessError, ProcessSpec};
use crate::gateway::set_git_config;
use crate::sessions::connection::{AgentConnection, MAX_AGENT_SPOOL_BYTES, ProcessEvent};
use crate::sessions::live_agent::LiveAgent;
use crate::sessions::redactor::Redactor;
use crate::tokens::authority::Authority;
use crate::workspaces::path_in_container;
use crate::{EngineError, NewToken, agents};

const API_KEY_VARIABLE: &str = "OUBLIETTE_API_KEY";
const SESSION_ID_VARIABLE: &str = "OUBLIETTE_SESSION_ID";

impl SessionActor<'_> {
    /// Starts the agent and opens its session. The inner error is for the caller.
    pub(super) async fn start_agent(&mut self) -> Result<Result<(), String>, ActorError> {
        match self.try_start_agent().await {
            Ok(()) => Ok(Ok(())),
            Err(StartError::Refused(reason)) => {
                self.kill_agent().await;
                self.commit().await?;
                Ok(Err(reason))
            }
            Err(StartError::Failed(reason)) => {
                let error = self.with_details(reason);
                self.kill_agent().await;
                self.commit().await?;
                Ok(Err(error))
            }
            Err(StartError::Actor(error)) => Err(error),
        }
    }

    async fn try_start_agent(&mut self) -> Result<(), StartError> {
        let (reports_home, servers) = self.start_process().await?;
        let seconds = self.engine.settings().sessions.start_seconds;
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let opened = self
            .perform_handshake(deadline, reports_home, servers)
            .await?;
        Ok(self.finish_start(opened).await?)
    }

    /// Starts the process. Returns whether the first line of its output is a report of its home, and the
    /// MCP servers that it is given over ACP.
    async fn start_process(&mut self) -> Result<(bool, Vec<McpServerConfig>), StartError> {
        let engine = self.engine;
        let settings = engine.settings();
        // Looked up again: the configuration may have changed.
        self.agent = agents::find(settings, &self.session.agent)?;
        if let Some(reason) = self
            .agent
            .tool_enforcement
            .unsupported_reason(&self.tools())
        {
            let name = &self.agent.name;
            return Err(StartError::Failed(format!("the agent `{name}` {reason}")));
        }
        let workspace = self.session.workspace_id.clone();
        let found = engine.store().workspace(self.project.id, &workspace);
        if found.await?.is_none() {
            return Err(StartError::Failed(format!(
                "the workspace `{workspace}` of the session was deleted"
            )));
        }
        self.keep_refreshed_login().await;
        self.process.credential_generation = engine.credentials().generation();
        let mut sign_in = engine.credentials().sign_in(&self.project, &self.agent)?;
        self.process.has_key = self.has_key(&sign_in);
        for name in &self.agent.random_env {
            let password = crate::tokens::generate_key()?;
            let secret = Secret::new(password.reveal());
            sign_in.env.push((name.clone(), secret));
        }
        let running = engine
            .containers()
            .ensure(&self.project, &workspace)
            .await?;
        let (container, link) = (running.id, running.link);
        let gateway = self.use_gateway(&link, &mut sign_in).await?;
        let secrets = sign_in.env.iter().map(|(_, secret)| secret);
        let secrets = secrets.chain(&gateway.secrets).cloned();
        let redactor = Redactor::with_others(engine, &self.project, secrets);
        self.redactor = Arc::new(redactor);
        self.step.events.set_redactor(self.redactor.clone());
        self.process.container_use = Some(engine.containers().mark_in_use(&container));
        self.process.memory_kills = Some(engine.containers().watch_memory_kills(&link).await);
        let live = LiveAgent {
            process_id: format!("agent {} {}", self.session.id, Uuid::new_v4().simple()),
            container: container.to_string(),
            boot_id: link.boot_id().to_owned(),
            placeholders: gateway.placeholders.clone(),
            ..LiveAgent::default()
        };
        let key = crate::tokens::generate_key()?;
        self.step.changes.key = Some(key.hash());
        self.process.session_key = Some(key);
        // The process's id is committed before the process exists, so that it is never left behind.
        let process_id = live.process_id.clone();
        self.process.read_offset = 0;
        self.process.live = Some(live);
        self.commit().await?;
        self.set_session_hosts(&container).await;
        if !gateway.placeholders.is_empty() {
            let granting = engine.gateway();
            granting
                .grant(&self.session, &container, gateway.placeholders)
                .await?;
        }
        let tools = engine.callers().tools(self.session.id).await?;
        let api_key = self.create_api_key().await?;
        if self.step.changes.token.is_some() {
            self.commit().await?;
        }
        let mut servers = self.mcp_servers(api_key);
        let mcp_file = self.agent.mcp_file.map(|file| {
            let content = (file.content)(&std::mem::take(&mut servers)).to_string();
            HomeFile::new(file.path, FileFormat::Json, content)
        });
        let settings_files = mcp_file.into_iter().chain(gateway.file).collect();
        let plan = self.home_plan(sign_in.login.as_ref(), settings_files);
        let makes_home = link.makes_homes();
        let home = if makes_home {
            plan.own_path()
        } else {
            self.make_home_by_commands(&container, &link, &plan).await?
        };
        if let Some(live) = &mut self.process.live {
            live.home = Some(home.clone());
            live.caller_tools = Some(tools.fingerprint());
        }

        let mut env = default_environment();
        env.insert("HOME".to_owned(), home.clone());
        // The hook `prepare-commit-msg` of the workspace puts it into commits.
        let session_id = self.session.id.to_string();
        env.insert(SESSION_ID_VARIABLE.to_owned(), session_id);
        for (name, value) in &self.project.settings.env {
            env.insert(name.clone(), value.reveal().to_owned());
        }
        env.extend(self.agent.environment(self.autonomy(), &self.tools()));
        for (name, path) in self.agent.home_env {
            env.insert((*name).to_owned(), format!("{home}/{path}"));
        }
        let restrictions = self.agent.restricted(self.autonomy(), &self.tools());
        if let (Some(programs), Some(path)) = (restrictions.programs, env.get_mut("PATH")) {
            *path = format!("{home}/{programs}:{path}");
        }
        self.agent.merge_json_env(&mut env);
        if let Some(model) = self.chosen_model() {
            let set = self.agent.set_model(&model, &mut env);
            set.map_err(|why| {
                StartError::Failed(format!(
                    "the agent cannot be told to use the model `{model}`: {why}; correct it in the `env` of the \
                     project"
                ))
            })?;
        }
        for (name, secret) in &sign_in.env {
            env.insert(name.clone(), secret.reveal().to_owned());
        }
        env.extend(gateway.env);
        set_git_config(&gateway.git, &mut env);
        if link.has_gateway() {
            sign_in.reject_other_addresses(&self.agent, &env)?;
        }
        sign_in.set_providers(&self.agent, &mut env)?;
        let mut argv = agents::command_line(settings, &self.agent);
        let mut input = Vec::new();
        if makes_home {
            input =
                serde_json::to_vec(&plan).map_err(|error| StartError::Failed(error.to_string()))?;
            let length = input.len().to_string();
            let client = [CLIENT_PATH.to_owned(), AGENT_SUBCOMMAND.to_owned(), length];
            argv.splice(0..0, client);
        }
        let program = ProcessSpec {
            process_id: process_id.clone(),
            argv,
            env,
            cwd: path_in_container(&workspace),
            terminal: None,
            max_spool_bytes: MAX_AGENT_SPOOL_BYTES,
            isolated: true,
        };
        let process = engine.containers().process(link, &process_id);
        let connection = match process.start(&program).await {
            Ok(()) => AgentConnection::open(process, 0, 0, false).await,
            Err(error) => Err(error),
        };
        self.process.connection = Some(connection.map_err(|error| self.start_failure(error))?);
        self.send_uncommitted(&input);
        Ok((makes_home, servers))
    }

    pub(super) fn start_failure(&self, error: ProcessError) -> StartError {
        let name = &self.agent.name;
        StartError::Failed(match error {
            ProcessError::ProgramNotFound(_) if self.agent.package.is_some() => format!(
                "the agent `{name}` is not installed in the container; run `oubliette agent install \
                 {name}`"
            ),
            ProcessError::ProgramNotFound(_) => format!(
                "the program `{}` of the agent `{name}` is not in the container",
                self.agent.argv.first().map_or("", String::as_str)
            ),
            ProcessError::NotSent | ProcessError::ConnectionLost | ProcessError::Gone => {
                "the container ended while the agent started".to_owned()
            }
            error => EngineError::from(error).to_string(),
        })
    }

    async fn perform_handshake(
        &mut self,
        deadline: Instant,
        mut reports_home: bool,
        servers: Vec<McpServerConfig>,
    ) -> Result<OpenedSession, StartError> {
        let plan = self.handshake_plan(servers);
        let (mut handshake, first) = Handshake::start(plan);
        self.send_uncommitted(&first);
        loop {
            while let Some(connection) = &mut self.process.connection
                && let Some((line, end)) = connection.lines.next_piece()
            {
                self.process.read_offset = end;
                if std::mem::take(&mut reports_home) {
                    self.take_home_report(line.as_deref().ok())?;
                    continue;
                }
                let line = line.map_or(AgentMessage::Blank, |line| AgentMessage::parse(&line));
                match handshake.handle_message(&line) {
                    HandshakeStep::Wait => {}
                    HandshakeStep::Send(line) => self.send_uncommitted(&line),
                    HandshakeStep::Ready(opened) => return Ok(opened),
                    HandshakeStep::Failed(reason) => {
                        let reason = self.redactor.redact_text(reason);
                        return Err(StartError::Refused(self.with_advice(&reason)));
                    }
                }
            }
            let read_offset = self.process.read_offset;
            let Some(connection) = &mut self.process.connection else {
                return Err(StartError::Failed("the agent is gone".to_owned()));
            };
            // Acknowledged now, so that an agent with much output does not block on a full spool.
            let process = &connection.process;
            process.acknowledge(StreamKind::Stdout, read_offset).await;
            let reason = tokio::select! {
                event = connection.next_event() => match event {
                    ProcessEvent::Output | ProcessEvent::Nothing => continue,
                    ProcessEvent::Exited => format!("{} during its start", self.exit_reason()),
                    ProcessEvent::StdoutClosed => "the agent closed its output".to_owned(),
                    ProcessEvent::ConnectionLost => {
                        "the connection to the container broke while the agent started".to_owned()
                    }
                },
                () = self.wake.notified() => {
                    if self.reload().await? && self.session.stop_request.is_none() {
                        continue;
                    }
                    "the session was stopped".to_owned()
                }
                () = tokio::time::sleep_until(deadline) => format!(
                    "the agent was not ready within {} seconds (`sessions.start_seconds`)",
                    self.engine.settings().sessions.start_seconds
                ),
            };
            return Err(StartError::Failed(reason));
        }
    }

    /// Sends bytes of the handshake. They are not committed: after a crash the agent is started again.
    fn send_uncommitted(&mut self, bytes: &[u8]) {
        let process = &mut self.process;
        if let (Some(connection), Some(live)) = (&mut process.connection, &mut process.live) {
            connection.send(bytes);
            live.stdin_offset += bytes.len() as u64;
        }
    }

    /// What the handshake opens the agent's session with.
    fn handshake_plan(&self, servers: Vec<McpServerConfig>) -> SessionOptions {
        let choices = &self.session.choices;
        let defaults = &self.project.settings;
        let model = self.process.model_id.clone();
        let model = model.or_else(|| self.chosen_model());
        let reasoning = choices.reasoning.or(defaults.reasoning);
        let (mode, requires_mode) = self.agent.mode(self.autonomy(), &self.tools());
        SessionOptions {
            cwd: path_in_container(&self.session.workspace_id),
            servers,
            resume: self.session.agent_session_id.clone(),
            auth_method: self
                .agent
                .auth_method
                .clone()
                .filter(|_| self.process.has_key),
            mode,
            requires_mode,
            model: model.filter(|_| self.agent.takes_model),
            is_model_set: self.agent.model_setting != ModelSetting::Offered,
            reasoning: reasoning.filter(|_| self.agent.takes_reasoning),
            meta: self
                .agent
                .restricted(self.autonomy(), &self.tools())
                .session_meta,
        }
    }

    /// The agent's MCP servers: Oubliette's own and the project's.
    fn mcp_servers(&self, api_key: Option<String>) -> Vec<McpServerConfig> {
        let key = self.process.session_key.as_ref();
        let session_key = key.map_or("", |key| key.reveal()).to_owned();
        let env = [
            ("OUBLIETTE_SOCKET", Some(RELAY_SOCKET_PATH.to_owned())),
            (SESSION_ID_VARIABLE, Some(self.session.id.to_string())),
            ("OUBLIETTE_SESSION_KEY", Some(session_key)),
            (API_KEY_VARIABLE, api_key),
            (
                CONFIRM_LISTS_VARIABLE,
                (self.agent.tool_refresh == ToolRefresh::Slow).then(|| "1".to_owned()),
            ),
        ];
        let own = McpServerConfig {
            name: "oubliette".to_owned(),
            command: CLIENT_PATH.to_owned(),
            args: vec!["mcp".to_owned()],
            env: env
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                .collect(),
        };
        let of_project = self.project.settings.mcp_servers.iter().map(|server| {
            let env = server.env.iter();
            McpServerConfig {
                name: server.name.clone(),
                command: server.command.clone(),
                args: server.args.clone(),
                env: env
                    .map(|(name, value)| (name.clone(), value.reveal().to_owned()))
                    .collect(),
            }
        });
        [own].into_iter().chain(of_project).collect()
    }

    /// The API key with which the agent can call Oubliette: a new one with its own scope, or the one of
    /// the project's environment.
    async fn create_api_key(&mut self) -> Result<Option<String>, StartError> {
        let sessions = self.engine.sessions();
        let grant = sessions.grant(&self.session).await?;
        if grant.is_none() && sessions.wanted_scope(&self.session).await?.is_some() {
            self.step.events.log(
                "the agent gets no key for Oubliette: the token that owns the session is no longer valid, \
                 or may not grant any of `agent_scope`",
            );
        }
        let Some(Authority { scope, expires_at }) = grant else {
            let given = self.project.settings.env.get(API_KEY_VARIABLE);
            return Ok(given.map(|key| key.reveal().to_owned()));
        };
        let name = format!("agent of {}", self.session.id);
        let NewToken { mut token, key } =
            NewToken::generate(&name, scope, self.engine.now(), expires_at)?;
        token.session_id = Some(self.session.id);
        token.minted = true;
        self.step.changes.token = Some((token, key.hash()));
        Ok(Some(key.reveal().to_owned()))
    }

    /// Records that the agent takes prompts.
    async fn finish_start(&mut self, opened: OpenedSession) -> Result<(), ActorError> {
        let Some(live) = &mut self.process.live else {
            return Ok(());
        };
        live.ready = true;
        live.stdout_offset = self.process.read_offset;
        live.next_request_id = opened.next_id;
        live.takes_images = opened.takes_images;
        let is_new = opened.resume_method == ResumeMethod::New;
        live.needs_transcript = opened.resume_method == ResumeMethod::FromTranscript
            || (is_new && self.session.choices.starts_from_transcript);
        if matches!(
            opened.resume_method,
            ResumeMethod::Resume | ResumeMethod::Load
        ) {
            // The agent continues its own total.
            live.reported_cost_usd = self.session.cost_usd;
        }
        for mut update in opened.updates {
            if let AgentUpdate::Commands(commands) = &mut update {
                self.redactor.redact_value(commands);
            }
            self.step
                .events
                .handle_update(live, update, self.session.log_end);
        }
        self.set_used_model(opened.model);
        let (name, data_dir) = (&self.agent.name, &self.engine.settings().data_dir);
        if let Err(error) = agents::store_models(data_dir, name, &opened.models) {
            tracing::warn!(agent = %name, %error, "could not store the models of an agent");
        }
        self.session.agent_session_id = Some(opened.session.clone());
        self.step.changes.agent_session_id = Some(Some(opened.session));
        for note in opened.warnings {
            self.step.events.log(note);
        }
        let (resumed_by, message) = match opened.resume_method {
            ResumeMethod::New => return self.commit().await,
            ResumeMethod::Resume => ("resume", "the agent resumed its own session"),
            ResumeMethod::Load => ("load", "the agent loaded its own session"),
            ResumeMethod::FromTranscript => (
                "transcript",
                "the agent could not resume its own session; it gets the transcript instead",
            ),
        };
        self.step.events.push(Event::Log {
            message: message.to_owned(),
            resumed_by: Some(resumed_by.to_owned()),
        });
        self.commit().await
    }
}

/// Why an agent did not start.
pub(super) enum StartError {
    /// The reason, for the caller.
    Failed(String),
    /// The same, from the agent itself: nothing in its error output is needed to understand it.
    Refused(String),
    Actor(ActorError),
}

impl From<EngineError> for StartError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Fault(_) => Self::Actor(error.into()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<StoreError> for StartError {
    fn from(error: StoreError) -> Self {
        Self::Actor(error.into())
    }
}

impl From<ActorError> for StartError {
    fn from(error: ActorError) -> Self {
        Self::Actor(error)
    }
}
