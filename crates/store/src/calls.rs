//! Storage of calls from containers that must take effect once even if the client repeats them:
//! messages from agents to child sessions, and operations that change state; and the turns that callers wait for.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{SessionId, TokenId};
use uuid::Uuid;

use crate::{AuditEntry, Result, Session, SessionMessage, StoredEvent};

/// How many outcomes of operations are kept per token.
pub const MAX_KEPT_OUTCOMES: u32 = 200;
/// How many bytes the kept outcomes of a token may have together, besides the newest.
pub const MAX_KEPT_OUTCOME_BYTES: u64 = 4 << 20;

/// The state of a call that sent a message to a child session.
#[derive(Debug, Clone, PartialEq)]
pub struct CalledTurn {
    /// The session that received the message.
    pub child: SessionId,
    pub turn: CallTurn,
    /// The index of the prompt that started the turn.
    pub prompted: Option<i64>,
    pub created_at: Timestamp,
    /// What [`CallStore::record_delivery`] stored.
    pub delivery: Option<String>,
}

/// The state of the turn for a message.
#[derive(Debug, Clone, PartialEq)]
pub enum CallTurn {
    /// The message is in the queue.
    Queued,
    Running,
    /// The turn has ended; this is its completion event.
    Answered(Box<StoredEvent>),
    /// The message was removed from the queue before its turn started.
    Dropped,
}

/// The outcome of [`CallStore::stop_message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopOutcome {
    /// The turn runs, or is the next one; the session has a request to interrupt it.
    Requested,
    /// The message was removed from the queue.
    Dropped,
    /// The turn had ended, or the message was dropped before.
    Ended,
}

/// The outcome of [`CallStore::begin_tool_call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolCallStart {
    /// The call id is new.
    New,
    /// The call was made before and had this outcome.
    Repeated(String),
    /// The call was made before and its outcome was not recorded.
    Unknown,
}

#[async_trait]
pub trait CallStore {
    /// Queues a message from session `caller` to its descendant `to`, once per call id. Returns the
    /// receiving session and whether it was resumed, or `None` if either session does not exist or
    /// the caller has ended.
    async fn queue_call(
        &self,
        caller: SessionId,
        call_id: Uuid,
        to: SessionId,
        message: &SessionMessage,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>>;

    /// Returns the state of a call of [`crate::SessionStore::spawn_session`] or [`CallStore::queue_call`].
    async fn called_turn(&self, caller: SessionId, call_id: Uuid) -> Result<Option<CalledTurn>>;

    /// Stores what is to be returned about the delivery of a message when its turn has ended.
    async fn record_delivery(
        &self,
        session: SessionId,
        wait_id: Uuid,
        delivery: &str,
    ) -> Result<()>;

    /// Stops the turn of a message, and no other one: requests an interrupt if it runs or is next, and
    /// otherwise removes the message from the queue. `None` if no such message is known.
    async fn stop_message(
        &self,
        session: SessionId,
        wait_id: Uuid,
        audit: Option<AuditEntry>,
    ) -> Result<Option<StopOutcome>>;

    /// Records that an operation is about to be called, unless the call id is known.
    async fn begin_tool_call(
        &self,
        token: TokenId,
        call_id: Uuid,
        at: Timestamp,
    ) -> Result<ToolCallStart>;

    /// Records the outcome of a call. The oldest outcomes of the token beyond [`MAX_KEPT_OUTCOMES`] and
    /// [`MAX_KEPT_OUTCOME_BYTES`] become unknown.
    async fn end_tool_call(&self, token: TokenId, call_id: Uuid, outcome: &str) -> Result<()>;

    /// Deletes calls made before `before` and returns their number.
    async fn trim_calls(&self, before: Timestamp) -> Result<usize>;
}
