//! The registry of MCP sessions in memory: their owners, when clients last used them, and their open
//! streams.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::Stream;
use oubliette_engine::Engine;
use oubliette_model::TokenId;
use parking_lot::Mutex;
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId};
use tokio_util::sync::CancellationToken;

use super::streams;
use crate::tasks::Tasks;

/// An MCP session without a stream that is unused for longer leaves memory. It stays in the store,
/// and the client's next message restores it.
const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Past this number, the token's session that was unused for longest and has no stream leaves memory. If
/// all have one, there is no further session.
pub(super) const MAX_SESSIONS_PER_TOKEN: usize = 256;

#[derive(Debug)]
pub(super) struct SessionRegistry {
    engine: Engine,
    tasks: Tasks,
    sessions: Mutex<HashMap<SessionId, RegisteredSession>>,
    draining: CancellationToken,
}

#[derive(Debug)]
struct RegisteredSession {
    owner: TokenId,
    last_used: Instant,
    /// Whether a client used it since its use was last recorded in the store.
    has_unrecorded_use: bool,
    open_streams: usize,
    understands_empty_events: bool,
}

/// Whether a token can have one more session in memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// This idle session must leave memory first.
    AfterClosing(SessionId),
    Full,
}

impl SessionRegistry {
    pub(super) fn new(engine: Engine, tasks: Tasks) -> Self {
        Self {
            engine,
            tasks,
            sessions: Mutex::default(),
            draining: CancellationToken::new(),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The number of MCP sessions in memory, and of open streams.
    pub(super) fn counts(&self) -> (usize, usize) {
        let sessions = self.sessions.lock();
        let streams = sessions.values().map(|session| session.open_streams).sum();
        (sessions.len(), streams)
    }

    pub(super) fn drain(&self) {
        self.draining.cancel();
    }

    pub(super) fn insert(&self, id: SessionId, owner: Option<TokenId>) {
        if let Some(owner) = owner {
            let session = RegisteredSession {
                owner,
                last_used: Instant::now(),
                has_unrecorded_use: false,
                open_streams: 0,
                understands_empty_events: false,
            };
            self.sessions.lock().entry(id).or_insert(session);
        }
    }

    pub(super) fn remove(&self, id: &SessionId) {
        self.sessions.lock().remove(id);
    }

    /// Whether an MCP session exists and belongs to this token. Counts as a use of the session.
    pub(super) async fn belongs_to(&self, id: &str, token: TokenId) -> bool {
        if let Some(session) = self.sessions.lock().get_mut(id) {
            session.last_used = Instant::now();
            session.has_unrecorded_use = true;
            return session.owner == token;
        }
        match self.engine.mcp_sessions().find(id).await {
            Ok(session) => session.is_some_and(|session| session.token_id == token),
            Err(error) => {
                tracing::error!(%error, "could not look up an MCP session");
                false
            }
        }
    }

    pub(super) fn idle_sessions(&self, now: Instant) -> Vec<SessionId> {
        let is_idle = |session: &RegisteredSession| {
            let unused = now.duration_since(session.last_used);
            session.open_streams == 0 && unused > SESSION_IDLE_TIMEOUT
        };
        let sessions = self.sessions.lock();
        let idle = sessions.iter().filter(|(_, session)| is_idle(session));
        idle.map(|(id, _)| id.clone()).collect()
    }

    /// Whether a token can have one more session in memory.
    pub(super) fn room(&self, owner: Option<TokenId>) -> Room {
        let sessions = self.sessions.lock();
        let owned = || {
            sessions
                .iter()
                .filter(|(_, session)| Some(session.owner) == owner)
        };
        if owned().count() < MAX_SESSIONS_PER_TOKEN {
            return Room::Free;
        }
        let idle = owned().filter(|(_, session)| session.open_streams == 0);
        let oldest = idle.min_by_key(|(_, session)| session.last_used);
        oldest.map_or(Room::Full, |(id, _)| Room::AfterClosing(id.clone()))
    }

    pub(super) fn set_understands_empty_events(&self, id: &SessionId) {
        if let Some(session) = self.sessions.lock().get_mut(id) {
            session.understands_empty_events = true;
        }
    }

    /// Records in the store which sessions were used since the last time.
    pub(super) async fn record_use(&self) {
        let used: Vec<String> = self
            .sessions
            .lock()
            .iter_mut()
            .filter_map(|(id, session)| {
                std::mem::take(&mut session.has_unrecorded_use).then(|| id.to_string())
            })
            .collect();
        if let Err(error) = self.engine.mcp_sessions().record_use(used).await {
            tracing::warn!(%error, "could not record the use of MCP sessions");
        }
    }

    /// Counts a stream until the guard is dropped. A session with a stream is not idle.
    pub(super) fn count_stream(self: &Arc<Self>, id: &SessionId) -> StreamGuard {
        let mut understands_empty_events = false;
        if let Some(session) = self.sessions.lock().get_mut(id) {
            session.open_streams += 1;
            understands_empty_events = session.understands_empty_events;
        }
        StreamGuard {
            registry: self.clone(),
            id: id.clone(),
            understands_empty_events,
        }
    }

    /// A stream to the session's client that ends with its token, and when the server drains.
    pub(super) fn stream<S>(
        self: &Arc<Self>,
        id: &SessionId,
        inner: S,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static + use<S>
    where
        S: Stream<Item = ServerSseMessage> + Send + 'static,
    {
        let counted = self.count_stream(id);
        let inner = streams::understood_by(counted.understands_empty_events(), inner);
        // A caller with an open stream counts as connected: it gets events and can respond.
        let connected = self.engine.callers().open_stream(id);
        let owner = self.sessions.lock().get(id).map(|session| session.owner);
        let (engine, draining) = (self.engine.clone(), self.draining.clone());
        let end = async move {
            let token_ended = async {
                match owner {
                    Some(owner) => engine.tokens().wait_until_ended(owner).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = token_ended => {}
                () = draining.cancelled() => {}
            }
        };
        let queued = streams::through_queue(&self.tasks, inner, end);
        streams::with_guard(queued, (counted, connected))
    }
}

/// Counts an open stream of an MCP session while it lives.
#[derive(Debug)]
pub(super) struct StreamGuard {
    registry: Arc<SessionRegistry>,
    id: SessionId,
    understands_empty_events: bool,
}

impl StreamGuard {
    /// Whether the session's client understands events without data.
    pub(super) fn understands_empty_events(&self) -> bool {
        self.understands_empty_events
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if let Some(session) = self.registry.sessions.lock().get_mut(&self.id) {
            session.open_streams = session.open_streams.saturating_sub(1);
            session.last_used = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn registry() -> (tempfile::TempDir, Arc<SessionRegistry>) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("oubliette.db");
        let store = Arc::new(oubliette_store::sqlite::Sqlite::open(&path).unwrap());
        let settings = oubliette_engine::Settings::defaults(home.path());
        let engine = Engine::start(store, settings, std::future::ready(Err("none".to_owned())))
            .await
            .unwrap();
        let registry = SessionRegistry::new(engine, Tasks::default());
        (home, Arc::new(registry))
    }

    fn token(n: u128) -> Option<TokenId> {
        Some(TokenId::new(uuid::Uuid::from_u128(n)))
    }

    #[tokio::test]
    async fn sessions_without_a_stream_become_idle() {
        let (_home, registry) = registry().await;
        let (silent, streaming): (SessionId, SessionId) = ("a".into(), "b".into());
        registry.insert(silent.clone(), token(1));
        registry.insert(streaming.clone(), token(1));
        let stream = registry.stream(&streaming, futures_util::stream::pending());
        assert!(registry.idle_sessions(Instant::now()).is_empty());
        let later = Instant::now() + SESSION_IDLE_TIMEOUT + Duration::from_secs(1);
        assert_eq!(registry.idle_sessions(later), [silent]);
        assert_eq!(registry.counts(), (2, 1));
        drop(stream);
        assert_eq!(registry.counts(), (2, 0));
    }

    #[tokio::test]
    async fn the_number_of_sessions_of_one_token_is_bounded() {
        let (_home, registry) = registry().await;
        assert_eq!(registry.room(token(1)), Room::Free);
        for n in 0..MAX_SESSIONS_PER_TOKEN {
            registry.insert(format!("{n}").into(), token(1));
        }
        registry.insert("other".into(), token(2));
        assert_eq!(registry.room(token(1)), Room::AfterClosing("0".into()));
        assert_eq!(registry.room(token(2)), Room::Free);
        let ids = (0..MAX_SESSIONS_PER_TOKEN).map(|n| SessionId::from(format!("{n}")));
        let mut open: Vec<_> = ids.map(|id| registry.count_stream(&id)).collect();
        assert_eq!(registry.room(token(1)), Room::Full);
        open.pop();
        let last = format!("{}", MAX_SESSIONS_PER_TOKEN - 1);
        assert_eq!(registry.room(token(1)), Room::AfterClosing(last.into()));
    }
}
