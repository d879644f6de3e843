//! MCP sessions in the store, so that clients go on after a restart without noticing it.

use async_trait::async_trait;
use oubliette_engine::Engine;
use oubliette_store::McpSession;
use rmcp::transport::streamable_http_server::session::{
    SessionState, SessionStore, SessionStoreError,
};

use super::sessions::caller;

/// Sessions remembered for one token; its longest unseen ones make room.
const PER_TOKEN: u32 = 1000;

pub(super) struct StoredSessions {
    engine: Engine,
}

impl StoredSessions {
    pub(super) fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

#[async_trait]
impl SessionStore for StoredSessions {
    async fn load(&self, id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        let Some(session) = self.engine.store().mcp_session(id).await? else {
            return Ok(None);
        };
        Ok(Some(serde_json::from_str(&session.state)?))
    }

    async fn store(&self, id: &str, state: &SessionState) -> Result<(), SessionStoreError> {
        let token_id = caller().ok_or("an MCP session was opened by nobody")?;
        let session = McpSession {
            id: id.to_owned(),
            token_id,
            state: serde_json::to_string(state)?,
            seen_at: self.engine.now(),
        };
        Ok(self
            .engine
            .store()
            .put_mcp_session(&session, PER_TOKEN)
            .await?)
    }

    async fn delete(&self, id: &str) -> Result<(), SessionStoreError> {
        Ok(self.engine.store().remove_mcp_session(id).await?)
    }
}
