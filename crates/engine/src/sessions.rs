//! Sessions: conversations with agents, their event logs, and the task (actor) that runs each live one.
//!
//! Operations write what is wanted to the store and wake the session's actor. The actor talks to the
//! agent and commits every step, so a server that is killed at any point can continue after a restart.

mod actor;
mod agent_calls;
mod attach;
mod children;
pub(crate) mod cleanup;
mod connection;
pub(crate) mod create;
pub(crate) mod deliver;
pub(crate) mod diff;
pub(crate) mod end;
mod event_filter;
pub(crate) mod events;
mod follow;
pub(crate) mod fork;
pub(crate) mod get;
mod grants;
pub(crate) mod interrupt;
pub(crate) mod list;
mod live_agent;
mod log_reader;
pub(crate) mod message;
pub(crate) mod message_params;
mod orphaned_homes;
pub(crate) mod permit;
mod polled_turn;
mod redactor;
pub(crate) mod review;
pub(crate) mod rewind;
pub(crate) mod running_agent;
pub(crate) mod spawn;
pub(crate) mod subscriptions;
mod tools;
mod transcript;
pub(crate) mod view;
mod waiting;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use oubliette_model::{ProjectId, SessionId};
use oubliette_store::{CommittedStep, Session, SessionStep, StoreError};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::{Engine, EngineError, Result};
use actor::ActorError;
pub use agent_calls::AgentCallGuard;
use agent_calls::AgentCalls;
pub use attach::AttachedSession;
pub use children::AgentTool;
pub use follow::Follower;
pub use polled_turn::{PolledTurn, TurnId, TurnState};
use subscriptions::Subscriptions;
use waiting::ReportedRequests;

/// Limits how fast an actor that fails, for example because the store fails, is run again.
const ACTOR_RETRY_DELAY: Duration = Duration::from_millis(500);
/// How often a message is tried whose turn cannot start because of internal errors.
const MAX_MESSAGE_FAULTS: u32 = 8;

/// The running actors, and the readers that wait for changes.
#[derive(Debug, Default)]
pub(crate) struct SessionState {
    actors: Mutex<HashMap<SessionId, ActorHandle>>,
    subscriptions: Subscriptions,
    agent_calls: Arc<AgentCalls>,
    reported_requests: ReportedRequests,
    /// Why all turns end: the server and its containers are about to be stopped.
    end_reason: OnceLock<String>,
}

#[derive(Debug)]
struct ActorHandle {
    project: ProjectId,
    wake: Arc<Notify>,
    /// The actor was woken after it last read the store.
    pending: bool,
    task: AbortHandle,
}

impl SessionState {
    /// Removes an actor that has nothing left to do; false if it was woken since it last read the store.
    fn remove_finished(&self, id: SessionId) -> bool {
        let mut actors = self.actors.lock();
        let pending = actors.get(&id).is_some_and(|actor| actor.pending);
        if !pending {
            actors.remove(&id);
        }
        !pending
    }

    /// The actor is about to read the store.
    fn clear_pending(&self, id: SessionId) {
        if let Some(actor) = self.actors.lock().get_mut(&id) {
            actor.pending = false;
        }
    }
}

/// What can be done with sessions.
#[derive(Debug, Clone, Copy)]
pub struct Sessions<'a> {
    engine: &'a Engine,
}

impl Engine {
    pub fn sessions(&self) -> Sessions<'_> {
        Sessions { engine: self }
    }
}

impl<'a> Sessions<'a> {
    fn state(self) -> &'a SessionState {
        self.engine.session_state()
    }

    pub(crate) fn subscriptions(self) -> &'a Subscriptions {
        &self.state().subscriptions
    }

    pub(crate) fn count_tasks(self) -> usize {
        self.state().actors.lock().len()
    }

    /// The session with this id.
    pub(crate) async fn get(self, id: SessionId) -> Result<Session> {
        let session = self.engine.store().session(id).await?;
        session.ok_or_else(|| EngineError::session_not_found(id))
    }

    /// Makes the session's actor read the store, if one runs.
    pub(crate) fn wake_running(self, id: SessionId) {
        if let Some(actor) = self.state().actors.lock().get_mut(&id) {
            actor.pending = true;
            actor.wake.notify_one();
        }
    }

    /// Makes the session's actor read the store; starts one if none runs.
    pub(crate) fn wake(self, id: SessionId, project: ProjectId) {
        let mut actors = self.state().actors.lock();
        if let Some(actor) = actors.get_mut(&id) {
            actor.pending = true;
            actor.wake.notify_one();
            return;
        }
        let wake = Arc::new(Notify::new());
        let actor = run_actor(self.engine.clone(), id, wake.clone());
        let task = self.engine.spawn_abortable(actor);
        actors.insert(
            id,
            ActorHandle {
                project,
                wake,
                pending: false,
                task,
            },
        );
    }

    /// The sessions of a project that have an actor.
    pub(crate) fn live_in_project(self, project: ProjectId) -> Vec<SessionId> {
        let actors = self.state().actors.lock();
        let own = actors.iter().filter(|(_, actor)| actor.project == project);
        own.map(|(id, _)| *id).collect()
    }

    /// Makes every actor read the store.
    pub(crate) fn wake_all_running(self) {
        for actor in self.state().actors.lock().values_mut() {
            actor.pending = true;
            actor.wake.notify_one();
        }
    }

    /// Aborts the actors of a project that is being deleted. Their agents end with the container.
    pub(crate) fn abort_project(self, project: ProjectId) {
        self.state().actors.lock().retain(|_, actor| {
            let aborted = actor.project == project;
            if aborted {
                actor.task.abort();
            }
            !aborted
        });
    }

    /// Commits a step of a session and wakes its readers.
    pub(crate) async fn commit_step(
        self,
        id: SessionId,
        step: SessionStep,
    ) -> Result<Option<CommittedStep>, StoreError> {
        // The agent's token ends with its agent.
        let ends_tokens = matches!(step.live, Some(None));
        let changes_status =
            ends_tokens || step.status.is_some() || step.key.is_some() || step.turn_started;
        let stepped = self.engine.store().commit_step(id, step).await?;
        if ends_tokens {
            self.engine.tokens().notify_ended();
        }
        if let Some(stepped) = &stepped {
            let subscriptions = self.subscriptions();
            subscriptions.notify_log(id, stepped.root_id);
            if changes_status {
                subscriptions.notify_status(id);
            }
            if let Some(parent) = stepped.parent_id {
                subscriptions.notify_log(parent, stepped.root_id);
            }
        }
        Ok(stepped)
    }
}

/// Runs the actor of a session until there is nothing left to do.
async fn run_actor(engine: Engine, id: SessionId, wake: Arc<Notify>) {
    let state = engine.session_state();
    let mut faults = MessageFaults::default();
    loop {
        state.clear_pending(id);
        let running = AssertUnwindSafe(actor::run(&engine, id, &wake));
        let error = match Box::pin(running.catch_unwind()).await {
            Ok(Ok(())) => {
                if state.remove_finished(id) {
                    engine.parts.network.denials.forget(id);
                    engine.network().forget_session(id).await;
                    return;
                }
                continue;
            }
            Ok(Err(ActorError::ServerStopping)) => {
                state.actors.lock().remove(&id);
                return;
            }
            Ok(Err(ActorError::Fault(error))) => error,
            Err(_) => EngineError::fault("a panic"),
        };
        tracing::error!(session = %id, %error, "session actor failed");
        let next = engine.store().next_message(id).await.ok().flatten();
        let gives_up = faults.count(next.map(|message| message.id), &error);
        let failing = AssertUnwindSafe(actor::fail_session(&engine, id, &error, gives_up));
        if failing.catch_unwind().await.is_err() {
            tracing::error!(session = %id, "marking a session as failed panicked");
        }
        tokio::time::sleep(ACTOR_RETRY_DELAY).await;
    }
}

/// Counts the internal errors that kept one message from being handled.
#[derive(Debug, Default)]
struct MessageFaults {
    message: Option<i64>,
    count: u32,
}

impl MessageFaults {
    /// Counts an error while `next` waits; true if that message has been tried often enough. Errors that
    /// end by themselves or by what the user does, for example a full disk, do not count.
    fn count(&mut self, next: Option<i64>, error: &EngineError) -> bool {
        if next != self.message {
            *self = Self {
                message: next,
                count: 0,
            };
        }
        if matches!(error, EngineError::Fault(_)) {
            self.count += 1;
        }
        next.is_some() && self.count >= MAX_MESSAGE_FAULTS
    }
}

impl EngineError {
    pub(crate) fn session_not_found(id: impl ToString) -> Self {
        Self::NotFound {
            what: "session",
            id: id.to_string(),
            hint: "`session_list` shows the sessions that this token can use",
        }
    }
}
