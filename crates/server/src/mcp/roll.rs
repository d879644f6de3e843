//! Which MCP sessions are in memory, whose they are, and when they were last seen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::Stream;
use jiff::SignedDuration;
use oubliette_engine::Engine;
use oubliette_model::TokenId;
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId};
use tokio_util::sync::CancellationToken;

use super::streams;

/// A session without a stream that is silent for so long leaves the memory; the store still knows
/// it, and the client's next message brings it back.
const IDLE: Duration = Duration::from_secs(300);
/// Sessions of one token in memory; past it, its longest unseen one without a stream leaves.
const PER_TOKEN: usize = 200;
/// A client that is silent for so long must initialize anew.
const FORGOTTEN: SignedDuration = SignedDuration::from_hours(24 * 7);

#[derive(Debug)]
pub(super) struct Roll {
    engine: Engine,
    live: Mutex<HashMap<SessionId, Live>>,
    draining: CancellationToken,
}

#[derive(Debug)]
struct Live {
    owner: TokenId,
    seen: Instant,
    /// Whether it was seen since the store was told last.
    fresh: bool,
    streams: usize,
}

impl Roll {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine,
            live: Mutex::default(),
            draining: CancellationToken::new(),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        let live = self.live();
        (
            live.len(),
            live.values().map(|session| session.streams).sum(),
        )
    }

    pub(super) fn drain(&self) {
        self.draining.cancel();
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SessionId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, id: SessionId, owner: Option<TokenId>) {
        if let Some(owner) = owner {
            let live = Live {
                owner,
                seen: Instant::now(),
                fresh: false,
                streams: 0,
            };
            self.live().entry(id).or_insert(live);
        }
    }

    pub(super) fn leave(&self, id: &SessionId) {
        self.live().remove(id);
    }

    /// Whether a session is this token's; a session that does not exist is nobody's.
    pub(super) async fn belongs_to(&self, id: &str, token: TokenId) -> bool {
        if let Some(session) = self.live().get_mut(id) {
            session.seen = Instant::now();
            session.fresh = true;
            return session.owner == token;
        }
        match self.engine.store().mcp_session(id).await {
            Ok(session) => session.is_some_and(|session| session.token_id == token),
            Err(error) => {
                tracing::error!(%error, "an MCP session could not be looked up");
                false
            }
        }
    }

    /// Sessions that nobody has used for a while.
    pub(super) fn idle(&self, now: Instant) -> Vec<SessionId> {
        let live = self.live();
        let idle = |live: &Live| live.streams == 0 && now.duration_since(live.seen) > IDLE;
        live.iter()
            .filter(|(_, live)| idle(live))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// The session that must leave so that a token does not hold too many.
    pub(super) fn surplus(&self, owner: Option<TokenId>) -> Option<SessionId> {
        let live = self.live();
        let own = || {
            live.iter()
                .filter(|(_, session)| Some(session.owner) == owner)
        };
        if own().count() <= PER_TOKEN {
            return None;
        }
        let idle = own().filter(|(_, session)| session.streams == 0);
        idle.min_by_key(|(_, session)| session.seen)
            .map(|(id, _)| id.clone())
    }

    /// Tells the store which sessions were seen, and has it forget the others in time.
    pub(super) async fn tell_store(&self) {
        let fresh: Vec<String> = self
            .live()
            .iter_mut()
            .filter_map(|(id, live)| std::mem::take(&mut live.fresh).then(|| id.to_string()))
            .collect();
        let store = self.engine.store();
        let now = self.engine.now();
        let told = async {
            if !fresh.is_empty() {
                store.touch_mcp_sessions(fresh, now).await?;
            }
            store.trim_mcp_sessions(now - FORGOTTEN).await
        };
        if let Err(error) = told.await {
            tracing::warn!(%error, "MCP sessions could not be kept up to date in the store");
        }
    }

    /// Keeps a session from being given up as idle.
    pub(super) fn busy(self: &Arc<Self>, id: &SessionId) -> OpenStream {
        OpenStream::new(self.clone(), id.clone())
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
        let open = OpenStream::new(self.clone(), id.clone());
        // Whoever reads it is told of what happens, and can answer.
        let line = self.engine.callers().open_stream(id);
        let owner = self.live().get(id).map(|live| live.owner);
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
        streams::held(streams::queued(inner, end), (open, line))
    }
}

/// Counts a stream for as long as somebody holds its reading end.
#[derive(Debug)]
pub(super) struct OpenStream {
    roll: Arc<Roll>,
    id: SessionId,
}

impl OpenStream {
    fn new(roll: Arc<Roll>, id: SessionId) -> Self {
        if let Some(live) = roll.live().get_mut(&id) {
            live.streams += 1;
        }
        Self { roll, id }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if let Some(live) = self.roll.live().get_mut(&self.id) {
            live.streams = live.streams.saturating_sub(1);
            live.seen = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn roll() -> (tempfile::TempDir, Arc<Roll>) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("oubliette.db");
        let store = Arc::new(oubliette_store::sqlite::Sqlite::open(&path).unwrap());
        let settings = oubliette_engine::Settings::defaults(home.path());
        let engine = Engine::start(store, settings, std::future::ready(Err("none".to_owned())))
            .await
            .unwrap();
        (home, Arc::new(Roll::new(engine)))
    }

    fn token(n: u128) -> Option<TokenId> {
        Some(TokenId::new(uuid::Uuid::from_u128(n)))
    }

    #[tokio::test]
    async fn idle_sessions_are_given_up_and_those_with_a_stream_are_not() {
        let (_home, roll) = roll().await;
        let (silent, streaming): (SessionId, SessionId) = ("a".into(), "b".into());
        roll.enter(silent.clone(), token(1));
        roll.enter(streaming.clone(), token(1));
        let stream = roll.stream(&streaming, futures_util::stream::pending());
        assert!(roll.idle(Instant::now()).is_empty());
        let later = Instant::now() + IDLE + Duration::from_secs(1);
        assert_eq!(roll.idle(later), [silent]);
        assert_eq!(roll.counts(), (2, 1));
        drop(stream);
        assert_eq!(roll.counts(), (2, 0));
    }

    #[tokio::test]
    async fn one_token_cannot_fill_the_memory() {
        let (_home, roll) = roll().await;
        for n in 0..=PER_TOKEN {
            roll.enter(format!("{n}").into(), token(1));
        }
        roll.enter("other".into(), token(2));
        assert_eq!(roll.surplus(token(1)), Some("0".into()));
        assert_eq!(roll.surplus(token(2)), None);
    }
}
