//! The tools of callers: which a session's caller has declared, and the calls of them.
//!
//! A call is pending until one conditional update ends it: whoever comes first wins, and all others
//! learn that they were late.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{CallerToolOutcome, Event, SessionId, TokenId};
use serde_json::Value;
use uuid::Uuid;

use crate::{AuditEntry, Result, Session};

/// Calls of one session that can be pending at once, and the bytes of their arguments.
pub const MOST_PENDING: u32 = 1000;
pub const MOST_PENDING_BYTES: i64 = 16 << 20;

/// The tools that a caller declares with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    pub caller_id: String,
    /// As JSON; only the engine can read it.
    pub tools: String,
    /// Only the token that a session belongs to declares tools, or the next one when that has ended.
    pub by: TokenId,
}

/// The tools that were declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    pub caller_id: String,
    pub tools: String,
}

/// A call of a caller's tool.
#[derive(Debug, Clone, PartialEq)]
pub struct CallerRequest {
    pub session_id: SessionId,
    pub request_id: Uuid,
    /// The agent's client's own name for the call.
    pub call_id: Uuid,
    pub tool: String,
    pub arguments: Value,
    pub asked_at: Timestamp,
    pub deadline: Timestamp,
    /// Where the event that tells of it is in the log; the store says so.
    pub event_index: i64,
    /// Whether the caller got it as an answer to a question of its own.
    pub handed: bool,
    /// Absent while it is pending.
    pub ended: Option<Ended>,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub outcome: CallerToolOutcome,
    /// The result, or the sentence of an error.
    pub answer: Value,
}

/// Whether a call was made.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// It is new; the session as it was then.
    New(Box<Session>),
    /// It was made before, and this is what it is now.
    Before(Box<CallerRequest>),
    /// So many wait already that it was not.
    TooMany,
    /// The session is gone or has ended.
    Gone,
}

/// What became of an attempt to end a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Done,
    /// It has ended already, or its time is over.
    Late,
    NoSuchRequest,
}

#[async_trait]
pub trait Callers {
    async fn caller_tools(&self, session: SessionId) -> Result<Option<Declared>>;

    /// Makes a call: the row and the event that tells of it. The session waits for it if it waits for
    /// nothing else.
    async fn ask_caller(&self, request: &CallerRequest) -> Result<Asked>;

    /// A call by the agent's client's name for it.
    async fn caller_call(&self, session: SessionId, call_id: Uuid)
    -> Result<Option<CallerRequest>>;

    /// A call by the name that its caller knows it by.
    async fn caller_request(
        &self,
        session: SessionId,
        request_id: Uuid,
    ) -> Result<Option<CallerRequest>>;

    /// Calls of a session that are pending, oldest first.
    async fn pending_requests(&self, session: SessionId) -> Result<Vec<CallerRequest>>;

    /// Those of all sessions.
    async fn all_pending_requests(&self) -> Result<Vec<CallerRequest>>;

    /// Notes that the caller has got these.
    async fn hand_out(&self, session: SessionId, requests: &[Uuid]) -> Result<()>;

    /// Ends a call that is pending, with an event that tells of it. An answer must come in time.
    async fn settle_request(
        &self,
        session: SessionId,
        request_id: Uuid,
        ended: &Ended,
        event: Event,
        at: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Settled>;
}
