//! `oubliette mcp stdio`: an MCP server on standard input and output that passes every message on to the
//! server of the data directory. A client that starts it needs no address and no key, so it cannot send a
//! key to another process at the server's address.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, SetOnce, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::access::{Access, ServerAddress, restart_ended};
use crate::failure::Failure;
use crate::home::Home;

const MAX_IN_FLIGHT: usize = 64;
const MAX_QUEUED_LINES: usize = 64;
/// A server that is restarted answers again within this time.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Requests that were sent before the input ended are still answered for this time.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(10);
const PARSE_ERROR: i64 = -32700;
const INTERNAL_ERROR: i64 = -32603;
const INVALID_REQUEST: i64 = -32600;
/// Requests that need no `initialize` before them.
const WITHOUT_INITIALIZE: [&str; 2] = ["ping", "server/discover"];
const VERSION_IN_REQUEST: &str = "io.modelcontextprotocol/protocolVersion";

struct Bridge {
    server: ServerAddress,
    http: reqwest::Client,
    /// Whose server is started again for a message.
    restartable: Option<Home>,
    key: String,
    output: mpsc::Sender<String>,
    /// None before `initialize`, and in protocol versions without MCP sessions.
    session: Mutex<Option<McpSession>>,
    in_flight: Mutex<HashMap<String, InFlight>>,
    /// Requests that the client has cancelled and the server has not ended yet.
    cancelled: Mutex<HashSet<String>>,
}

/// A request that is not answered yet.
struct InFlight {
    task: AbortHandle,
    /// Set when the server has begun to answer, or will not.
    accepted: Arc<SetOnce<()>>,
}

/// What becomes of the client's message that cancels a request.
enum Cancellation {
    /// The request is ended already.
    Done,
    /// The server is told, once it has the request: messages on two connections can overtake each other, and
    /// a server ignores the cancellation of a request that it does not know.
    Forward(Option<Arc<SetOnce<()>>>),
}

#[derive(Debug, Clone)]
struct McpSession {
    id: String,
    protocol: String,
}

/// Passes messages on until the input ends.
pub(super) async fn run(access: &Access) -> Result<(), Failure> {
    let server = access.server().await?;
    let (output, lines) = mpsc::channel(MAX_QUEUED_LINES);
    let bridge = Arc::new(Bridge {
        http: server.http_client()?,
        key: access.key()?,
        restartable: access.restartable_home(),
        server,
        output,
        session: Mutex::default(),
        in_flight: Mutex::default(),
        cancelled: Mutex::default(),
    });
    let writing = tokio::spawn(write_lines(lines));
    let mut requests = JoinSet::new();
    let mut stream = None;
    let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = input.next_line().await {
        while requests.try_join_next().is_some() {}
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            let text = "a line must be one JSON-RPC message";
            bridge.reply_error(&Value::Null, PARSE_ERROR, text).await;
            continue;
        };
        if message["method"] == "initialize" {
            bridge.forward(&message, &SetOnce::new()).await;
            if bridge.session.lock().is_some() {
                stream = Some(tokio::spawn(bridge.clone().read_stream()));
            }
            continue;
        }
        if bridge.is_too_early(&message) {
            let text = format!(
                "`{}` came before `initialize`: send that first, or name the protocol version in \
                 `_meta[\"{VERSION_IN_REQUEST}\"]` of the request (2026-07-28 or newer)",
                message["method"].as_str().unwrap_or_default()
            );
            bridge
                .reply_error(&message["id"], INVALID_REQUEST, &text)
                .await;
            continue;
        }
        let mut before = None;
        if message["method"] == "notifications/cancelled" {
            match bridge.cancel(&message) {
                Cancellation::Done => continue,
                Cancellation::Forward(accepted) => before = accepted,
            }
        }
        let Ok(permit) = permits.clone().acquire_owned().await else {
            break;
        };
        let (id, of_task) = (message["id"].to_string(), bridge.clone());
        let accepted = Arc::new(SetOnce::new());
        let sets = accepted.clone();
        // Locked, so that the task does not remove itself before it is there.
        let mut in_flight = bridge.in_flight.lock();
        let task = requests.spawn(async move {
            if let Some(before) = before {
                before.wait().await;
            }
            of_task.forward(&message, &sets).await;
            of_task.in_flight.lock().remove(&message["id"].to_string());
            drop(permit);
        });
        in_flight.insert(id, InFlight { task, accepted });
    }
    let remaining = async { while requests.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, remaining).await;
    requests.shutdown().await;
    if let Some(stream) = stream {
        stream.abort();
        let ending = bridge.request(Method::DELETE, None).send();
        let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, ending).await;
        let _ = stream.await;
    }
    drop(bridge);
    let _ = writing.await;
    Ok(())
}

async fn write_lines(mut lines: mpsc::Receiver<String>) {
    let mut stdout = tokio::io::stdout();
    while let Some(line) = lines.recv().await {
        let line = format!("{line}\n");
        if stdout.write_all(line.as_bytes()).await.is_err() || stdout.flush().await.is_err() {
            return;
        }
    }
}

impl Bridge {
    fn request(&self, method: Method, message: Option<&Value>) -> RequestBuilder {
        let mut request = self
            .http
            .request(method, self.server.url())
            .bearer_auth(&self.key)
            .header(ACCEPT, "application/json, text/event-stream");
        if let Some(session) = self.session.lock().clone() {
            return request
                .header("mcp-session-id", session.id)
                .header("mcp-protocol-version", session.protocol);
        }
        // Protocol versions without MCP sessions repeat these in headers.
        let params = message.map(|message| &message["params"]);
        let version = params.and_then(|params| params["_meta"][VERSION_IN_REQUEST].as_str());
        if let (Some(message), Some(params), Some(version)) = (message, params, version) {
            request = request.header("mcp-protocol-version", version);
            if let Some(method) = message["method"].as_str() {
                request = request.header("mcp-method", method);
            }
            let name = params["name"].as_str().or(params["uri"].as_str());
            if let Some(name) = name.or(params["taskId"].as_str()) {
                request = request.header("mcp-name", name);
            }
        }
        request
    }

    /// Whether a message is a request that names no protocol version, before a version was negotiated.
    fn is_too_early(&self, message: &Value) -> bool {
        let Some(method) = message["method"].as_str() else {
            return false;
        };
        !message["id"].is_null()
            && !WITHOUT_INITIALIZE.contains(&method)
            && message["params"]["_meta"][VERSION_IN_REQUEST].is_null()
            && self.session.lock().is_none()
    }

    /// Sends a message to the server, and what the server answers to the client.
    async fn forward(&self, message: &Value, accepted: &SetOnce<()>) {
        let id = &message["id"];
        let response = self.send(message).await;
        // Set once only, and only here.
        let _ = accepted.set(());
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                let text = format!("the server cannot be reached: {error}");
                return self.reply_error(id, INTERNAL_ERROR, &text).await;
            }
        };
        let status = response.status();
        if status == StatusCode::ACCEPTED {
            return;
        }
        let content_type = response.headers().get(CONTENT_TYPE);
        let content_type = content_type.map_or(&b""[..], |kind| kind.as_bytes());
        if content_type.starts_with(b"text/event-stream") {
            let session = response.headers().get("mcp-session-id");
            let session = session.and_then(|id| id.to_str().ok()).map(str::to_owned);
            // Without a reply the client would wait for ever.
            let is_answered = self.read_events(response, session, Some(id)).await;
            let is_cancelled = self.cancelled.lock().remove(&id.to_string());
            if !is_answered && !is_cancelled {
                let text = "the connection to the server broke before it had answered; what was asked for may \
                            have been done";
                self.reply_error(id, INTERNAL_ERROR, text).await;
            }
            return;
        }
        let is_json = content_type.starts_with(b"application/json");
        let body = response.text().await.unwrap_or_default();
        match serde_json::from_str::<Value>(&body) {
            Ok(reply) if is_json => self.write(&reply).await,
            _ => {
                let text = format!("the server refused the message ({status}): {}", body.trim());
                self.reply_error(id, INTERNAL_ERROR, &text).await;
            }
        }
    }

    /// Sends a message, again while nothing accepts connections: the server may be restarting.
    async fn send(&self, message: &Value) -> reqwest::Result<Response> {
        let deadline = Instant::now() + RECONNECT_TIMEOUT;
        loop {
            let request = self.request(Method::POST, Some(message)).json(message);
            match request.send().await {
                Err(error) if error.is_connect() && Instant::now() < deadline => {
                    if let Some(home) = &self.restartable {
                        restart_ended(home).await;
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                result => return result,
            }
        }
    }

    /// Passes on the events of the MCP session that belong to no request.
    async fn read_stream(self: Arc<Self>) {
        loop {
            match self.request(Method::GET, None).send().await {
                Ok(response) if response.status().is_success() => {
                    self.read_events(response, None, None).await;
                }
                Ok(response) if response.status().is_client_error() => return,
                _ => {}
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Passes on the messages of an event stream; whether the reply to the request was among them. With a new
    /// MCP session, the first is the reply that has its protocol version.
    async fn read_events(
        &self,
        response: Response,
        mut new_session: Option<String>,
        request: Option<&Value>,
    ) -> bool {
        let mut is_answered = request.is_none_or(Value::is_null);
        let mut bytes = response.bytes_stream();
        let (mut buffer, mut searched) = (Vec::new(), 0);
        while let Some(Ok(chunk)) = bytes.next().await {
            buffer.extend_from_slice(&chunk);
            while let Some(end) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=searched + end).collect();
                searched = 0;
                let Some(data) = line.strip_prefix(b"data:") else {
                    continue;
                };
                // Some events have no data.
                let Ok(message) = serde_json::from_slice::<Value>(data) else {
                    continue;
                };
                if let Some(protocol) = message["result"]["protocolVersion"].as_str()
                    && let Some(id) = new_session.take()
                {
                    let protocol = protocol.to_owned();
                    *self.session.lock() = Some(McpSession { id, protocol });
                }
                let is_reply = message.get("method").is_none();
                is_answered |= is_reply && request == message.get("id");
                self.write(&message).await;
            }
            searched = buffer.len();
        }
        is_answered
    }

    /// Protocol versions without MCP sessions cancel a request by ending its connection.
    fn cancel(&self, message: &Value) -> Cancellation {
        let id = message["params"]["requestId"].to_string();
        if self.session.lock().is_some() {
            let in_flight = self.in_flight.lock();
            let request = in_flight.get(&id);
            if request.is_some() {
                self.cancelled.lock().insert(id);
            }
            return Cancellation::Forward(request.map(|request| request.accepted.clone()));
        }
        if let Some(request) = self.in_flight.lock().remove(&id) {
            request.task.abort();
        }
        Cancellation::Done
    }

    async fn reply_error(&self, id: &Value, code: i64, text: &str) {
        let error = json!({ "code": code, "message": text });
        // A notification has no id and gets no reply.
        if !id.is_null() || code == PARSE_ERROR {
            self.write(&json!({ "jsonrpc": "2.0", "id": id, "error": error }))
                .await;
        }
    }

    async fn write(&self, message: &Value) {
        let _ = self.output.send(message.to_string()).await;
    }
}
