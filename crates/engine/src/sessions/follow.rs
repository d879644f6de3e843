//! Somebody who is told of a session's events on an open stream.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use oubliette_model::SessionId;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::events::{PAGE, USUAL, envelope};
use super::watch::Ring;
use crate::{Actor, Engine, EngineError, Result};

/// Reads a session's log from some place on, for as long as its reader may. Whether it may is decided
/// anew before each page, as for a call of `session_events`.
pub struct Follower {
    engine: Engine,
    actor: Actor,
    id: SessionId,
    since: i64,
    news: watch::Receiver<Ring>,
    /// Whether the log had nothing more when it was looked at last.
    read_all: bool,
    token_ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    refused: bool,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower")
            .field("id", &self.id)
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Follows a session's log after some index.
    pub fn follow(&self, actor: Actor, id: SessionId, since: i64) -> Follower {
        let (engine, token) = (self.clone(), actor.token_id);
        Follower {
            engine: self.clone(),
            actor,
            id,
            since,
            // Before the first look: what comes between a look and the wait is heard.
            news: self.sessions().watch.session(id),
            read_all: false,
            token_ended: Box::pin(async move { engine.tokens().wait_until_ended(token).await }),
            refused: false,
        }
    }

    /// Whether somebody may follow a session.
    ///
    /// # Errors
    /// Why it may not.
    pub async fn may_follow(&self, actor: &Actor, id: SessionId) -> Result<()> {
        self.permit_following(actor, id).await.map(drop)
    }
}

impl Follower {
    /// The events that are new, or none if there are none after some time.
    ///
    /// # Errors
    /// It may not follow the session any more, or the server ends.
    pub async fn next(&mut self, wait: Duration) -> Result<Vec<Value>> {
        let deadline = Instant::now() + wait;
        while !self.refused {
            if self.read_all {
                let over = tokio::time::sleep_until(deadline);
                tokio::select! {
                    changed = self.news.changed() => {
                        if changed.is_err() {
                            // The watch was given up between two readers; there is a new one.
                            self.news = self.engine.sessions().watch.session(self.id);
                        }
                    }
                    () = &mut self.token_ended => self.refused = true,
                    () = self.engine.stopping() => return Err(EngineError::Cancelled),
                    () = over => {}
                }
            }
            self.refused = self.refused || (&mut self.token_ended).now_or_never().is_some();
            if self.refused {
                break;
            }
            self.news.mark_unchanged();
            let session = self.engine.permit_following(&self.actor, self.id).await?;
            let store = self.engine.store();
            let found = store.events(self.id, self.since, USUAL, PAGE).await?;
            if let Some(last) = found.last() {
                self.since = last.index;
            }
            // Read before the events: what was added since then is news.
            self.read_all = found.is_empty() || self.since + 1 >= session.log_end;
            if !found.is_empty() || Instant::now() >= deadline {
                return Ok(found.into_iter().map(envelope).collect());
            }
        }
        Err(EngineError::Refused { parameter: None })
    }
}
