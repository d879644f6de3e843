//! MCP sessions that are being restored after a restart.
//!
//! rmcp adds a session to its map before it has replayed the handshake. A second request that finds it there would
//! be the first message that the session's service reads, which ends the service. So requests wait until the
//! handshake is replayed, and a session whose restoring request went away is removed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::SessionId;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use tokio::sync::watch;

use super::registry::SessionRegistry;
use crate::tasks::Tasks;

/// The sessions whose handshake is not replayed yet. Dropping an entry wakes the requests that wait for it.
#[derive(Debug, Default)]
pub(super) struct Restores(Mutex<HashMap<SessionId, watch::Sender<()>>>);

impl Restores {
    /// Returns when a session is not being restored.
    pub(super) async fn wait(&self, id: &SessionId) {
        let receiver = self.0.lock().get(id).map(watch::Sender::subscribe);
        if let Some(mut receiver) = receiver {
            // An error: the sender is dropped at the end.
            let _ = receiver.changed().await;
        }
    }
}

/// A session that the current request restores. Without [`Restore::complete`] the session is removed again.
pub(super) struct Restore {
    id: SessionId,
    restores: Arc<Restores>,
    inner: Arc<LocalSessionManager>,
    registry: Arc<SessionRegistry>,
    tasks: Tasks,
    is_complete: bool,
}

impl Restore {
    pub(super) fn begin(
        id: SessionId,
        restores: &Arc<Restores>,
        inner: &Arc<LocalSessionManager>,
        registry: &Arc<SessionRegistry>,
        tasks: &Tasks,
    ) -> Self {
        restores.0.lock().insert(id.clone(), watch::Sender::new(()));
        Self {
            id,
            restores: restores.clone(),
            inner: inner.clone(),
            registry: registry.clone(),
            tasks: tasks.clone(),
            is_complete: false,
        }
    }

    pub(super) fn is_of(&self, id: &SessionId) -> bool {
        self.id == *id
    }

    /// The handshake is replayed: what other requests send now comes after it.
    pub(super) fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if self.is_complete {
            self.restores.0.lock().remove(&self.id);
            return;
        }
        self.registry.remove(&self.id);
        let (id, inner, restores) = (self.id.clone(), self.inner.clone(), self.restores.clone());
        self.tasks.spawn(async move {
            if let Err(error) = inner.close_session(&id).await {
                tracing::debug!(%error, "could not close an MCP session that was not restored");
            }
            // Only now, so that the next request restores it anew.
            restores.0.lock().remove(&id);
        });
    }
}
