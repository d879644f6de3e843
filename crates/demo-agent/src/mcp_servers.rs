//! The MCP servers of a session: child processes on stdio, which are started in the background with the
//! agent's environment and the variables that the client sent.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::v1::schema::McpServerStdio;
use parking_lot::Mutex;
use rmcp::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig,
    Implementation, ProgressNotificationParam,
};
use rmcp::service::{NotificationContext, RoleClient, RunningService, serve_client};
use serde_json::{Map, Value};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

const START_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct McpServers(Vec<McpServer>);

#[derive(Debug)]
struct McpServer {
    name: String,
    state: watch::Receiver<ServerState>,
    start: AbortHandle,
}

#[derive(Debug, Clone)]
enum ServerState {
    Starting,
    Ready(Arc<RunningServer>),
    Failed(String),
}

#[derive(Debug)]
struct RunningServer {
    service: RunningService<RoleClient, NotificationHandler>,
    /// Killed when the session ends, if it did not exit at the end of its input.
    _child: Child,
}

/// Handles the notifications of a server.
#[derive(Debug, Default)]
struct NotificationHandler {
    /// The names of the tools; none if they must be listed again.
    tools: Mutex<Option<Vec<String>>>,
    progress: Mutex<Option<mpsc::Sender<String>>>,
}

/// A tool of a running server.
#[derive(Debug)]
pub(crate) struct Tool {
    running: Arc<RunningServer>,
    name: String,
}

impl McpServers {
    pub(crate) fn start(servers: Vec<McpServerStdio>, directory: &Path) -> Self {
        let start = |server: McpServerStdio| {
            let name = server.name.clone();
            let (sender, state) = watch::channel(ServerState::Starting);
            let directory = directory.to_owned();
            let task = tokio::spawn(async move {
                let started = tokio::time::timeout(START_TIMEOUT, connect(server, &directory));
                let state = match started.await {
                    Ok(Ok(running)) => ServerState::Ready(Arc::new(running)),
                    Ok(Err(reason)) => ServerState::Failed(reason),
                    Err(_) => ServerState::Failed(format!("not ready after {START_TIMEOUT:?}")),
                };
                if let ServerState::Failed(reason) = &state {
                    eprintln!("an MCP server did not start: {reason}");
                }
                let _ = sender.send(state);
            });
            McpServer {
                name,
                state,
                start: task.abort_handle(),
            }
        };
        Self(servers.into_iter().map(start).collect())
    }

    /// The names of all tools, and the errors of servers.
    pub(crate) async fn tools(&self) -> (Vec<String>, Vec<String>) {
        let (mut tools, mut problems) = (Vec::new(), Vec::new());
        for server in &self.0 {
            // The list can have changed before the notification arrives.
            server.forget_tools();
            match server.tools().await {
                Ok(found) => tools.extend(found),
                Err(problem) => problems.push(problem),
            }
        }
        (tools, problems)
    }

    /// Finds a tool by its exact name in any server, as `SERVER/NAME` even if the server does not list
    /// it, or by the end of its name if that is unique.
    pub(crate) async fn find(&self, name: &str) -> Result<Tool, String> {
        if let Some((server, tool)) = name.split_once('/')
            && let Some(server) = self.0.iter().find(|known| known.name == server)
        {
            return server.tool(tool).await;
        }
        match self.find_listed(name).await {
            Err(_) => {
                // The tool can be newer than the lists.
                for server in &self.0 {
                    server.forget_tools();
                }
                self.find_listed(name).await
            }
            found => found,
        }
    }

    async fn find_listed(&self, name: &str) -> Result<Tool, String> {
        let (mut all, mut similar, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        let suffix = format!("_{name}");
        for server in &self.0 {
            match server.tools().await {
                Ok(tools) if tools.iter().any(|tool| tool == name) => {
                    return server.tool(name).await;
                }
                Ok(tools) => {
                    let matching = tools.iter().filter(|tool| tool.ends_with(&suffix));
                    similar.extend(matching.map(|tool| (server, tool.clone())));
                    all.extend(tools);
                }
                Err(problem) => problems.push(problem),
            }
        }
        if let [(server, tool)] = &similar[..] {
            return server.tool(tool).await;
        }
        let names: Vec<String> = similar.into_iter().map(|(_, tool)| tool).collect();
        let mut message = match (&names[..], &all[..]) {
            ([], []) => format!("there is no tool `{name}`; there are no tools"),
            ([], _) => format!("there is no tool `{name}`; there are: {}", all.join(", ")),
            _ => format!("`{name}` could be any of: {}", names.join(", ")),
        };
        for problem in problems {
            message = format!("{message}; {problem}");
        }
        Err(message)
    }
}

impl McpServer {
    async fn running(&self) -> Result<Arc<RunningServer>, String> {
        let mut state = self.state.clone();
        let started = state
            .wait_for(|state| !matches!(state, ServerState::Starting))
            .await;
        match started.as_deref() {
            Ok(ServerState::Ready(running)) => Ok(running.clone()),
            Ok(ServerState::Failed(reason)) => Err(reason.clone()),
            Ok(ServerState::Starting) | Err(_) => Err("it was stopped".to_owned()),
        }
        .map_err(|reason| format!("the MCP server `{}` is not running: {reason}", self.name))
    }

    async fn tools(&self) -> Result<Vec<String>, String> {
        let running = self.running().await?;
        let handler = running.service.service();
        if let Some(tools) = handler.tools.lock().clone() {
            return Ok(tools);
        }
        let listed = running.service.peer().list_all_tools().await;
        let tools = listed.map_err(|error| {
            format!(
                "the MCP server `{}` does not list its tools: {error}",
                self.name
            )
        })?;
        let names: Vec<String> = tools.into_iter().map(|tool| tool.name.into()).collect();
        *handler.tools.lock() = Some(names.clone());
        Ok(names)
    }

    fn forget_tools(&self) {
        if let ServerState::Ready(running) = &*self.state.borrow() {
            *running.service.service().tools.lock() = None;
        }
    }

    async fn tool(&self, name: &str) -> Result<Tool, String> {
        Ok(Tool {
            running: self.running().await?,
            name: name.to_owned(),
        })
    }
}

impl Drop for McpServer {
    fn drop(&mut self) {
        self.start.abort();
    }
}

impl Tool {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Calls the tool without a timeout; progress messages go to `progress`.
    /// Dropping the future cancels the call.
    pub(crate) async fn call(
        &self,
        arguments: Map<String, Value>,
        progress: mpsc::Sender<String>,
    ) -> Result<CallToolResult, String> {
        let service = &self.running.service;
        *service.service().progress.lock() = Some(progress);
        let mut request = CallToolRequestParams::new(self.name.clone());
        request.arguments = Some(arguments);
        let response = service.peer().call_tool_once(request).await;
        *service.service().progress.lock() = None;
        match response {
            Ok(CallToolResponse::Complete(result)) => Ok(result),
            Ok(_) => Err("the tool requested input, which this agent does not support".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl ClientHandler for NotificationHandler {
    fn get_info(&self) -> ClientConfig {
        let name = Implementation::new("oubliette-demo-agent", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), name)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        *self.tools.lock() = None;
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let text = match (progress.message, progress.total) {
            (Some(message), _) => message,
            (None, Some(total)) => format!("{} of {total}", progress.progress),
            (None, None) => progress.progress.to_string(),
        };
        if let Some(sender) = &*self.progress.lock() {
            // If the queue is full, the message is outdated anyway.
            let _ = sender.try_send(text);
        }
    }
}

async fn connect(server: McpServerStdio, directory: &Path) -> Result<RunningServer, String> {
    let command = server.command.display().to_string();
    let mut child = Command::new(&server.command)
        .args(&server.args)
        .envs(
            server
                .env
                .iter()
                .map(|variable| (&variable.name, &variable.value)),
        )
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("`{command}` cannot be started: {error}"))?;
    let (Some(stdout), Some(stdin)) = (child.stdout.take(), child.stdin.take()) else {
        return Err(format!("`{command}` has no standard input and output"));
    };
    let service = serve_client(NotificationHandler::default(), (stdout, stdin))
        .await
        .map_err(|error| format!("`{command}` did not answer as an MCP server: {error}"))?;
    Ok(RunningServer {
        service,
        _child: child,
    })
}
