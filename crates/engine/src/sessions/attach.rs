//! Who speaks for a session: the one that shows the key which the session's agent was started with,
//! from the container that the agent runs in.

use oubliette_model::{ApiKey, KeyHash, SessionId};
use oubliette_runtime::ContainerId;
use oubliette_store::Session;

use super::live::Live;
use crate::{Engine, Result};

/// A connection that has shown the key of a session. What it may do is looked up with each call.
#[derive(Debug, Clone)]
pub struct Speaker {
    session: SessionId,
    key: KeyHash,
    container: ContainerId,
}

impl Speaker {
    pub fn session(&self) -> SessionId {
        self.session
    }
}

impl Engine {
    /// Recognises who speaks for a session; none if the session, its key or its container is
    /// another.
    pub async fn attach(
        &self,
        container: &ContainerId,
        session: &str,
        key: &str,
    ) -> Result<Option<Speaker>> {
        let (Ok(session), Ok(key)) = (session.parse(), key.parse::<ApiKey>()) else {
            return Ok(None);
        };
        let speaker = Speaker {
            session,
            key: key.hash(),
            container: container.clone(),
        };
        let known = self.speaking(&speaker).await?.is_some();
        Ok(known.then_some(speaker))
    }

    /// The session that somebody speaks for, as it is now; none if it has no agent any more, or
    /// another one.
    pub async fn speaking(&self, speaker: &Speaker) -> Result<Option<Session>> {
        let session = self.store().session(speaker.session).await?;
        Ok(session.filter(|session| {
            let live = session.live.as_deref();
            let live = live.and_then(|live| serde_json::from_str::<Live>(live).ok());
            let here = live.is_some_and(|live| live.container == speaker.container.as_str());
            here && session.key == Some(speaker.key)
        }))
    }
}
