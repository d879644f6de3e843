//! The log of what happened in sessions. [`crate::Sessions::step`] appends to it; this reads it.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::SessionId;

use crate::Result;

/// An event and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Logged {
    /// Its place among the events of all sessions.
    pub position: i64,
    pub session_id: SessionId,
    pub index: i64,
    pub at: Timestamp,
    /// The event as JSON.
    pub body: String,
}

#[async_trait]
pub trait Events {
    /// Events of a session after an index, at most so many and so many bytes of them, and at least
    /// one.
    async fn events(
        &self,
        id: SessionId,
        since: i64,
        limit: u32,
        bytes: usize,
    ) -> Result<Vec<Logged>>;

    /// The same for a session and everything below it, in the order of commits, after a position.
    async fn tree_events(
        &self,
        id: SessionId,
        after: i64,
        limit: u32,
        bytes: usize,
    ) -> Result<Vec<Logged>>;

    /// The streamed text of a session from an index on, in order.
    async fn deltas(&self, id: SessionId, from: i64) -> Result<Vec<String>>;

    /// Forgets the oldest events of sessions: those from before `before`, and what is more than
    /// `most` in one session. The first event of a log and the newest ones stay. How many.
    async fn trim_events(&self, before: Timestamp, most: i64) -> Result<usize>;
}
