//! MCP sessions of clients up to 2025-11-25: whose they are, when they were last seen, and streams
//! that cannot hold anything up.
//!
//! Around rmcp's own sessions, which know no owner, are blocked by a reader that stops reading,
//! and are never given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use http::{Method, StatusCode};
use oubliette_engine::{Actor, Engine};
use oubliette_model::TokenId;
use rmcp::model::{ClientJsonRpcMessage, GetMeta, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError,
};
use rmcp::transport::streamable_http_server::session::{
    RestoreOutcome, ServerSseMessage, SessionId,
};
use tokio_util::sync::CancellationToken;

use super::roll::Roll;
use super::streams;

const ROUND: Duration = Duration::from_secs(30);
/// Replies that are kept for a client which lost its connection while waiting for one.
const REPLIES_KEPT: Duration = Duration::from_secs(1);

tokio::task_local! {
    static CALLER: TokenId;
}

/// The token whose request is being served.
pub(super) fn caller() -> Option<TokenId> {
    CALLER.try_with(|token| *token).ok()
}

/// All MCP sessions in memory.
#[derive(Debug)]
pub(crate) struct Sessions {
    inner: LocalSessionManager,
    roll: Arc<Roll>,
}

impl Sessions {
    pub(crate) fn start(engine: Engine, closing: CancellationToken) -> Arc<Self> {
        let mut inner = LocalSessionManager::default();
        // We give sessions up ourselves: rmcp would also end those that have a silent open stream.
        inner.session_config.keep_alive = None;
        inner.session_config.completed_cache_ttl = REPLIES_KEPT;
        let sessions = Arc::new(Self {
            inner,
            roll: Arc::new(Roll::new(engine)),
        });
        tokio::spawn(sessions.clone().keep_house(closing));
        sessions
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.roll.engine()
    }

    /// Sessions in memory, and open streams.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.roll.counts()
    }

    /// Ends all streams that would not end by themselves.
    pub(crate) fn drain(&self) {
        self.roll.drain();
    }

    async fn keep_house(self: Arc<Self>, closing: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(ROUND) => {}
                () = closing.cancelled() => return,
            }
            for id in self.roll.idle(Instant::now()) {
                if let Err(error) = self.close_session(&id).await {
                    tracing::debug!(%error, "an idle MCP session could not be closed");
                }
            }
            self.roll.tell_store().await;
        }
    }
}

/// The middleware before the endpoint: an MCP session is used, read and ended only by the token
/// that opened it. To any other it does not exist.
pub(crate) async fn bind_session(
    State(sessions): State<Arc<Sessions>>,
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
    let named = request
        .headers()
        .get("mcp-session-id")
        .map(|id| id.to_str().unwrap_or_default());
    if let Some(id) = named
        && !sessions.roll.belongs_to(id, token).await
    {
        return (StatusCode::NOT_FOUND, "Not Found: Session not found").into_response();
    }
    let ends = request.method() == Method::DELETE;
    let mut response = CALLER.scope(token, next.run(request)).await;
    // Some clients take 202 for a failure to end the session.
    if ends && response.status() == StatusCode::ACCEPTED {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    response
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let (id, transport) = self.inner.create_session().await?;
        self.roll.enter(id.clone(), caller());
        if let Some(surplus) = self.roll.surplus(caller()) {
            self.close_session(&surplus).await?;
        }
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.inner.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.inner.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.roll.leave(id);
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        // Only a request that asked for progress can get more messages than rmcp's queue holds.
        let chatty = match &message {
            ClientJsonRpcMessage::Request(request) => {
                request.request.get_meta().get_progress_token().is_some()
            }
            _ => false,
        };
        let busy = self.roll.busy(id);
        let inner = self.inner.create_stream(id, message).await?;
        let stream = match chatty {
            true => streams::queued(inner, std::future::pending()).left_stream(),
            false => inner.right_stream(),
        };
        // A session with a call in flight is not idle.
        Ok(streams::held(stream, busy))
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        self.inner.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let inner = self.inner.create_standalone_stream(id).await?;
        Ok(self.roll.stream(id, inner))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let inner = self.inner.resume(id, last_event_id).await?;
        Ok(self.roll.stream(id, inner))
    }

    async fn restore_session(
        &self,
        id: SessionId,
    ) -> Result<RestoreOutcome<Self::Transport>, Self::Error> {
        let outcome = self.inner.restore_session(id.clone()).await?;
        self.roll.enter(id, caller());
        Ok(outcome)
    }
}
