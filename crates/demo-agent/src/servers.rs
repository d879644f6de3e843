//! The MCP servers of a session: child processes on stdio, started at once and in the background,
//! each with the agent's environment and what the client gave for it.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_client_protocol::v1::schema::McpServerStdio;
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

/// How long a server may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Servers(Vec<Server>);

#[derive(Debug)]
struct Server {
    name: String,
    state: watch::Receiver<State>,
    start: AbortHandle,
}

#[derive(Debug, Clone)]
enum State {
    Starting,
    Ready(Arc<Running>),
    Failed(String),
}

#[derive(Debug)]
struct Running {
    service: RunningService<RoleClient, Listener>,
    /// Killed when the session ends, if the end of its input was not enough.
    _child: Child,
}

/// What a server tells unasked.
#[derive(Debug, Default)]
struct Listener {
    tools: Mutex<Option<Vec<String>>>,
    progress: Mutex<Option<mpsc::Sender<String>>>,
}

/// A tool, found.
#[derive(Debug)]
pub(crate) struct Tool {
    running: Arc<Running>,
    name: String,
}

impl Servers {
    pub(crate) fn start(servers: Vec<McpServerStdio>, directory: &Path) -> Self {
        let start = |server: McpServerStdio| {
            let name = server.name.clone();
            let (sender, state) = watch::channel(State::Starting);
            let directory = directory.to_owned();
            let task = tokio::spawn(async move {
                let started = tokio::time::timeout(START_LIMIT, connect(server, &directory));
                let state = match started.await {
                    Ok(Ok(running)) => State::Ready(Arc::new(running)),
                    Ok(Err(reason)) => State::Failed(reason),
                    Err(_) => State::Failed(format!("not ready after {START_LIMIT:?}")),
                };
                if let State::Failed(reason) = &state {
                    eprintln!("an MCP server did not start: {reason}");
                }
                let _ = sender.send(state);
            });
            Server {
                name,
                state,
                start: task.abort_handle(),
            }
        };
        Self(servers.into_iter().map(start).collect())
    }

    /// The names of all tools, and what went wrong with servers.
    pub(crate) async fn tools(&self) -> (Vec<String>, Vec<String>) {
        let (mut tools, mut problems) = (Vec::new(), Vec::new());
        for server in &self.0 {
            // Some may have come or gone, and nobody said so yet.
            server.forget_tools();
            match server.tools().await {
                Ok(found) => tools.extend(found),
                Err(problem) => problems.push(problem),
            }
        }
        (tools, problems)
    }

    /// Finds a tool: by its exact name in any server, as `SERVER/NAME` whether the server lists it
    /// or not, or by the end of its name if only one ends so.
    pub(crate) async fn find(&self, name: &str) -> Result<Tool, String> {
        if let Some((server, tool)) = name.split_once('/')
            && let Some(server) = self.0.iter().find(|known| known.name == server)
        {
            return server.tool(tool).await;
        }
        match self.look(name).await {
            Err(_) => {
                // It may have come since the lists were read.
                for server in &self.0 {
                    server.forget_tools();
                }
                self.look(name).await
            }
            found => found,
        }
    }

    async fn look(&self, name: &str) -> Result<Tool, String> {
        let (mut all, mut near, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        let ending = format!("_{name}");
        for server in &self.0 {
            match server.tools().await {
                Ok(tools) if tools.iter().any(|tool| tool == name) => {
                    return server.tool(name).await;
                }
                Ok(tools) => {
                    let same_end = tools.iter().filter(|tool| tool.ends_with(&ending));
                    near.extend(same_end.map(|tool| (server, tool.clone())));
                    all.extend(tools);
                }
                Err(problem) => problems.push(problem),
            }
        }
        if let [(server, tool)] = &near[..] {
            return server.tool(tool).await;
        }
        let near: Vec<String> = near.into_iter().map(|(_, tool)| tool).collect();
        let mut message = match (&near[..], &all[..]) {
            ([], []) => format!("there is no tool `{name}`, nor any other"),
            ([], _) => format!("there is no tool `{name}`; there are: {}", all.join(", ")),
            _ => format!("`{name}` could be any of: {}", near.join(", ")),
        };
        for problem in problems {
            message = format!("{message}; {problem}");
        }
        Err(message)
    }
}

impl Server {
    async fn running(&self) -> Result<Arc<Running>, String> {
        let mut state = self.state.clone();
        let settled = state
            .wait_for(|state| !matches!(state, State::Starting))
            .await;
        match settled.as_deref() {
            Ok(State::Ready(running)) => Ok(running.clone()),
            Ok(State::Failed(reason)) => Err(reason.clone()),
            Ok(State::Starting) | Err(_) => Err("it was stopped".to_owned()),
        }
        .map_err(|reason| format!("the MCP server `{}` is not there: {reason}", self.name))
    }

    async fn tools(&self) -> Result<Vec<String>, String> {
        let running = self.running().await?;
        let listener = running.service.service();
        if let Some(tools) = lock(&listener.tools).clone() {
            return Ok(tools);
        }
        let tools = running.service.peer().list_all_tools().await;
        let tools = tools.map_err(|error| {
            format!(
                "the MCP server `{}` does not list its tools: {error}",
                self.name
            )
        })?;
        let tools: Vec<String> = tools.into_iter().map(|tool| tool.name.into()).collect();
        *lock(&listener.tools) = Some(tools.clone());
        Ok(tools)
    }

    fn forget_tools(&self) {
        if let State::Ready(running) = &*self.state.borrow() {
            *lock(&running.service.service().tools) = None;
        }
    }

    async fn tool(&self, name: &str) -> Result<Tool, String> {
        Ok(Tool {
            running: self.running().await?,
            name: name.to_owned(),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.start.abort();
    }
}

impl Tool {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Calls the tool and waits as long as it takes; what it says meanwhile goes to `progress`.
    /// Dropping the future cancels the call.
    pub(crate) async fn call(
        &self,
        arguments: Map<String, Value>,
        progress: mpsc::Sender<String>,
    ) -> Result<CallToolResult, String> {
        let service = &self.running.service;
        *lock(&service.service().progress) = Some(progress);
        let mut request = CallToolRequestParams::new(self.name.clone());
        request.arguments = Some(arguments);
        let answer = service.peer().call_tool_once(request).await;
        *lock(&service.service().progress) = None;
        match answer {
            Ok(CallToolResponse::Complete(result)) => Ok(result),
            Ok(_) => Err("the tool asked for something that this agent cannot give".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let name = Implementation::new("oubliette-demo-agent", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), name)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        *lock(&self.tools) = None;
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
        if let Some(sender) = &*lock(&self.progress) {
            // What does not fit is older news by the time there is room.
            let _ = sender.try_send(text);
        }
    }
}

async fn connect(server: McpServerStdio, directory: &Path) -> Result<Running, String> {
    let command = server.command.display().to_string();
    let mut child = Command::new(&server.command)
        .args(&server.args)
        .envs(server.env.iter().map(|one| (&one.name, &one.value)))
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("`{command}` cannot be started: {error}"))?;
    let (Some(stdout), Some(stdin)) = (child.stdout.take(), child.stdin.take()) else {
        return Err(format!("`{command}` has no standard input and output"));
    };
    let service = serve_client(Listener::default(), (stdout, stdin))
        .await
        .map_err(|error| format!("`{command}` did not answer as an MCP server: {error}"))?;
    Ok(Running {
        service,
        _child: child,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
