//! MCP sessions of clients whose protocol version has them. They are stored, so that a client
//! continues after the server restarts.

use jiff::SignedDuration;
use oubliette_model::{SessionId, TokenId, owns_session};
use oubliette_store::McpSession;

use crate::{Engine, Result};

/// Past this number, the token's session that was unused for longest is removed.
const MAX_SESSIONS_PER_TOKEN: u32 = 1000;
/// A client that is silent for longer must initialize again.
const SESSION_RETENTION: SignedDuration = SignedDuration::from_hours(24 * 7);

/// The verbs of MCP sessions; see [`Engine::mcp_sessions`].
#[derive(Debug, Clone, Copy)]
pub struct McpSessions<'a> {
    engine: &'a Engine,
}

/// An agent session whose events go to an MCP session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundSession {
    pub id: SessionId,
    /// The index after which its client needs the events.
    pub since: i64,
}

impl Engine {
    pub fn mcp_sessions(&self) -> McpSessions<'_> {
        McpSessions { engine: self }
    }
}

impl McpSessions<'_> {
    pub async fn find(self, id: &str) -> Result<Option<McpSession>> {
        Ok(self.engine.store().mcp_session(id).await?)
    }

    /// Adds or replaces a session. `state` is what the protocol layer needs to restore it.
    pub async fn save(self, id: &str, owner: TokenId, state: String) -> Result<()> {
        let session = McpSession {
            id: id.to_owned(),
            token_id: owner,
            state,
            seen_at: self.engine.now(),
        };
        let store = self.engine.store();
        Ok(store
            .put_mcp_session(&session, MAX_SESSIONS_PER_TOKEN)
            .await?)
    }

    pub async fn remove(self, id: &str) -> Result<()> {
        Ok(self.engine.store().remove_mcp_session(id).await?)
    }

    /// Records that clients have used these sessions, and removes sessions unused for a week.
    pub async fn record_use(self, ids: Vec<String>) -> Result<()> {
        let (store, now) = (self.engine.store(), self.engine.now());
        if !ids.is_empty() {
            store.touch_mcp_sessions(ids, now).await?;
        }
        store.trim_mcp_sessions(now - SESSION_RETENTION).await?;
        Ok(())
    }

    /// Sends the events of an agent session to this MCP session from now on, also after a restart.
    pub async fn bind(self, session: SessionId, mcp_session: &str) -> Result<()> {
        Ok(self
            .engine
            .store()
            .bind_session(session, mcp_session)
            .await?)
    }

    /// The agent sessions of `owner` that are bound to an MCP session, each with where its events
    /// resume: at the oldest request that the caller has not answered, or else with new events.
    pub async fn bound_sessions(
        self,
        mcp_session: &str,
        owner: TokenId,
    ) -> Result<Vec<BoundSession>> {
        let store = self.engine.store();
        let mut bound = Vec::new();
        for id in store.bound_sessions(mcp_session).await? {
            let Some(session) = store.session(id).await? else {
                continue;
            };
            if !owns_session(session.owner_id, owner) {
                continue;
            }
            let pending = store.pending_requests(id).await?;
            let first_pending = pending.iter().map(|request| request.event_index).min();
            let since = first_pending.unwrap_or(session.log_end) - 1;
            bound.push(BoundSession { id, since });
        }
        Ok(bound)
    }

    /// Whether events of an agent session may go to MCP sessions of this token: only to its owner's.
    pub async fn may_bind(self, token: TokenId, session: SessionId) -> bool {
        let found = self.engine.store().session(session).await;
        matches!(found, Ok(Some(session)) if owns_session(session.owner_id, token))
    }
}
