//! The command line as an MCP client: where the server is, which key to use, and calls.

use std::sync::Arc;

use clap::ArgMatches;
use oubliette_engine::operations;
use oubliette_model::quoted;
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

use super::arguments;
use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::ProgressLine;

/// The server's URL and the API key, as far as they were given.
#[derive(Debug)]
pub(super) struct Access {
    home: Home,
    url: Option<String>,
    token: Option<String>,
}

impl Access {
    pub(super) fn from_matches(matches: &ArgMatches, home: &Home) -> Self {
        let given = |name| {
            matches
                .get_one::<String>(name)
                .filter(|text| !text.is_empty())
                .cloned()
        };
        Self {
            home: home.clone(),
            url: given("url"),
            token: given("token"),
        }
    }

    /// Whether a URL was given; then no other server is used.
    pub(super) fn has_explicit_url(&self) -> bool {
        self.url.is_some()
    }

    pub(super) fn url(&self) -> Result<String, Failure> {
        let url = match (&self.url, self.home.server_info()) {
            (Some(url), _) => {
                check_url(url)?;
                url.trim_end_matches('/').to_owned()
            }
            (None, Some(server)) => server.url,
            (None, None) => return Err(self.no_server()),
        };
        // The URL may be given with or without the path of the endpoint.
        Ok(if url.ends_with("/mcp") {
            url
        } else {
            format!("{url}/mcp")
        })
    }

    pub(super) fn key(&self) -> Result<String, Failure> {
        let kept = || self.home.admin_key().map(|key| key.reveal().to_owned());
        self.token.clone().or_else(kept).ok_or_else(|| {
            Failure::new(format!(
                "no API key: set OUBLIETTE_TOKEN or use --token ({} does not exist)",
                self.home.admin_token_file().display()
            ))
        })
    }

    fn no_server(&self) -> Failure {
        Failure::new(format!(
            "no server is running on {}; start one with `oubliette serve`, or choose another with --url",
            self.home.path().display()
        ))
    }
}

fn check_url(url: &str) -> Result<(), Failure> {
    let reason = match reqwest::Url::parse(url) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") => return Ok(()),
        Ok(_) => "it must start with http:// or https://".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Failure::new(format!(
        "the URL is invalid: {reason}: {}; use for example http://127.0.0.1:7433",
        quoted(url)
    )))
}

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
    pub(super) async fn connect(access: &Access) -> Result<Self, CallError> {
        let url = access.url().map_err(CallError::Unreachable)?;
        let key = access.key().map_err(CallError::Rejected)?;
        let config = StreamableHttpClientTransportConfig::with_uri(url.as_str()).auth_header(key);
        let transport = StreamableHttpClientTransport::from_config(config);
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
                unreachable_server(&url, access, error.error.as_ref())
            }
            other => CallError::Rejected(Failure::with_cause(
                format!("{url} is not an MCP server"),
                &other,
            )),
        })?;
        Ok(Self { service, progress })
    }

    /// Calls an operation and returns its result.
    pub(super) async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, CallError> {
        let request = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
        let outcome = self.service.call_tool(request).await;
        self.progress.lock().clear();
        let result = outcome.map_err(|error| match error {
            ServiceError::McpError(error) => {
                CallError::Rejected(Failure::new(in_command_words(name, &error.message)))
            }
            other => {
                CallError::Unreachable(Failure::with_cause("the server did not answer", &other))
            }
        })?;
        if result.is_error == Some(true) {
            let texts = result.content.iter().filter_map(|block| block.as_text());
            let text: Vec<&str> = texts.map(|block| block.text.as_str()).collect();
            let message = in_command_words(name, &text.join("\n"));
            return Err(CallError::Rejected(Failure::new(message)));
        }
        match result.structured_content {
            Some(Value::Object(result)) => Ok(result),
            _ => Err(CallError::Rejected(Failure::new(format!(
                "the server's response to {name} contains no result"
            )))),
        }
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
                    "the server at {url} does not accept this API key; check --token or \
                     OUBLIETTE_TOKEN"
                )));
            }
            Some(StreamableHttpError::Client(error))
                if error.is_connect() && access.url.is_none() =>
            {
                access.no_server()
            }
            Some(StreamableHttpError::Client(error)) if error.is_connect() => Failure::new(
                format!("nothing answers at {url}; is the server running there?"),
            ),
            _ => Failure::with_cause(format!("cannot use the server at {url}"), error),
        },
    )
}
