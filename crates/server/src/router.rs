//! The routes of the HTTP endpoint and the layers before them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, StatusCode};
use oubliette_engine::{Actor, Engine};
use oubliette_model::may_read_metrics;
use rmcp::ServerHandler;

use crate::auth::{Authenticator, require_key};
use crate::connection_counts::ConnectionCounts;
use crate::connection_limits::Connection;
use crate::files::{self, FileRoutes};
use crate::mcp::{self, Handler, McpSessionManager};
use crate::tasks::Tasks;
use crate::{McpSettings, ServerSettings, metrics};

const BODY_READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Of larger bodies, and those whose size is not known, few are read at once.
const LARGE_BODY_BYTES: usize = 64 << 10;

/// All HTTP routes of a server.
#[derive(Clone)]
pub struct App {
    router: Router,
    sessions: Arc<McpSessionManager>,
    tasks: Tasks,
    connection_counts: ConnectionCounts,
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

    /// What clients do.
    pub fn connection_counts(&self) -> &ConnectionCounts {
        &self.connection_counts
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Ends event streams and calls that only wait; other calls continue.
    pub(crate) fn drain(&self) {
        self.sessions.drain();
        self.sessions.engine().drain();
    }
}

const CUT_OFF: &str = "the server stopped before this call ended, so its outcome is unknown; check the state \
    before you repeat it\n";

/// The routes of the product.
pub fn app(engine: &Engine, server: &ServerSettings, mcp: &McpSettings) -> App {
    let tasks = Tasks::default();
    let handler = Handler::new(engine.clone(), mcp, tasks.clone());
    build(engine, server, move || handler.clone(), tasks)
}

/// The routes with another handler behind the MCP endpoint, to test the transport.
pub fn app_with<H: ServerHandler>(
    engine: &Engine,
    server: &ServerSettings,
    handler: impl Fn() -> H + Send + Sync + 'static,
) -> App {
    build(engine, server, handler, Tasks::default())
}

fn build<H: ServerHandler>(
    engine: &Engine,
    server: &ServerSettings,
    handler: impl Fn() -> H + Send + Sync + 'static,
    tasks: Tasks,
) -> App {
    let sessions = McpSessionManager::start(engine.clone(), tasks.clone());
    let shutdown = tasks.shutdown_token().clone();
    // Every layer clones what is below it for each request, and the endpoint holds its settings by
    // value.
    let cut_off = shutdown.clone();
    let endpoint = Arc::new(mcp::endpoint(handler, sessions.clone(), server, shutdown));
    let handle = move |request: Request| {
        let (endpoint, cut_off) = (endpoint.clone(), cut_off.clone());
        async move {
            let response = endpoint.handle(request).await.into_response();
            // A call that was cut off gets an internal error from the endpoint.
            if response.status().is_server_error() && cut_off.is_cancelled() {
                return (StatusCode::SERVICE_UNAVAILABLE, CUT_OFF).into_response();
            }
            response
        }
    };
    let authenticator = Authenticator::new(engine.clone());
    let metrics_sources = metrics::Sources {
        engine: engine.clone(),
        authenticator: authenticator.clone(),
        sessions: sessions.clone(),
    };
    let max_body_bytes = server.max_body_mb as usize * (1 << 20);
    let mcp = Router::new()
        .fallback(handle)
        .layer(middleware::from_fn_with_state(
            sessions.clone(),
            mcp::require_session_owner,
        ))
        .layer(middleware::from_fn(move |request, next| {
            read_body(max_body_bytes, request, next)
        }))
        .layer(middleware::from_fn_with_state(
            authenticator.clone(),
            require_key,
        ));
    let files = Router::new()
        .route(files::ROUTE, get(files::download).put(files::upload))
        .with_state(FileRoutes {
            engine: engine.clone(),
            authenticator: authenticator.clone(),
        });
    let admin = Router::new()
        .route("/metrics", get(show_metrics))
        .with_state(metrics_sources)
        .layer(middleware::from_fn_with_state(authenticator, require_key));
    let router = Router::new()
        .nest_service("/mcp", mcp)
        .merge(admin)
        .merge(files)
        .route("/healthz", get(health))
        .route("/", get(welcome))
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "not found; the MCP endpoint is /mcp\n",
            )
        })
        .with_state(engine.clone())
        .layer(middleware::map_response(add_safe_headers));
    App {
        router,
        sessions,
        tasks,
        connection_counts: ConnectionCounts::default(),
    }
}

/// Reads the whole body within bounds of size and time before the request goes on.
async fn read_body(max_bytes: usize, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let length = parts.headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let is_small = parts.method == Method::GET || length.is_some_and(|it| it <= LARGE_BODY_BYTES);
    let connection = parts.extensions.get::<Arc<Connection>>().cloned();
    let reading = async {
        let _permit = match connection.filter(|_| !is_small) {
            Some(connection) => connection.large_body().await,
            None => None,
        };
        axum::body::to_bytes(body, max_bytes).await
    };
    match tokio::time::timeout(BODY_READ_TIMEOUT, reading).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(parts, bytes.into())).await,
        Ok(Err(_)) => {
            let text = format!(
                "the request body is larger than {} MiB or incomplete\n",
                max_bytes >> 20
            );
            (StatusCode::PAYLOAD_TOO_LARGE, text).into_response()
        }
        Err(_) => {
            let text = "reading the request body took too long\n";
            (StatusCode::REQUEST_TIMEOUT, text).into_response()
        }
    }
}

async fn add_safe_headers(mut response: Response) -> Response {
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

/// Healthy means that the server responds and can read its store.
async fn health(State(engine): State<Engine>) -> Response {
    match engine.count_projects().await {
        Ok(_) => {
            let body = serde_json::json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") });
            axum::Json(body).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "the store is unavailable");
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "the store is unavailable\n",
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
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    let page = metrics::render(&sources).await;
    ([(CONTENT_TYPE, content_type)], page).into_response()
}
