//! Follows a session's log for a client that receives events on an open stream.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use oubliette_model::SessionId;
use serde_json::Value;

use super::Sessions;
use super::event_filter::EventFilter;
use super::log_reader::{DEFAULT_PAGE_EVENTS, LogCursor, LogReader};
use crate::{Actor, Engine, EngineError, Result};

/// Reads a session's log for as long as the actor may read it. That is decided again before each page,
/// as for a call of `session_events`.
pub struct Follower {
    engine: Engine,
    actor: Actor,
    reader: LogReader,
    /// None after it has ended.
    token_ended: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower")
            .field("reader", &self.reader)
            .finish_non_exhaustive()
    }
}

impl Sessions<'_> {
    /// Follows a session's log after an index.
    pub fn follow(self, actor: Actor, id: SessionId, since_index: i64) -> Follower {
        let cursor = LogCursor::Session(since_index);
        let (engine, token) = (self.engine.clone(), actor.token_id);
        Follower {
            engine: self.engine.clone(),
            actor,
            reader: LogReader::new(
                self.engine,
                id,
                cursor,
                EventFilter::ALL,
                DEFAULT_PAGE_EVENTS,
            ),
            token_ended: Some(Box::pin(async move {
                engine.tokens().wait_until_ended(token).await;
            })),
        }
    }

    /// Whether an actor may follow a session.
    ///
    /// # Errors
    /// The reason why it may not.
    pub async fn check_follow(self, actor: &Actor, id: SessionId) -> Result<()> {
        self.engine.permit_following(actor, id).await.map(drop)
    }
}

impl Follower {
    /// Waits for new events; empty if there are none within `wait`.
    ///
    /// # Errors
    /// The actor may no longer read the session, or the server stops.
    pub async fn next(&mut self, wait: Duration) -> Result<Vec<Value>> {
        let refused = EngineError::refused_ended_token;
        let Some(token_ended) = &mut self.token_ended else {
            return Err(refused());
        };
        let page = tokio::select! {
            biased;
            () = token_ended => {
                self.token_ended = None;
                return Err(refused());
            }
            page = self.reader.next_page(wait, Some(&self.actor)) => page?,
        };
        if page.events.is_empty() && self.engine.draining().now_or_never().is_some() {
            return Err(EngineError::Cancelled);
        }
        Ok(page.events)
    }
}
