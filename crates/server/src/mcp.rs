//! The MCP endpoint: Streamable HTTP on one path, for protocol versions with MCP sessions and
//! without them.

mod call;
mod guide;
mod handler;
mod push;
mod registry;
mod resources;
mod restores;
mod session_store;
mod sessions;
mod streams;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use rmcp::ServerHandler;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

pub use call::STRUCTURED_ONLY;
pub(crate) use handler::Handler;
pub(crate) use sessions::{McpSessionManager, require_session_owner};

use crate::ServerSettings;
use session_store::EngineSessionStore;

/// Clients whose stream broke reconnect after this time.
const SSE_RETRY_DELAY: Duration = Duration::from_millis(500);
const SSE_KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

pub(crate) fn endpoint<H: ServerHandler>(
    handler: impl Fn() -> H + Send + Sync + 'static,
    sessions: Arc<McpSessionManager>,
    settings: &ServerSettings,
    shutdown: CancellationToken,
) -> StreamableHttpService<H, McpSessionManager> {
    let local_hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let hosts = local_hosts
        .into_iter()
        .chain(settings.allowed_hosts.iter().cloned());
    let local_origins =
        ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"].map(str::to_owned);
    let origins = local_origins
        .into_iter()
        .chain(settings.allowed_origins.iter().cloned());
    let mut config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(hosts)
        .with_allowed_origins(origins)
        .enforce_origin_validation()
        // The router bounds every body before it reaches this service.
        .with_max_request_body_bytes(usize::MAX)
        .with_json_response(true)
        // The session manager knows which clients understand a first event without data.
        .with_sse_retry(None)
        .with_sse_keep_alive(Some(SSE_KEEP_ALIVE_INTERVAL))
        .with_cancellation_token(shutdown);
    let store = EngineSessionStore::new(sessions.engine().clone());
    config.session_store = Some(Arc::new(store));
    StreamableHttpService::new(move || Ok(handler()), sessions, config)
}
