//! The command line as an MCP client: where the server is, which key to use, and calls.

use std::sync::{Arc, Mutex, PoisonError};

use clap::ArgMatches;
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

use crate::failure::Failure;
use crate::home::Home;
use crate::terminal::ProgressLine;

/// Where the server is and with which key to go there, as far as anybody said.
#[derive(Debug)]
pub(super) struct Access {
    home: Home,
    url: Option<String>,
    token: Option<String>,
}

impl Access {
    pub(super) fn of(matches: &ArgMatches, home: &Home) -> Self {
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

    /// Whether somebody said which server, so that no other will do.
    pub(super) fn names_a_server(&self) -> bool {
        self.url.is_some()
    }

    pub(super) fn url(&self) -> Result<String, Failure> {
        let url = match (&self.url, self.home.running()) {
            (Some(url), _) => url.trim_end_matches('/').to_owned(),
            (None, Some(running)) => running.url,
            (None, None) => return Err(self.no_server()),
        };
        // People copy the address with the endpoint's path and without it.
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
                "there is no API key: set OUBLIETTE_TOKEN or use --token ({} does not exist)",
                self.home.admin_token_file().display()
            ))
        })
    }

    fn no_server(&self) -> Failure {
        Failure::new(format!(
            "no server runs on {}; start one with `oubliette serve`, or name another with --url",
            self.home.path().display()
        ))
    }
}

/// Why there is no result.
#[derive(Debug)]
pub(super) enum NoResult {
    /// The server did not answer; another try may.
    Lost(Failure),
    /// It said no.
    Told(Failure),
}

impl From<NoResult> for Failure {
    fn from(no: NoResult) -> Self {
        match no {
            NoResult::Lost(failure) | NoResult::Told(failure) => failure,
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Client {
    service: RunningService<RoleClient, Listener>,
    progress: Arc<Mutex<ProgressLine>>,
}

/// Shows progress while a call runs.
#[derive(Debug, Clone)]
struct Listener {
    progress: Arc<Mutex<ProgressLine>>,
}

impl ClientHandler for Listener {
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
        self.progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .show(&text);
    }
}

impl Client {
    pub(super) async fn connect(access: &Access) -> Result<Self, NoResult> {
        let url = access.url().map_err(NoResult::Lost)?;
        let key = access.key().map_err(NoResult::Told)?;
        let config = StreamableHttpClientTransportConfig::with_uri(url.as_str()).auth_header(key);
        let transport = StreamableHttpClientTransport::from_config(config);
        let progress = Arc::new(Mutex::new(ProgressLine::default()));
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: None,
        };
        let service = Listener {
            progress: progress.clone(),
        }
        .serve_with_lifecycle(transport, lifecycle)
        .await
        .map_err(|error| match error {
            ClientInitializeError::TransportError { error, .. } => {
                unreachable_server(&url, access, error.error.as_ref())
            }
            other => NoResult::Told(Failure::of(
                format!("the server at {url} does not speak MCP"),
                &other,
            )),
        })?;
        Ok(Self { service, progress })
    }

    /// Calls an operation and returns its result, or its sentence as a failure.
    pub(super) async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, NoResult> {
        let request = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
        let outcome = self.service.call_tool(request).await;
        self.progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let result = outcome.map_err(|error| match error {
            ServiceError::McpError(error) => NoResult::Told(Failure::new(error.message)),
            other => NoResult::Lost(Failure::of("the call got no answer", &other)),
        })?;
        if result.is_error == Some(true) {
            let texts = result.content.iter().filter_map(|block| block.as_text());
            let text: Vec<&str> = texts.map(|block| block.text.as_str()).collect();
            return Err(NoResult::Told(Failure::new(text.join("\n"))));
        }
        match result.structured_content {
            Some(Value::Object(result)) => Ok(result),
            _ => Err(NoResult::Told(Failure::new(format!(
                "the server's answer to {name} has no result in it"
            )))),
        }
    }

    pub(super) async fn close(self) {
        let _ = self.service.cancel().await;
    }
}

/// Says in one sentence why a server could not be reached.
fn unreachable_server(
    url: &str,
    access: &Access,
    error: &(dyn std::error::Error + Send + Sync + 'static),
) -> NoResult {
    NoResult::Lost(
        match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::AuthRequired(_)) => {
                return NoResult::Told(Failure::new(format!(
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
            _ => Failure::of(format!("the server at {url} could not be used"), error),
        },
    )
}
