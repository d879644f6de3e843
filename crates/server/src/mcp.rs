//! The MCP endpoint: Streamable HTTP for both eras of the protocol on one path.

mod call;
mod handler;
mod push;
mod resources;
mod roll;
mod sessions;
mod stored;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use rmcp::ServerHandler;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

pub use handler::Handler;
pub(crate) use sessions::{Sessions, bind_session};

use crate::ServerSettings;
use stored::StoredSessions;

/// Clients whose stream broke come back after this time.
const RETRY: Duration = Duration::from_millis(500);
const PING: Duration = Duration::from_secs(15);

pub(crate) fn endpoint<H: ServerHandler>(
    handler: impl Fn() -> H + Send + Sync + 'static,
    sessions: Arc<Sessions>,
    settings: &ServerSettings,
    closing: CancellationToken,
) -> StreamableHttpService<H, Sessions> {
    let own_hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let own_origins = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];
    let origins = own_origins.map(str::to_owned).into_iter();
    let mut config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(
            own_hosts
                .into_iter()
                .chain(settings.allowed_hosts.iter().cloned()),
        )
        .with_allowed_origins(origins.chain(settings.allowed_origins.iter().cloned()))
        .enforce_origin_validation()
        .with_max_request_body_bytes(settings.max_body_mb as usize * (1 << 20))
        .with_json_response(true)
        .with_sse_retry(Some(RETRY))
        .with_sse_keep_alive(Some(PING))
        .with_cancellation_token(closing);
    config.session_store = Some(Arc::new(StoredSessions::new(sessions.engine().clone())));
    StreamableHttpService::new(move || Ok(handler()), sessions, config)
}
