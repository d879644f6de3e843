//! Ties a connection from a container to the session whose agent was started there with the key that
//! the connection presents.

use oubliette_model::{ApiKey, KeyHash, SessionId};
use oubliette_runtime::ContainerId;
use oubliette_store::Session;

use super::Sessions;
use super::live_agent::LiveAgent;
use crate::Result;

/// A session that a connection has presented the key of. Its permissions are looked up on each call.
#[derive(Debug, Clone)]
pub struct AttachedSession {
    id: SessionId,
    key: KeyHash,
    container: ContainerId,
}

impl AttachedSession {
    pub fn id(&self) -> SessionId {
        self.id
    }
}

impl Sessions<'_> {
    /// Attaches a connection to a session; none if the session's id, key or container is not the right
    /// one.
    pub async fn attach(
        self,
        container: &ContainerId,
        session: &str,
        key: &str,
    ) -> Result<Option<AttachedSession>> {
        let (Ok(id), Ok(key)) = (session.parse(), key.parse::<ApiKey>()) else {
            return Ok(None);
        };
        let attached = AttachedSession {
            id,
            key: key.hash(),
            container: container.clone(),
        };
        let is_valid = self.resolve(&attached).await?.is_some();
        Ok(is_valid.then_some(attached))
    }

    /// The current state of an attached session; none if its agent has ended or was started again.
    pub async fn resolve(self, attached: &AttachedSession) -> Result<Option<Session>> {
        let session = self.engine.store().session(attached.id).await?;
        Ok(session.filter(|session| {
            let container = LiveAgent::from_session(session).map(|live| live.container);
            container.as_deref() == Some(attached.container.as_str())
                && session.key == Some(attached.key)
        }))
    }
}
