//! Starting an agent: from nothing to a process that takes prompts.

use std::sync::Arc;
use std::time::Duration;

use oubliette_agent::{
    AgentMessage, Handshake, HandshakeStep, McpServerConfig, OpenedSession, ResumeMethod,
    SessionOptions,
};
use oubliette_model::{ApiKey, Event};
use oubliette_runtime::ContainerId;
use oubliette_wire::StreamKind;
use tokio::time::Instant;
use uuid::Uuid;

use super::connection::{Connection, Frame, Frames, News};
use super::live::Live;
use super::owner::{Owner, Stop};
use super::redact::Redact;
use crate::containers::Link;
use crate::containers::attachment::{Program, Unreached};
use crate::containers::exec::{Inside, usual_environment};
use crate::workspaces::path_in_container;
use crate::{EngineError, Minted, agents};

const API_KEY: &str = "OUBLIETTE_API_KEY";
const CLIENT: &str = "/usr/local/bin/oubliette-client";

impl Owner<'_> {
    /// Starts the agent and opens its session. The inner error is a sentence for the caller.
    pub(super) async fn start_agent(&mut self) -> Result<Result<(), String>, Stop> {
        match self.launch().await {
            Ok(()) => {}
            Err(Trouble::Why(why)) => return self.not_started(why).await,
            Err(Trouble::Stop(stop)) => return Err(stop),
        }
        let patience = Duration::from_secs(self.engine.settings().sessions.start_seconds);
        let opened = match self.shake_hands(Instant::now() + patience).await {
            Ok(opened) => opened,
            Err(Trouble::Why(why)) => return self.not_started(why).await,
            Err(Trouble::Stop(stop)) => return Err(stop),
        };
        self.ready(opened).await?;
        Ok(Ok(()))
    }

    async fn not_started(&mut self, why: String) -> Result<Result<(), String>, Stop> {
        let words = self.connection.as_ref().map(Connection::last_words);
        let words = words.unwrap_or_default();
        let why = match words.trim() {
            "" => why,
            words => format!("{why}; the agent last said: {words}"),
        };
        let why = self.redact.text(why);
        self.discard_agent().await;
        self.commit().await?;
        Ok(Err(why))
    }

    async fn launch(&mut self) -> Result<(), Trouble> {
        let engine = self.engine;
        let settings = engine.settings();
        // Found again: what the configuration says may have changed.
        self.agent = agents::find(settings, &self.session.agent)?;
        if let Some(objection) = self
            .agent
            .tool_enforcement
            .unsupported_reason(&self.tools())
        {
            let name = &self.agent.name;
            return Err(Trouble::Why(format!("the agent `{name}` {objection}")));
        }
        let workspace = self.session.workspace_id.clone();
        let there = engine.store().workspace(self.project.id, &workspace);
        if there.await?.is_none() {
            return Err(Trouble::Why(format!(
                "the workspace `{workspace}` of the session was deleted"
            )));
        }
        let secrets = agents::secrets(settings, &self.project, &self.agent)?;
        let own = self.project.settings.env.values().cloned();
        let hidden = secrets.iter().map(|(_, secret)| secret.clone()).chain(own);
        self.redact = Redact::new(hidden);
        self.has_credential = !secrets.is_empty();

        let (container, link, _) = engine.ensure_container(&self.project, &workspace).await?;
        self.in_use = Some(engine.containers().using(&container));
        let live = Live {
            process_id: format!("agent {} {}", self.session.id, Uuid::new_v4().simple()),
            container: container.to_string(),
            boot_id: link.boot_id().to_owned(),
            ..Live::default()
        };
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|e| EngineError::fault(e.to_string()))?;
        let key = ApiKey::from_random(random);
        self.step.key = Some(key.hash());
        self.key = Some(key);
        // The name is in the store before there is anything of that name.
        let process_id = live.process_id.clone();
        self.heard = 0;
        self.live = Some(live);
        self.commit().await?;
        self.write_files(&container, &link).await?;

        let mut env = usual_environment();
        for (name, value) in &self.project.settings.env {
            env.insert(name.clone(), value.reveal().to_owned());
        }
        env.extend(self.agent.environment(self.autonomy(), &self.tools()));
        for (name, secret) in secrets {
            env.insert(name, secret.reveal().to_owned());
        }
        let program = Program {
            process_id: process_id.clone(),
            argv: agents::command_line(settings, &self.agent),
            env,
            cwd: path_in_container(&workspace),
        };
        let attachment = match engine.containers().launch(&link, program).await {
            Ok(()) => engine.containers().attach(link, &process_id, 0, 0).await,
            Err(error) => Err(error),
        };
        let attachment = attachment.map_err(|unreached| self.unreached(unreached))?;
        self.connection = Some(Connection::new(attachment, Frames::new(0, false)));
        Ok(())
    }

    fn unreached(&self, unreached: Unreached) -> Trouble {
        let name = &self.agent.name;
        Trouble::Why(match unreached {
            Unreached::NoProgram if self.agent.package.is_some() => format!(
                "the agent `{name}` is not in the container; `oubliette agent install {name}` puts \
                 it where containers find it"
            ),
            Unreached::NoProgram => format!(
                "the program `{}` of the agent `{name}` is not in the container",
                self.agent.argv.first().map_or("", String::as_str)
            ),
            Unreached::Failed(error) => error.to_string(),
            Unreached::Lost | Unreached::Gone => {
                "the container ended while the agent started".to_owned()
            }
        })
    }

    /// Writes the files that the agent needs in its home and that are not there.
    async fn write_files(&self, container: &ContainerId, link: &Arc<Link>) -> Result<(), Trouble> {
        for (path, content) in &self.agent.files {
            let script = "[ -e \"$HOME/$1\" ] || { mkdir -p \"$(dirname \"$HOME/$1\")\" && \
                          cat > \"$HOME/$1\"; }";
            let argv = ["/bin/sh", "-c", script, "sh", path].map(str::to_owned);
            let bytes = content.clone().into_bytes();
            if let Inside::Failed(why) = self
                .engine
                .run_inside(container, link.clone(), argv.into(), bytes)
                .await?
            {
                return Err(Trouble::Why(format!(
                    "the file `{path}` could not be written into the agent's home: {why}"
                )));
            }
        }
        Ok(())
    }

    async fn shake_hands(&mut self, deadline: Instant) -> Result<OpenedSession, Trouble> {
        let plan = self.plan().await?;
        let (mut handshake, first) = Handshake::start(plan);
        self.say(&first);
        loop {
            while let Some(frame) = self.connection.as_mut().and_then(|c| c.frames.next()) {
                let (line, end) = match frame {
                    Frame::Line(line, end) => (AgentMessage::parse(&line), end),
                    Frame::TooLong(end) => (AgentMessage::Blank, end),
                };
                self.heard = end;
                match handshake.handle_message(&line) {
                    HandshakeStep::Wait => {}
                    HandshakeStep::Send(line) => self.say(&line),
                    HandshakeStep::Ready(opened) => return Ok(opened),
                    HandshakeStep::Failed(why) => return Err(Trouble::Why(why)),
                }
            }
            let heard = self.heard;
            let Some(connection) = &mut self.connection else {
                return Err(Trouble::Why("the agent is gone".to_owned()));
            };
            // An agent that has much to say before it begins must not wait for us.
            connection.attachment.ack(StreamKind::Stdout, heard).await;
            tokio::select! {
                news = connection.news() => match news {
                    News::Output | News::Quiet => {}
                    News::Ended => {
                        let how = self.how_it_ended();
                        return Err(Trouble::Why(format!("{how} before it could work")));
                    }
                    News::Mute => {
                        return Err(Trouble::Why("the agent closed its output".to_owned()));
                    }
                    News::Lost => {
                        return Err(Trouble::Why(
                            "the connection to the container broke while the agent started"
                                .to_owned(),
                        ));
                    }
                },
                () = self.wake.notified() => {
                    if !self.reload().await.map_err(Trouble::Stop)? || self.session.wanted.is_some() {
                        return Err(Trouble::Why("the session was stopped".to_owned()));
                    }
                }
                () = tokio::time::sleep_until(deadline) => {
                    return Err(Trouble::Why(format!(
                        "the agent was not ready within {} seconds (`sessions.start_seconds`)",
                        self.engine.settings().sessions.start_seconds
                    )));
                }
            }
        }
    }

    /// Bytes that need not survive: the agent that hears them does not either.
    fn say(&mut self, bytes: &[u8]) {
        if let (Some(connection), Some(live)) = (&mut self.connection, &mut self.live) {
            connection.send(bytes);
            live.stdin += bytes.len() as u64;
        }
    }

    /// What the agent's session is to be like.
    async fn plan(&mut self) -> Result<SessionOptions, Trouble> {
        let api_key = self.mint().await?;
        if self.step.token.is_some() {
            self.commit().await.map_err(Trouble::Stop)?;
        }
        let key = self.key.as_ref().map(|key| key.reveal().to_owned());
        let own = |name: &str, value: String| (name.to_owned(), value);
        let api_key = api_key.map(|key| own(API_KEY, key));
        let mut servers = vec![McpServerConfig {
            name: "oubliette".to_owned(),
            command: CLIENT.to_owned(),
            args: vec!["mcp".to_owned()],
            env: vec![
                own("OUBLIETTE_SOCKET", "/mcp/relay.sock".to_owned()),
                own("OUBLIETTE_SESSION_ID", self.session.id.to_string()),
                own("OUBLIETTE_SESSION_KEY", key.unwrap_or_default()),
            ]
            .into_iter()
            .chain(api_key)
            .collect(),
        }];
        for server in &self.project.settings.mcp_servers {
            let env = server.env.iter();
            servers.push(McpServerConfig {
                name: server.name.clone(),
                command: server.command.clone(),
                args: server.args.clone(),
                env: env
                    .map(|(name, value)| (name.clone(), value.reveal().to_owned()))
                    .collect(),
            });
        }
        let choices = &self.session.choices;
        let defaults = &self.project.settings;
        let takes_model = self.agent.takes_model;
        let takes_reasoning = self.agent.takes_reasoning;
        let (mode, requires_mode) = self.agent.mode(self.autonomy(), &self.tools());
        Ok(SessionOptions {
            cwd: path_in_container(&self.session.workspace_id),
            servers,
            resume: self.session.agent_session_id.clone(),
            auth_method: self
                .agent
                .auth_method
                .clone()
                .filter(|_| self.has_credential),
            mode,
            requires_mode,
            model: choices
                .model
                .clone()
                .or_else(|| defaults.model.clone())
                .filter(|_| takes_model),
            reasoning: choices
                .reasoning
                .or(defaults.reasoning)
                .filter(|_| takes_reasoning),
        })
    }

    /// The key with which the agent can call Oubliette itself: made for this start of it alone, or what
    /// the project's environment says.
    async fn mint(&mut self) -> Result<Option<String>, Trouble> {
        let Some(scope) = self.engine.scope_of_agent(&self.session).await? else {
            let given = self.project.settings.env.get(API_KEY);
            return Ok(given.map(|key| key.reveal().to_owned()));
        };
        let name = format!("agent of {}", self.session.id);
        let Minted { mut token, key } = Minted::draw(&name, scope, self.engine.now(), None)?;
        token.session_id = Some(self.session.id);
        token.minted = true;
        self.step.token = Some((token, key.hash()));
        Ok(Some(key.reveal().to_owned()))
    }

    async fn ready(&mut self, opened: OpenedSession) -> Result<(), Stop> {
        let cost_seen = self.session.cost_usd;
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        live.ready = true;
        live.stdout = self.heard;
        live.next_id = opened.next_id;
        live.forgetful = opened.resume_method == ResumeMethod::FromTranscript;
        if matches!(
            opened.resume_method,
            ResumeMethod::Resume | ResumeMethod::Load
        ) {
            // Its own total goes on where it was.
            live.cost_seen = cost_seen;
        }
        self.session.agent_session_id = Some(opened.session.clone());
        self.step.agent_session_id = Some(Some(opened.session));
        for note in opened.warnings {
            self.scribe.log(note);
        }
        let (how, text) = match opened.resume_method {
            ResumeMethod::New => return self.commit().await,
            ResumeMethod::Resume => ("resume", "the agent goes on with its own session"),
            ResumeMethod::Load => ("load", "the agent has loaded its own session"),
            ResumeMethod::FromTranscript => (
                "transcript",
                "the agent could not go on with its own session; it gets the transcript instead",
            ),
        };
        self.scribe.events.push(Event::Log {
            message: text.to_owned(),
            resumed_by: Some(how.to_owned()),
        });
        self.commit().await
    }
}

/// Why an agent did not start.
pub(super) enum Trouble {
    /// A sentence for the caller.
    Why(String),
    Stop(Stop),
}

impl From<EngineError> for Trouble {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Fault(_) => Self::Stop(Stop::Fault(error)),
            told => Self::Why(told.to_string()),
        }
    }
}

impl From<oubliette_store::StoreError> for Trouble {
    fn from(error: oubliette_store::StoreError) -> Self {
        Self::Stop(error.into())
    }
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}
