//! The command line as an MCP client: connects to a server and makes calls.

use std::sync::Arc;

use oubliette_engine::operations;
use oubliette_server::STRUCTURED_ONLY;
use parking_lot::Mutex;
use rmcp::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, Implementation,
    ProgressNotificationParam, ProtocolVersion,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt, NotificationContext, RoleClient,
    RunningService, ServiceError,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransportConfig, StreamableHttpError,
};
use serde_json::{Map, Value};

use super::access::{Access, ServerAddress, restart_crashed};
use super::arguments;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::ProgressLine;

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum CallError {
    /// The server did not answer; the call can be tried again.
    Unreachable(Failure),
    /// The server refused the call.
    Rejected(Failure),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unreachable(failure) | CallError::Rejected(failure) => failure,
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Client {
    service: RunningService<RoleClient, ProgressHandler>,
    progress: Arc<Mutex<ProgressLine>>,
    /// What to say when the server does not answer any more.
    lost: String,
    /// Its socket has a path only while it lives.
    _server: ServerAddress,
    /// The data directory whose server is started again if it crashes.
    restartable: Option<Home>,
    /// What to say about errors of a server of another version.
    version_hint: Option<String>,
}

/// The parameters of a call, from a JSON object.
pub(super) fn parameters(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(parameters) => parameters,
        _ => Map::new(),
    }
}

/// Shows progress notifications while a call runs.
#[derive(Debug, Clone)]
struct ProgressHandler {
    progress: Arc<Mutex<ProgressLine>>,
}

impl ClientHandler for ProgressHandler {
    fn get_info(&self) -> ClientConfig {
        let name = Implementation::new("oubliette-cli", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), name)
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let done = progress.progress;
        let text = match (progress.message, progress.total) {
            (Some(message), Some(total)) => format!("{message} {:.0} %", 100.0 * done / total),
            (Some(message), None) => message,
            (None, _) => format!("{done}"),
        };
        self.progress.lock().show(&text);
    }
}

impl Client {
    /// Connects to the server, which is started in the background if none is running.
    pub(super) async fn connect(access: &Access) -> Result<Self, CallError> {
        let connect = async || Box::pin(Self::connect_to(access, access.server().await?)).await;
        match connect().await {
            // It has ended in between.
            Err(CallError::Unreachable(_)) if !access.has_explicit_url() => connect().await,
            connected => connected,
        }
    }

    /// Connects to a server that was lost.
    pub(super) async fn reconnect(access: &Access) -> Result<Self, CallError> {
        Box::pin(Self::connect_to(access, access.server_again().await?)).await
    }

    async fn connect_to(access: &Access, server: ServerAddress) -> Result<Self, CallError> {
        let key = access.key().map_err(CallError::Rejected)?;
        let url = server.url();
        let config = StreamableHttpClientTransportConfig::with_uri(url).auth_header(key);
        let transport = match &server {
            ServerAddress::Local(_) => {
                let http = server.http_client().map_err(CallError::Rejected)?;
                StreamableHttpClientTransport::with_client(http, config)
            }
            // Follows redirects within the same origin.
            ServerAddress::Url(_) => StreamableHttpClientTransport::from_config(config),
        };
        let progress = Arc::new(Mutex::new(ProgressLine::default()));
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: None,
        };
        let service = ProgressHandler {
            progress: progress.clone(),
        }
        .serve_with_lifecycle(transport, lifecycle)
        .await
        .map_err(|error| match error {
            ClientInitializeError::TransportError { error, .. } => {
                unreachable_server(url, access, error.error.as_ref())
            }
            other => CallError::Rejected(Failure::with_cause(
                format!("{url} is not an MCP server"),
                &other,
            )),
        })?;
        let lost = match &server {
            ServerAddress::Local(_) => format!(
                "the server stopped; start it again with `{} up`",
                access.command()
            ),
            ServerAddress::Url(url) => format!("the server at {url} does not answer any more"),
        };
        Ok(Self {
            service,
            progress,
            lost,
            version_hint: match &server {
                ServerAddress::Local(_) => access.version_hint(),
                ServerAddress::Url(_) => None,
            },
            restartable: access.restartable_home(),
            _server: server,
        })
    }

    /// Calls an operation and returns its result.
    pub(super) async fn call(
        &self,
        name: &str,
        mut arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, CallError> {
        let takes_full = |entry: &operations::Entry| {
            let mut properties = entry.properties();
            properties.any(|(name, _)| name == arguments::FULL)
        };
        if operations::find(name).is_some_and(takes_full) {
            arguments.insert(arguments::FULL.to_owned(), Value::Bool(true));
        }
        let mut request = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
        let meta = Map::from_iter([(STRUCTURED_ONLY.to_owned(), Value::Bool(true))]);
        request.meta = Some(meta.into());
        let outcome = self.service.call_tool(request).await;
        self.progress.lock().clear();
        let result = outcome.map_err(|error| match error {
            ServiceError::McpError(error) => self.rejected(in_command_words(name, &error.message)),
            // Their texts are those of the library's types.
            ServiceError::TransportSend(_) | ServiceError::TransportClosed => {
                CallError::Unreachable(Failure::new(self.lost.clone()))
            }
            other => {
                CallError::Unreachable(Failure::with_cause("the server did not answer", &other))
            }
        });
        if let (Err(CallError::Unreachable(_)), Some(home)) = (&result, &self.restartable) {
            // A caller that tries again finds it.
            restart_crashed(home).await;
        }
        let result = result?;
        if result.is_error == Some(true) {
            let texts = result.content.iter().filter_map(|block| block.as_text());
            let text: Vec<&str> = texts.map(|block| block.text.as_str()).collect();
            let message = in_command_words(name, &text.join("\n"));
            return Err(self.rejected(message));
        }
        match result.structured_content {
            Some(Value::Object(result)) => Ok(result),
            _ => Err(CallError::Rejected(Failure::new(format!(
                "the server's response to {name} contains no result"
            )))),
        }
    }

    fn rejected(&self, message: String) -> CallError {
        let hint = self.version_hint.as_deref().unwrap_or_default();
        CallError::Rejected(Failure::new(format!("{message}{hint}")))
    }

    pub(super) async fn close(self) {
        let _ = self.service.cancel().await;
    }
}

/// An operation's error with the names of the command line.
fn in_command_words(operation: &str, text: &str) -> String {
    match operations::find(operation) {
        Some(entry) => arguments::in_command_words(entry, text),
        None => text.to_owned(),
    }
}

/// Describes why a server could not be reached.
fn unreachable_server(
    url: &str,
    access: &Access,
    error: &(dyn std::error::Error + Send + Sync + 'static),
) -> CallError {
    CallError::Unreachable(
        match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::AuthRequired(_)) => {
                return CallError::Rejected(Failure::new(format!(
                    "{} does not accept this API key: it is wrong, revoked or expired; check --token or \
                     OUBLIETTE_TOKEN, and see `oubliette token list`",
                    access.server_name()
                )));
            }
            Some(StreamableHttpError::Client(error))
                if error.is_connect() && !access.has_explicit_url() =>
            {
                access.no_server()
            }
            Some(StreamableHttpError::Client(error)) if error.is_connect() => Failure::new(
                format!("nothing answers at {url}; is the server running there?"),
            ),
            _ => Failure::with_cause(format!("cannot use {}", access.server_name()), error),
        },
    )
}
