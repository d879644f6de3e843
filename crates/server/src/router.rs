//! Which path leads where.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use oubliette_engine::{Actor, Engine};
use oubliette_model::may_read_metrics;
use rmcp::ServerHandler;
use tokio_util::sync::CancellationToken;

use crate::auth::{Gate, require_key};
use crate::mcp::{self, Handler, Sessions};
use crate::{McpSettings, ServerSettings, metrics};

/// A body that was begun must be there within this time.
const BODY: Duration = Duration::from_secs(60);

/// All faces of a server on one router.
#[derive(Clone)]
pub struct App {
    router: Router,
    sessions: Arc<Sessions>,
    closing: CancellationToken,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").finish_non_exhaustive()
    }
}

impl App {
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Ends what would never end by itself.
    pub(crate) fn drain(&self) {
        self.sessions.drain();
        self.sessions.engine().drain();
    }

    /// Ends everything.
    pub(crate) fn close(&self) {
        self.closing.cancel();
    }
}

/// The product's faces.
pub fn app(engine: &Engine, server: &ServerSettings, mcp: &McpSettings) -> App {
    let handler = Handler::new(engine.clone(), mcp);
    app_with(engine, server, move || handler.clone())
}

/// The same with another handler behind the MCP endpoint; the transport can be tested with it.
pub fn app_with<H: ServerHandler>(
    engine: &Engine,
    server: &ServerSettings,
    handler: impl Fn() -> H + Send + Sync + 'static,
) -> App {
    let closing = CancellationToken::new();
    let sessions = Sessions::start(engine.clone(), closing.clone());
    let endpoint = mcp::endpoint(handler, sessions.clone(), server, closing.clone());
    // Every layer clones what is below it for each request, and the endpoint holds its settings by
    // value.
    let endpoint = Arc::new(endpoint);
    let answer = move |request: Request| {
        let endpoint = endpoint.clone();
        async move { endpoint.handle(request).await }
    };
    let gate = Gate::new(engine.clone());
    let figures = metrics::Sources {
        engine: engine.clone(),
        gate: gate.clone(),
        sessions: sessions.clone(),
    };
    let most = server.max_body_mb as usize * (1 << 20);
    let mcp = Router::new()
        .fallback(answer)
        .layer(middleware::from_fn_with_state(
            sessions.clone(),
            mcp::bind_session,
        ))
        .layer(middleware::from_fn(move |request, next| {
            bounded_body(most, request, next)
        }))
        .layer(middleware::from_fn_with_state(gate.clone(), require_key));
    let admin = Router::new()
        .route("/metrics", get(show_metrics))
        .with_state(figures)
        .layer(middleware::from_fn_with_state(gate, require_key));
    let router = Router::new()
        .nest_service("/mcp", mcp)
        .merge(admin)
        .route("/healthz", get(health))
        .route("/", get(welcome))
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "not here; the MCP endpoint is /mcp\n",
            )
        })
        .with_state(engine.clone())
        .layer(middleware::map_response(safe_headers));
    App {
        router,
        sessions,
        closing,
    }
}

/// Reads a whole body within bounds of size and time, before anything else looks at it.
async fn bounded_body(most: usize, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(BODY, axum::body::to_bytes(body, most)).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(parts, bytes.into())).await,
        Ok(Err(_)) => {
            let text = format!(
                "the request is larger than {} MiB or was cut off\n",
                most >> 20
            );
            (StatusCode::PAYLOAD_TOO_LARGE, text).into_response()
        }
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "the request took too long\n").into_response(),
    }
}

async fn safe_headers(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn welcome() -> &'static str {
    concat!(
        "Oubliette ",
        env!("CARGO_PKG_VERSION"),
        "\nThe MCP endpoint is /mcp; `oubliette mcp setup CLIENT` connects a client to it.\n"
    )
}

/// Whether the server can do its work: it answers, and so does its store.
async fn health(State(engine): State<Engine>) -> Response {
    match engine.store().count_projects().await {
        Ok(_) => {
            let body = serde_json::json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") });
            axum::Json(body).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "the store does not answer");
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "the store does not answer\n",
            )
                .into_response()
        }
    }
}

async fn show_metrics(
    State(sources): State<metrics::Sources>,
    axum::Extension(actor): axum::Extension<Actor>,
) -> Response {
    if !may_read_metrics(actor.scope) {
        return (StatusCode::FORBIDDEN, "metrics need an admin token\n").into_response();
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, kind)], metrics::render(&sources).await).into_response()
}
