//! Reads and trims the event logs of sessions. [`crate::SessionStore::commit_step`] appends to them.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::SessionId;

use crate::Result;

/// An event with its position in the logs.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    /// Its position among the events of all sessions.
    pub position: i64,
    pub session_id: SessionId,
    /// Its position in the log of its session.
    pub index: i64,
    pub at: Timestamp,
    /// The event as JSON.
    pub body: String,
}

#[async_trait]
pub trait EventStore {
    /// Returns the events of a session after index `since`: at most `limit` events, and at most
    /// `max_bytes` of bodies unless the first event alone is larger.
    async fn events(
        &self,
        id: SessionId,
        since: i64,
        limit: u32,
        max_bytes: usize,
    ) -> Result<Vec<StoredEvent>>;

    /// Like [`EventStore::events`] for a session and its descendants, in commit order, after position
    /// `after`.
    async fn tree_events(
        &self,
        id: SessionId,
        after: i64,
        limit: u32,
        max_bytes: usize,
    ) -> Result<Vec<StoredEvent>>;

    /// Returns the newest events of a kind in the log of a session, the newest first.
    async fn newest_events(
        &self,
        id: SessionId,
        kind: &str,
        limit: u32,
    ) -> Result<Vec<StoredEvent>>;

    /// Returns the streamed text of a session from index `from` on, in order.
    async fn text_deltas(&self, id: SessionId, from: i64) -> Result<Vec<String>>;

    /// Deletes the events of sessions without an agent that are older than `before` or exceed
    /// `max_events` per session, except the first and the newest event of each log. Returns the
    /// number of deleted events.
    async fn trim_events(&self, before: Timestamp, max_events: i64) -> Result<usize>;
}
