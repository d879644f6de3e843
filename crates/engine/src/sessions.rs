//! Sessions: an agent's conversations, their log, and the one task that owns each live one.
//!
//! Operations write what they want into the store and wake the owner; the owner talks to the agent
//! and commits every step. So whatever dies in between, the next start finds all of it.

pub(crate) mod ask;
mod attach;
mod budget;
mod children;
pub(crate) mod cleanup;
mod connection;
mod decision;
pub(crate) mod deliver;
pub(crate) mod end;
mod ending;
pub(crate) mod events;
pub(crate) mod follow;
pub(crate) mod get;
mod hearing;
pub(crate) mod interrupt;
pub(crate) mod list;
mod live;
pub(crate) mod message;
mod owner;
pub(crate) mod permit;
mod prompt;
mod redact;
mod scribe;
pub(crate) mod spawn;
mod start;
mod tools;
mod turn;
pub(crate) mod view;
pub(crate) mod watch;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use oubliette_model::{ProjectId, SessionId};
use oubliette_store::{Step, Stepped, StoreError};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::containers::lock;
use crate::{Engine, EngineError, Result};
pub use attach::Speaker;
pub use children::Verb;
pub(crate) use watch::Watch;

/// Every live session's owner, and those who wait for news.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    owners: Mutex<HashMap<SessionId, Owned>>,
    pub(crate) watch: Watch,
}

/// A task that owns a session.
#[derive(Debug)]
struct Owned {
    project: ProjectId,
    wake: Arc<Notify>,
    /// Something happened that the owner has not looked at.
    pending: bool,
    task: Option<AbortHandle>,
}

impl Sessions {
    /// Whether the owner may leave: nothing has come since it last looked.
    fn leave(&self, id: SessionId) -> bool {
        let mut owners = lock(&self.owners);
        let pending = owners.get(&id).is_some_and(|owned| owned.pending);
        if !pending {
            owners.remove(&id);
        }
        !pending
    }

    /// The owner is about to look.
    fn looking(&self, id: SessionId) {
        if let Some(owned) = lock(&self.owners).get_mut(&id) {
            owned.pending = false;
        }
    }
}

impl Engine {
    /// Has the owner of a session look at the store; a session that needs one gets it.
    pub(crate) fn wake_session(&self, id: SessionId, project: ProjectId) {
        let mut owners = lock(&self.sessions().owners);
        if let Some(owned) = owners.get_mut(&id) {
            owned.pending = true;
            owned.wake.notify_one();
            return;
        }
        let wake = Arc::new(Notify::new());
        let engine = self.clone();
        let waking = wake.clone();
        let task = self.spawn_abortable(async move { engine.own(id, waking).await });
        owners.insert(
            id,
            Owned {
                project,
                wake,
                pending: false,
                task: Some(task),
            },
        );
    }

    /// Owns a session until there is nothing more to do.
    async fn own(self, id: SessionId, wake: Arc<Notify>) {
        loop {
            self.sessions().looking(id);
            let owning = owner::own(&self, id, &wake);
            let outcome = AssertUnwindSafe(owning).catch_unwind().await;
            match outcome {
                Ok(Ok(())) => {
                    if self.sessions().leave(id) {
                        return;
                    }
                }
                Ok(Err(owner::Stop::Server)) => {
                    lock(&self.sessions().owners).remove(&id);
                    return;
                }
                Ok(Err(owner::Stop::Fault(error))) => {
                    tracing::error!(session = %id, %error, "a session could not go on");
                    self.give_up(id, &error).await;
                }
                Err(_) => {
                    tracing::error!(session = %id, "the owner of a session panicked");
                    self.give_up(id, &EngineError::fault("a panic")).await;
                }
            }
        }
    }

    /// Ends a session whose owner could not go on.
    async fn give_up(&self, id: SessionId, error: &EngineError) {
        let why = error.to_string();
        let abandoned = owner::abandon(self, id, &why);
        if AssertUnwindSafe(abandoned).catch_unwind().await.is_err() {
            tracing::error!(session = %id, "a session could not be given up");
        }
        // A store that fails all the time must not make this a busy loop.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }

    /// Lets go of every session of a project that is being deleted. Their agents end with the
    /// container.
    pub(crate) fn disown(&self, project: ProjectId) {
        let mut owners = lock(&self.sessions().owners);
        owners.retain(|_, owned| {
            let gone = owned.project == project;
            if gone && let Some(task) = &owned.task {
                task.abort();
            }
            !gone
        });
    }

    /// Takes a step of a session and tells those who wait for it.
    pub(crate) async fn store_step(
        &self,
        id: SessionId,
        step: Step,
    ) -> Result<Option<Stepped>, StoreError> {
        // Its agent's token ends with its agent.
        let ends_tokens = matches!(step.live, Some(None));
        let stands_anew =
            ends_tokens || step.status.is_some() || step.key.is_some() || step.turn_begun;
        let stepped = self.store().step(id, step).await?;
        if ends_tokens {
            self.tokens().notify_ended();
        }
        if let Some(stepped) = &stepped {
            self.sessions().watch.tell(id, stepped.root_id);
            if stands_anew {
                self.sessions().watch.tell_standing(id);
            }
            if let Some(parent) = stepped.parent_id {
                self.sessions().watch.tell(parent, stepped.root_id);
            }
        }
        Ok(stepped)
    }

    pub(crate) fn session_not_found(id: SessionId) -> EngineError {
        EngineError::NotFound {
            what: "session",
            id: id.to_string(),
            hint: "`session_list` shows the sessions that this token can use",
        }
    }
}
