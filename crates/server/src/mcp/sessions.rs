//! MCP sessions of clients up to protocol 2025-11-25.
//!
//! Wraps rmcp's session manager and adds what it lacks: owners, a bound on the sessions of a token,
//! streams that a stalled reader cannot block, first events without data only for clients that
//! understand them, requests that wait for a session that is being restored, and the removal of idle sessions.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use http::header::RETRY_AFTER;
use http::{Method, StatusCode};
use oubliette_engine::{Actor, Engine};
use oubliette_model::TokenId;
use rmcp::model::{
    ClientJsonRpcMessage, GetMeta, ProtocolVersion, ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError,
};
use rmcp::transport::streamable_http_server::session::{
    RestoreOutcome, ServerSseMessage, SessionId,
};

use super::registry::{MAX_SESSIONS_PER_TOKEN, Room, SessionRegistry};
use super::restores::{Restore, Restores};
use super::{SSE_RETRY_DELAY, streams};
use crate::tasks::Tasks;

const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(30);
/// How long a reply is kept for a client that lost its connection while waiting for it.
const REPLY_CACHE_TTL: Duration = Duration::from_secs(1);

tokio::task_local! {
    static REQUEST: RequestState;
}

/// What the layers above and below rmcp tell each other about a request.
struct RequestState {
    token: TokenId,
    /// Whether no MCP session was opened for it because its token has too many.
    is_refused: Cell<bool>,
    /// The MCP session that it restores. It ends with the request.
    restore: RefCell<Option<Restore>>,
}

/// The token whose request is being served.
pub(super) fn requesting_token() -> Option<TokenId> {
    REQUEST.try_with(|request| request.token).ok()
}

/// All MCP sessions in memory.
#[derive(Debug)]
pub(crate) struct McpSessionManager {
    inner: Arc<LocalSessionManager>,
    restores: Arc<Restores>,
    registry: Arc<SessionRegistry>,
    tasks: Tasks,
}

impl McpSessionManager {
    pub(crate) fn start(engine: Engine, tasks: Tasks) -> Arc<Self> {
        let mut inner = LocalSessionManager::default();
        // `run_maintenance` closes idle sessions: rmcp would also close those with a silent open stream.
        inner.session_config.keep_alive = None;
        inner.session_config.completed_cache_ttl = REPLY_CACHE_TTL;
        inner.session_config.sse_retry = Some(SSE_RETRY_DELAY);
        let sessions = Arc::new(Self {
            inner: Arc::new(inner),
            restores: Arc::default(),
            registry: Arc::new(SessionRegistry::new(engine, tasks.clone())),
            tasks: tasks.clone(),
        });
        tasks.spawn(sessions.clone().run_maintenance());
        sessions
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.registry.engine()
    }

    /// The number of MCP sessions in memory, and of open streams.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.registry.counts()
    }

    /// Ends all standalone streams, which have no end of their own.
    pub(crate) fn drain(&self) {
        self.registry.drain();
    }

    /// Makes room for one more MCP session of the requesting token, or refuses it.
    async fn make_room(&self) -> Result<(), LocalSessionManagerError> {
        match self.registry.room(requesting_token()) {
            Room::Free => Ok(()),
            Room::AfterClosing(idle) => self.close_session(&idle).await,
            Room::Full => {
                let _ = REQUEST.try_with(|request| request.is_refused.set(true));
                let id = SessionId::from("");
                Err(LocalSessionManagerError::SessionNotFound(id))
            }
        }
    }

    async fn run_maintenance(self: Arc<Self>) {
        loop {
            tokio::time::sleep(MAINTENANCE_INTERVAL).await;
            for id in self.registry.idle_sessions(Instant::now()) {
                if let Err(error) = self.close_session(&id).await {
                    tracing::debug!(%error, "could not close an idle MCP session");
                }
            }
            self.registry.record_use().await;
        }
    }
}

/// The middleware before the endpoint: only the token that opened an MCP session can use, read and
/// end it. For any other token it does not exist.
pub(crate) async fn require_session_owner(
    State(sessions): State<Arc<McpSessionManager>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(token) = request
        .extensions()
        .get::<Actor>()
        .map(|actor| actor.token_id)
    else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let session_id = request
        .headers()
        .get("mcp-session-id")
        .map(|id| id.to_str().unwrap_or_default());
    if let Some(id) = session_id
        && !sessions.registry.belongs_to(id, token).await
    {
        return (StatusCode::NOT_FOUND, "Not Found: Session not found").into_response();
    }
    let is_delete = request.method() == Method::DELETE;
    let state = RequestState {
        token,
        is_refused: Cell::new(false),
        restore: RefCell::default(),
    };
    let running = async {
        let response = next.run(request).await;
        (response, REQUEST.with(|request| request.is_refused.get()))
    };
    let (mut response, is_refused) = REQUEST.scope(state, running).await;
    if is_refused {
        return too_many_sessions();
    }
    // Some clients treat 202 as a failure to end the session.
    if is_delete && response.status() == StatusCode::ACCEPTED {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    response
}

fn too_many_sessions() -> Response {
    let text = format!(
        "this token has {MAX_SESSIONS_PER_TOKEN} MCP sessions with open streams or calls in flight, as \
         many as it may have; close some, or use a token per client\n"
    );
    (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], text).into_response()
}

/// Whether the client of an MCP session understands events without data. Clients of older protocol
/// versions read every event as a message, and some end the connection at one without data.
fn understands_empty_events(initialized: &ServerJsonRpcMessage) -> bool {
    let ServerJsonRpcMessage::Response(response) = initialized else {
        return false;
    };
    match &response.result {
        // Versions are dates, which sort as text.
        ServerResult::InitializeResult(result) => {
            result.protocol_version.as_str() >= ProtocolVersion::V_2025_11_25.as_str()
        }
        _ => false,
    }
}

impl SessionManager for McpSessionManager {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        self.make_room().await?;
        let (id, transport) = self.inner.create_session().await?;
        self.registry.insert(id.clone(), requesting_token());
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        let response = self.inner.initialize_session(id, message).await?;
        if understands_empty_events(&response) {
            self.registry.set_understands_empty_events(id);
        }
        Ok(response)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.restores.wait(id).await;
        self.inner.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.registry.remove(id);
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        // Only a request with a progress token can get more messages than rmcp's queue holds.
        let wants_progress = match &message {
            ClientJsonRpcMessage::Request(request) => {
                request.request.get_meta().get_progress_token().is_some()
            }
            _ => false,
        };
        // A session with a call in flight is not idle.
        let counted = self.registry.count_stream(id);
        let inner = self.inner.create_stream(id, message).await?;
        let inner = streams::understood_by(counted.understands_empty_events(), inner);
        let stream = if wants_progress {
            let never = std::future::pending();
            streams::through_queue(&self.tasks, inner, never).left_stream()
        } else {
            inner.right_stream()
        };
        Ok(streams::with_guard(stream, counted))
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        self.inner.accept_message(id, message).await?;
        // The second and last message of a replayed handshake.
        let replayed = REQUEST.try_with(|request| {
            let mut restore = request.restore.borrow_mut();
            restore.take_if(|restore| restore.is_of(id))
        });
        if let Ok(Some(restore)) = replayed {
            restore.complete();
        }
        Ok(())
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let inner = self.inner.create_standalone_stream(id).await?;
        let first = ServerSseMessage::priming("0", SSE_RETRY_DELAY);
        let inner = futures_util::stream::iter([first]).chain(inner);
        Ok(self.registry.stream(id, inner))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let inner = self.inner.resume(id, last_event_id).await?;
        Ok(self.registry.stream(id, inner))
    }

    async fn restore_session(
        &self,
        id: SessionId,
    ) -> Result<RestoreOutcome<Self::Transport>, Self::Error> {
        self.make_room().await?;
        let restore = Restore::begin(
            id.clone(),
            &self.restores,
            &self.inner,
            &self.registry,
            &self.tasks,
        );
        let outcome = self.inner.restore_session(id.clone()).await?;
        if !matches!(outcome, RestoreOutcome::Restored(_)) {
            restore.complete();
            return Ok(outcome);
        }
        self.registry.insert(id, requesting_token());
        let _ = REQUEST.try_with(|request| request.restore.replace(Some(restore)));
        Ok(outcome)
    }
}
