//! The agent's process: the connection to it, and its input.

use std::sync::Arc;
use std::time::Duration;

use oubliette_model::ApiKey;
use oubliette_store::SessionStep;

use super::{ActorError, SessionActor};
use crate::containers::memory::{MemoryKills, describe_kills};
use crate::containers::process::{Process, ProcessError};
use crate::containers::{CommandResult, InUseGuard, SUPERVISOR_RECONNECT_TIMEOUT};
use crate::sessions::connection::AgentConnection;
use crate::sessions::live_agent::{LiveAgent, Turn};
use crate::{EngineError, SupervisorLink};

const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(20);

pub(super) struct AgentProcess {
    /// What the store knows about the process; none if there is none.
    pub(super) live: Option<LiveAgent>,
    pub(super) connection: Option<AgentConnection>,
    /// Output before this offset has been handled.
    pub(super) read_offset: u64,
    /// Input that is sent when its step is committed.
    pub(super) staged_input: Vec<u8>,
    /// Committed input, by offset, that the agent may not have received.
    pub(super) unconfirmed_input: Vec<(u64, Vec<u8>)>,
    /// Keeps the container from being stopped as idle.
    pub(super) container_use: Option<InUseGuard>,
    /// The key with which the agent's MCP server attaches to the session; only its hash is stored.
    pub(super) session_key: Option<ApiKey>,
    /// Whether the agent was started with a key to sign in with.
    pub(super) has_key: bool,
    /// What the agent calls the model that was chosen, if it has another name for it.
    pub(super) model_id: Option<String>,
    /// Which credentials the redactor knows.
    pub(super) credential_generation: u64,
    /// What the memory limit of its container has killed since the last note about it.
    pub(super) memory_kills: Option<MemoryKills>,
}

impl AgentProcess {
    pub(super) fn new(live: Option<LiveAgent>, unconfirmed_input: Vec<(u64, Vec<u8>)>) -> Self {
        Self {
            read_offset: live.as_ref().map_or(0, |live| live.stdout_offset),
            live,
            connection: None,
            staged_input: Vec::new(),
            unconfirmed_input,
            container_use: None,
            session_key: None,
            has_key: false,
            model_id: None,
            credential_generation: 0,
            memory_kills: None,
        }
    }

    pub(super) fn turn(&self) -> Option<&Turn> {
        self.live.as_ref()?.turn.as_ref()
    }

    pub(super) fn in_turn(&self) -> bool {
        self.turn().is_some()
    }
}

impl SessionActor<'_> {
    /// Stages bytes for the agent. They are sent when the step they belong to is committed.
    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        let Some(live) = &mut self.process.live else {
            return;
        };
        let offset = live.stdin_offset;
        live.stdin_offset += bytes.len() as u64;
        self.process.staged_input.extend(&bytes);
        self.step.changes.input.push((offset, bytes.clone()));
        self.process.unconfirmed_input.push((offset, bytes));
    }

    /// Connects to the running agent and continues where the log ends; false if the agent is gone.
    pub(super) async fn connect(&mut self) -> Result<bool, ActorError> {
        let Some(live) = self.process.live.clone() else {
            return Ok(false);
        };
        loop {
            let Some(process) = self.find_process(&live).await else {
                self.on_agent_exit("the container ended".to_owned()).await?;
                return Ok(false);
            };
            let container = live.container_id(&self.project);
            self.engine
                .gateway()
                .restore(&self.session, &container, &live.placeholders);
            if self.process.memory_kills.is_none() {
                let link = process.link().clone();
                let kills = self.engine.containers().watch_memory_kills(&link).await;
                self.process.memory_kills = Some(kills);
            }
            let first_unconfirmed = self.process.unconfirmed_input.first();
            let input_offset = first_unconfirmed.map_or(live.stdin_offset, |(at, _)| *at);
            let output_offset = live.stdout_offset;
            let inside_long_line = live.skipping_line;
            match AgentConnection::open(process, input_offset, output_offset, inside_long_line)
                .await
            {
                Ok(mut connection) => {
                    self.reset_to_committed().await?;
                    if let Some(offset) = connection.missing_until() {
                        self.step.events.log("a part of the agent's output is lost");
                        self.process.read_offset = offset;
                    }
                    for (_, bytes) in &self.process.unconfirmed_input {
                        connection.send(bytes);
                    }
                    self.process.connection = Some(connection);
                    self.deadlines.record_progress();
                    self.handle_output().await?;
                    return Ok(true);
                }
                Err(error) if error.is_connection_lost() => {
                    tokio::time::sleep(CONNECT_RETRY_DELAY).await;
                }
                Err(ProcessError::Gone | ProcessError::ProgramNotFound(_)) => {
                    self.on_agent_exit("the agent is gone".to_owned()).await?;
                    return Ok(false);
                }
                Err(error) => return Err(EngineError::from(error).into()),
            }
        }
    }

    /// Drops everything that is not committed: the agent's output is read again from there.
    async fn reset_to_committed(&mut self) -> Result<(), ActorError> {
        let store = self.engine.store();
        let Some(session) = store.session(self.session.id).await? else {
            return Ok(());
        };
        let live = LiveAgent::from_session(&session);
        self.process.read_offset = live.as_ref().map_or(0, |live| live.stdout_offset);
        self.process.live = live;
        self.process.staged_input.clear();
        self.process.unconfirmed_input = store.agent_input(session.id).await?;
        self.session = session;
        self.step.changes = SessionStep::default();
        self.restore_from_log().await
    }

    /// What the memory limit has killed since the last note, in words.
    pub(super) fn take_memory_note(&mut self) -> Option<String> {
        let count = self.process.memory_kills.as_mut()?.take();
        describe_kills(count, self.engine.containers().memory_mb(&self.project))
    }

    /// The process of an agent; none if the container that it was started in has ended.
    pub(super) async fn find_process(&self, live: &LiveAgent) -> Option<Process> {
        let id = live.container_id(&self.project);
        let (boot_id, process_id) = (&live.boot_id, &live.process_id);
        let containers = self.engine.containers();
        containers
            .find_process(&id, boot_id, process_id, SUPERVISOR_RECONNECT_TIMEOUT)
            .await
    }

    /// The link to the supervisor of the agent's container, even if it has just broken.
    pub(super) async fn link(&self) -> Option<Arc<SupervisorLink>> {
        if let Some(connection) = &self.process.connection {
            return Some(connection.process.link().clone());
        }
        let process = self.find_process(self.process.live.as_ref()?).await?;
        Some(process.link().clone())
    }

    /// The output of a shell script that is run in the agent's container.
    pub(super) async fn run_script(&self, script: &str) -> Option<String> {
        let live = self.process.live.as_ref()?;
        let argv = ["/bin/sh", "-c", script].map(str::to_owned);
        let container = live.container_id(&self.project);
        let link = self.link().await?;
        let running =
            self.engine
                .containers()
                .run_command(&container, link, argv.into(), Vec::new());
        match running.await {
            Ok(CommandResult::Succeeded(text)) => Some(text),
            _ => None,
        }
    }
}
