//! Messages of agents to sessions below their own: each happens once, whoever repeats it.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::SessionId;
use uuid::Uuid;

use crate::{AuditEntry, Logged, Message, Result, Session};

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct ChildCall {
    /// The session that got the message.
    pub child: SessionId,
    pub turn: CallTurn,
}

/// Where the turn of a message is.
#[derive(Debug, Clone, PartialEq)]
pub enum CallTurn {
    /// The message waits for its turn.
    Queued,
    Running,
    /// The completion of the turn.
    Answered(Box<Logged>),
    /// The session was ended before the turn could begin.
    Dropped,
}

#[async_trait]
pub trait Calls {
    /// Queues a message from a session to one below it, unless the call has done so already; none
    /// if either is gone, or the one that calls has ended.
    async fn queue_call(
        &self,
        caller: SessionId,
        call_id: Uuid,
        to: SessionId,
        message: &Message,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>>;

    /// What came of a call of [`crate::Sessions::spawn_session`] or [`Calls::queue_call`].
    async fn child_call(&self, caller: SessionId, call_id: Uuid) -> Result<Option<ChildCall>>;

    /// Forgets calls from before `before`; how many.
    async fn trim_calls(&self, before: Timestamp) -> Result<usize>;
}
