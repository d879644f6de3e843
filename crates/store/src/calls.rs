//! Calls from inside containers that must not happen twice, whoever repeats them: messages of agents to
//! sessions below their own, and operations that change something.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{SessionId, TokenId};
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

/// Whether an operation was called before under the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    New,
    /// It was, and this came of it.
    Before(String),
    /// It was, and nobody noted what came of it.
    Unknown,
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

    /// Notes that an operation is about to be called, unless it was before.
    async fn begin_tool_call(&self, token: TokenId, call_id: Uuid, at: Timestamp) -> Result<Begun>;

    /// Notes what came of it.
    async fn end_tool_call(&self, token: TokenId, call_id: Uuid, outcome: &str) -> Result<()>;

    /// Forgets calls from before `before`; how many.
    async fn trim_calls(&self, before: Timestamp) -> Result<usize>;
}
