//! Storage of MCP sessions, for clients whose protocol version has sessions, so that they survive a
//! restart.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{SessionId, TokenId};

use crate::Result;

/// An MCP session as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct McpSession {
    pub id: String,
    /// The token that opened the session.
    pub token_id: TokenId,
    /// What the protocol layer needs to restore the session; opaque to the store.
    pub state: String,
    pub seen_at: Timestamp,
}

#[async_trait]
pub trait McpSessionStore {
    /// Adds or replaces a session. If its token then has more than `max_sessions`, the least recently
    /// seen ones are deleted.
    async fn put_mcp_session(&self, session: &McpSession, max_sessions: u32) -> Result<()>;

    async fn mcp_session(&self, id: &str) -> Result<Option<McpSession>>;

    /// Records the MCP session that last named a session. Does nothing if either does not exist.
    async fn bind_session(&self, session: SessionId, mcp_session: &str) -> Result<()>;

    /// Returns the sessions that were last named in an MCP session.
    async fn bound_sessions(&self, mcp_session: &str) -> Result<Vec<SessionId>>;

    /// Sets the time at which the sessions were last seen.
    async fn touch_mcp_sessions(&self, ids: Vec<String>, now: Timestamp) -> Result<()>;

    async fn remove_mcp_session(&self, id: &str) -> Result<()>;

    /// Deletes sessions not seen since `before` and returns their number.
    async fn trim_mcp_sessions(&self, before: Timestamp) -> Result<usize>;
}
