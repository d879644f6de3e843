//! Storage of caller tools: the tools that the caller of a session declared, and the requests to run
//! them.
//!
//! A request is pending until one conditional update ends it. Later attempts to end it get
//! [`EndRequestOutcome::Late`].

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{CallerToolOutcome, Event, SessionId, TokenId};
use serde_json::Value;
use uuid::Uuid;

use crate::{AuditEntry, Result, Session};

/// The maximum number of pending requests of one session.
pub const MAX_PENDING_REQUESTS: u32 = 1000;
/// The maximum total size of the arguments of the pending requests of one session.
pub const MAX_PENDING_REQUEST_BYTES: i64 = 16 << 20;

/// The tools that a caller declares with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolDeclaration {
    pub caller_id: String,
    /// The tools as JSON; opaque to the store.
    pub tools: String,
    /// Must be the token that owns the session. If the owner is no longer valid, this token becomes
    /// the owner.
    pub token_id: TokenId,
}

/// The tools that are declared for a session, as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredTools {
    pub caller_id: String,
    pub tools: String,
}

/// A request to run a caller tool.
#[derive(Debug, Clone, PartialEq)]
pub struct CallerRequest {
    pub session_id: SessionId,
    pub request_id: Uuid,
    /// The id that the client in the container gave to the call.
    pub call_id: Uuid,
    pub tool: String,
    pub arguments: Value,
    pub asked_at: Timestamp,
    pub deadline: Timestamp,
    /// The index of its event in the log; set by the store.
    pub event_index: i64,
    /// Whether the caller has received the request in a response.
    pub delivered: bool,
    /// `None` while the request is pending.
    pub result: Option<CallerRequestResult>,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub struct CallerRequestResult {
    pub outcome: CallerToolOutcome,
    /// The result, or an error text.
    pub answer: Value,
}

/// The outcome of [`CallerStore::add_caller_request`].
#[derive(Debug, Clone, PartialEq)]
pub enum AddRequestOutcome {
    /// The request was added; this is the session before that.
    Added(Box<Session>),
    /// A request with the same call id exists; this is its current state.
    Existing(Box<CallerRequest>),
    /// [`MAX_PENDING_REQUESTS`] or [`MAX_PENDING_REQUEST_BYTES`] would be exceeded.
    TooManyPending,
    /// The session does not exist or has ended.
    SessionGone,
}

/// The outcome of [`CallerStore::end_caller_request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndRequestOutcome {
    Done,
    /// The request has already ended, or its deadline has passed.
    Late,
    NoSuchRequest,
}

#[async_trait]
pub trait CallerStore {
    async fn caller_tools(&self, session: SessionId) -> Result<Option<DeclaredTools>>;

    /// Adds a request and its event. A running session then waits for the request.
    async fn add_caller_request(&self, request: &CallerRequest) -> Result<AddRequestOutcome>;

    /// Returns a request by the id that the client in the container gave to the call.
    async fn caller_request_by_call(
        &self,
        session: SessionId,
        call_id: Uuid,
    ) -> Result<Option<CallerRequest>>;

    /// Returns a request by the id that the caller knows.
    async fn caller_request(
        &self,
        session: SessionId,
        request_id: Uuid,
    ) -> Result<Option<CallerRequest>>;

    /// Returns the pending requests of a session, oldest first.
    async fn pending_requests(&self, session: SessionId) -> Result<Vec<CallerRequest>>;

    /// Returns the pending requests of all sessions, oldest first.
    async fn all_pending_requests(&self) -> Result<Vec<CallerRequest>>;

    /// Records that the caller has received these requests.
    async fn mark_delivered(&self, session: SessionId, requests: &[Uuid]) -> Result<()>;

    /// Ends a pending request and appends `event`. An answer is accepted only before the deadline.
    async fn end_caller_request(
        &self,
        session: SessionId,
        request_id: Uuid,
        result: &CallerRequestResult,
        event: Event,
        at: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<EndRequestOutcome>;
}
