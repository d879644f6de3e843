//! MCP sessions in the engine's store: clients continue after a restart without noticing it.

use async_trait::async_trait;
use oubliette_engine::Engine;
use rmcp::transport::streamable_http_server::session::{
    SessionState, SessionStore, SessionStoreError,
};

use super::sessions::requesting_token;

pub(super) struct EngineSessionStore {
    engine: Engine,
}

impl EngineSessionStore {
    pub(super) fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

#[async_trait]
impl SessionStore for EngineSessionStore {
    async fn load(&self, id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        let Some(session) = self.engine.mcp_sessions().find(id).await? else {
            return Ok(None);
        };
        Ok(Some(serde_json::from_str(&session.state)?))
    }

    async fn store(&self, id: &str, state: &SessionState) -> Result<(), SessionStoreError> {
        let owner = requesting_token().ok_or("the request has no token")?;
        let state = serde_json::to_string(state)?;
        Ok(self.engine.mcp_sessions().save(id, owner, state).await?)
    }

    async fn delete(&self, id: &str) -> Result<(), SessionStoreError> {
        Ok(self.engine.mcp_sessions().remove(id).await?)
    }
}
