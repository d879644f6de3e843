//! The one task that runs a live session. It does what the store says is wanted, talks to the agent, and
//! commits every step before any reader sees it.

mod background;
mod budget;
mod checkpoint;
mod deadlines;
mod decisions;
mod event_builder;
mod home;
mod output;
mod process;
mod prompt;
mod questions;
mod sign_in;
mod start;
mod step;
mod termination;
mod turn;

use std::sync::Arc;

use oubliette_agent::{Agent, ToolFilter, ToolRefresh};
use oubliette_model::{Event, Level, SessionId, Status};
use oubliette_store::{Project, Session, StopRequest, StoreError};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::live_agent::LiveAgent;
use super::redactor::Redactor;
use super::tools::tools_from_choices;
use crate::callers::AwaitedTools;
use crate::{Engine, EngineError};
use deadlines::Deadlines;
use event_builder::EventBuilder;
use process::AgentProcess;
use step::StepBuilder;

const RESTORE_PAGE_EVENTS: u32 = 1000;
const RESTORE_PAGE_BYTES: usize = 8 << 20;

/// Why an actor stops before its session is settled.
#[derive(Debug)]
pub(super) enum ActorError {
    /// The next server continues.
    ServerStopping,
    Fault(EngineError),
}

impl From<EngineError> for ActorError {
    fn from(error: EngineError) -> Self {
        Self::Fault(error)
    }
}

impl From<StoreError> for ActorError {
    fn from(error: StoreError) -> Self {
        Self::Fault(error.into())
    }
}

enum Next {
    /// Wait until something happens.
    Wait,
    /// Nothing is left to do.
    Exit,
}

struct SessionActor<'a> {
    engine: &'a Engine,
    wake: &'a Notify,
    session: Session,
    project: Project,
    agent: Agent,
    redactor: Arc<Redactor>,
    process: AgentProcess,
    step: StepBuilder,
    deadlines: Deadlines,
    /// Steps that used the reserve of the store since the session was told to stop.
    reserve_commits: u32,
    /// The budget request of the turn's calls that the gate holds, while it is open.
    held_request: Option<String>,
    deleted: bool,
}

/// Runs a session until there is nothing left to do.
pub(super) async fn run(engine: &Engine, id: SessionId, wake: &Notify) -> Result<(), ActorError> {
    let Some(mut actor) = SessionActor::new(engine, id, wake).await? else {
        return Ok(());
    };
    tokio::select! {
        // Dropping it at any point is the same as killing the server there.
        outcome = actor.run() => outcome,
        () = engine.stopping() => Err(ActorError::ServerStopping),
    }
}

/// Fails the turn of a session whose actor returned an error or panicked; with `fails_waiting` also that of
/// the message that waits, which is tried again otherwise.
pub(super) async fn fail_session(
    engine: &Engine,
    id: SessionId,
    reason: &EngineError,
    fails_waiting: bool,
) {
    let wake = Notify::new();
    let fail = async {
        let Some(mut actor) = SessionActor::new(engine, id, &wake).await? else {
            return Ok::<_, ActorError>(());
        };
        actor
            .on_agent_exit(format!(
                "the server could not continue the session: {reason}"
            ))
            .await?;
        if !fails_waiting || !actor.reload().await? || actor.session.status.is_ended() {
            return Ok(());
        }
        if let Some(message) = engine.store().next_message(id).await? {
            let reason = format!("the server could not start the turn, in several tries: {reason}");
            actor.fail_turn(&message, &reason).await?;
        }
        Ok(())
    };
    if let Err(error) = fail.await {
        tracing::error!(session = %id, ?error, "could not mark a session as failed");
    }
}

impl<'a> SessionActor<'a> {
    async fn new(
        engine: &'a Engine,
        id: SessionId,
        wake: &'a Notify,
    ) -> Result<Option<Self>, ActorError> {
        let Some(session) = engine.store().session(id).await? else {
            return Ok(None);
        };
        let Some(project) = engine.store().project(session.project_id).await? else {
            return Ok(None);
        };
        let unconfirmed_input = engine.store().agent_input(id).await?;
        let mut actor = Self {
            engine,
            wake,
            agent: engine.sessions().configured_agent(&session),
            redactor: Arc::default(),
            process: AgentProcess::new(LiveAgent::from_session(&session), unconfirmed_input),
            step: StepBuilder::default(),
            deadlines: Deadlines::new(),
            reserve_commits: 0,
            held_request: None,
            deleted: false,
            session,
            project,
        };
        actor.restore_from_log().await?;
        Ok(Some(actor))
    }

    /// Restores what the log knows about a turn that an earlier actor started.
    async fn restore_from_log(&mut self) -> Result<(), ActorError> {
        let store = self.engine.store();
        let Some(live) = &self.process.live else {
            return Ok(());
        };
        let streamed = match &live.open_text {
            Some(text) => {
                let deltas = store.text_deltas(self.session.id, text.start_index).await?;
                deltas.concat()
            }
            None => String::new(),
        };
        let mut messages = Vec::new();
        if let Some(turn) = &live.turn {
            let mut since = turn.start_index - 1;
            loop {
                let (limit, bytes) = (RESTORE_PAGE_EVENTS, RESTORE_PAGE_BYTES);
                let page = store.events(self.session.id, since, limit, bytes).await?;
                let Some(last) = page.last() else { break };
                since = last.index;
                for event in page {
                    if let Ok(Event::Message { text }) = serde_json::from_str(&event.body) {
                        messages.push(text);
                    }
                }
            }
            if turn.cancelled.is_some() {
                self.deadlines.cancel_by = Some(Instant::now() + self.cancel_timeout());
            }
        }
        self.held_request = budget::open_held_request(&store.decisions(self.session.id).await?);
        let container = live.container_id(&self.project);
        self.set_session_hosts(&container).await;
        self.process.container_use = Some(self.engine.containers().mark_in_use(&container));
        self.process.credential_generation = self.engine.credentials().generation();
        self.redactor = Arc::new(Redactor::for_project(self.engine, &self.project));
        self.step.events = EventBuilder::resume(self.redactor.clone(), streamed, &messages);
        Ok(())
    }

    async fn run(&mut self) -> Result<(), ActorError> {
        loop {
            match self.act().await? {
                Next::Exit => return Ok(()),
                Next::Wait => self.wait().await?,
            }
        }
    }

    /// Does everything that can be done now.
    async fn act(&mut self) -> Result<Next, ActorError> {
        loop {
            let id = self.session.id;
            self.engine.session_state().clear_pending(id);
            if !self.reload().await? {
                return Ok(Next::Exit);
            }
            if self.session.stop_request == Some(StopRequest::End) {
                self.end_session().await?;
                return Ok(Next::Exit);
            }
            if self.process.live.as_ref().is_some_and(|live| !live.ready) {
                // The server was killed during the handshake. No prompt was sent.
                self.kill_agent().await;
                self.commit().await?;
                continue;
            }
            let disconnected = self.process.live.is_some() && self.process.connection.is_none();
            if disconnected && !self.connect().await? {
                continue;
            }
            self.apply_decisions().await?;
            if self.session.stop_request == Some(StopRequest::Interrupt) {
                self.interrupt().await?;
                continue;
            }
            self.log_denials().await?;
            self.ask_about_hosts().await?;
            self.enforce_metered_budget().await?;
            self.follow_held_calls().await?;
            if self.process.in_turn() || self.session.status == Status::Waiting {
                return Ok(Next::Wait);
            }
            let Some(message) = self.engine.store().next_message(id).await? else {
                return Ok(match self.process.live {
                    Some(_) => Next::Wait,
                    None => Next::Exit,
                });
            };
            if self.session.status.is_ended() {
                // It failed with messages in its queue; the next message that arrives resumes it.
                return Ok(Next::Exit);
            }
            if self.is_over_budget().await? {
                self.request_budget().await?;
                continue;
            }
            if self.has_outdated_tools().await? || self.has_forgotten_conversation() {
                self.stop_agent().await;
                self.commit().await?;
                continue;
            }
            if self.process.live.is_none()
                && let Err(reason) = self.start_agent().await?
            {
                if self.session.stop_request.is_none() {
                    self.fail_turn(&message, &reason).await?;
                }
                continue;
            }
            self.start_turn(message).await?;
        }
    }

    /// Reads the session again; false if it was deleted.
    async fn reload(&mut self) -> Result<bool, ActorError> {
        match self.engine.store().session(self.session.id).await? {
            Some(session) if !self.deleted => {
                self.session = session;
                Ok(true)
            }
            _ => {
                self.deleted = true;
                self.kill_agent().await;
                Ok(false)
            }
        }
    }

    /// Waits for the agent, for a wake-up, or for a deadline.
    async fn wait(&mut self) -> Result<(), ActorError> {
        let deadline = self.next_deadline().await?;
        let event = async {
            match &mut self.process.connection {
                Some(connection) => connection.next_event().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = event => self.handle_process_event(event).await,
            () = self.wake.notified() => Ok(()),
            () = tokio::time::sleep_until(deadline) => self.on_deadline().await,
        }
    }

    /// The model that the session was told to use.
    fn chosen_model(&self) -> Option<String> {
        let default_agent = &self.engine.settings().sessions.default_agent;
        let defaults = self.project.settings.models_by_agent(default_agent);
        self.session.chosen_model(&defaults).cloned()
    }

    fn set_used_model(&mut self, mut model: Option<String>) {
        self.redactor.redact_optional(&mut model);
        if model.is_some() && model != self.session.choices.used_model {
            self.session.choices.used_model.clone_from(&model);
            self.step.changes.used_model = model;
        }
    }

    /// What the agent must know before a prompt.
    fn awaited_tools(&self) -> AwaitedTools {
        let is_first_turn = self
            .process
            .live
            .as_ref()
            .is_some_and(|live| !live.prompted);
        match self.agent.tool_refresh {
            ToolRefresh::OnUse | ToolRefresh::Restart => AwaitedTools::Delivered,
            ToolRefresh::Late if is_first_turn => AwaitedTools::StartedAndListed,
            ToolRefresh::Late | ToolRefresh::Notified | ToolRefresh::Slow => AwaitedTools::Listed,
        }
    }

    /// Whether the running agent does not know the tools of its caller, and can learn them only by a
    /// restart.
    async fn has_outdated_tools(&self) -> Result<bool, ActorError> {
        let live = self.process.live.as_ref();
        let started_with = live.and_then(|live| live.caller_tools.as_ref());
        let (Some(known), ToolRefresh::Restart) = (started_with, self.agent.tool_refresh) else {
            return Ok(false);
        };
        let tools = self.engine.callers().tools(self.session.id).await?;
        Ok(*known != tools.fingerprint())
    }

    /// Whether the session was set back, so that the running agent remembers too much.
    fn has_forgotten_conversation(&self) -> bool {
        self.process.live.is_some() && self.session.agent_session_id.is_none()
    }

    fn autonomy(&self) -> Level {
        let own = self.session.choices.autonomy;
        own.or(self.project.settings.autonomy)
            .unwrap_or(Level::High)
    }

    fn tools(&self) -> ToolFilter {
        tools_from_choices(&self.session.choices)
    }
}
