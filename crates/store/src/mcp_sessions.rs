//! MCP sessions of clients that speak a protocol with sessions: kept so that they survive a restart.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{SessionId, TokenId};

use crate::Result;

/// An MCP session, the token that opened it, and what the protocol layer needs to go on with it.
#[derive(Debug, Clone, PartialEq)]
pub struct McpSession {
    pub id: String,
    pub token_id: TokenId,
    pub state: String,
    pub seen_at: Timestamp,
}

#[async_trait]
pub trait McpSessions {
    /// Adds or replaces a session. Past `keep` sessions of one token its longest unseen one goes.
    async fn put_mcp_session(&self, session: &McpSession, keep: u32) -> Result<()>;

    async fn mcp_session(&self, id: &str) -> Result<Option<McpSession>>;

    /// Notes in which MCP session a session was named last. One that is gone is not noted.
    async fn bind_session(&self, session: SessionId, mcp_session: &str) -> Result<()>;

    /// The sessions that were named last in an MCP session.
    async fn bound_sessions(&self, mcp_session: &str) -> Result<Vec<SessionId>>;

    async fn touch_mcp_sessions(&self, ids: Vec<String>, now: Timestamp) -> Result<()>;

    async fn remove_mcp_session(&self, id: &str) -> Result<()>;

    /// Forgets sessions not seen since `before`; how many.
    async fn trim_mcp_sessions(&self, before: Timestamp) -> Result<usize>;
}
