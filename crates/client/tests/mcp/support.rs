//! An agent that starts the client, and a relay that the client connects to.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};

const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);

type Reader = BufReader<Box<dyn AsyncRead + Unpin>>;
type Writer = Box<dyn AsyncWrite + Unpin>;

/// How the client is started.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) session: bool,
    pub(crate) api_key: Option<&'static str>,
    pub(crate) socket: Option<PathBuf>,
    /// Whether the agent uses a changed list some time after it has asked for it.
    pub(crate) confirms_lists: bool,
    /// Whether its standard streams are sockets, as with some agents, instead of pipes.
    pub(crate) sockets: bool,
}

/// Lines of JSON in both directions.
struct JsonLines {
    reader: Reader,
    writer: Writer,
}

impl JsonLines {
    async fn write_bytes(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    async fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = tokio::time::timeout(RECEIVE_TIMEOUT, self.reader.read_line(&mut line)).await;
        match read.expect("no line arrives") {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }
}

/// The client as an agent sees it.
pub(crate) struct Agent {
    child: Child,
    lines: JsonLines,
    /// Messages that were received and not looked for yet.
    unread: VecDeque<Value>,
    socket: PathBuf,
    _home: TempDir,
}

impl Agent {
    pub(crate) fn start(options: &Options) -> Self {
        let home = tempfile::tempdir().unwrap();
        let own_socket = || home.path().join("relay.sock");
        let socket = options.socket.clone().unwrap_or_else(own_socket);
        let mut command = Command::new(env!("CARGO_BIN_EXE_oubliette-client"));
        command
            .env_clear()
            .env("OUBLIETTE_SOCKET", &socket)
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if options.session {
            command
                .env("OUBLIETTE_SESSION_ID", "gogol_test")
                .env("OUBLIETTE_SESSION_KEY", "session-key");
        }
        if let Some(key) = options.api_key {
            command.env("OUBLIETTE_API_KEY", key);
        }
        if options.confirms_lists {
            command.env("OUBLIETTE_CONFIRM_LISTS", "1");
        }
        let (child, lines) = if options.sockets {
            spawn_on_sockets(command)
        } else {
            spawn_on_pipes(command)
        };
        Self {
            child,
            lines,
            unread: VecDeque::new(),
            socket,
            _home: home,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    pub(crate) async fn write_bytes(&mut self, bytes: &[u8]) {
        self.lines.write_bytes(bytes).await;
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.write_bytes(format!("{message}\n").as_bytes()).await;
    }

    pub(crate) async fn send_request(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let id: Value = id.into();
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(&message).await;
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.send(&message).await;
    }

    /// The first message that matches; the others stay unread.
    async fn find(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.unread.iter().position(&wanted) {
            return self.unread.remove(at).unwrap();
        }
        loop {
            let message = self.lines.next().await.expect("the client has ended");
            if wanted(&message) {
                return message;
            }
            self.unread.push_back(message);
        }
    }

    pub(crate) async fn reply(&mut self, id: impl Into<Value>) -> Value {
        let id: Value = id.into();
        self.find(|message| message["id"] == id && message["method"].is_null())
            .await
    }

    pub(crate) async fn notification(&mut self, method: &str) -> Value {
        self.find(|message| message["method"] == method).await
    }

    pub(crate) async fn tools_changed(&mut self) -> bool {
        let notification = self.notification("notifications/tools/list_changed").await;
        notification.get("id").is_none()
    }

    /// Whether no message is unread, except changes of the tool list.
    pub(crate) fn has_no_unread(&self) -> bool {
        let mut unread = self.unread.iter();
        unread.all(|message| message["method"] == "notifications/tools/list_changed")
    }

    pub(crate) async fn initialize(&mut self, version: &str) -> Value {
        let params = json!({
            "protocolVersion": version, "capabilities": {},
            "clientInfo": { "name": "test", "version": "0" },
        });
        self.send_request("initialize", "initialize", params).await;
        let reply = self.reply("initialize").await;
        self.notify("notifications/initialized", json!({})).await;
        reply
    }

    pub(crate) async fn tools(&mut self) -> Value {
        self.send_request("tools", "tools/list", json!({})).await;
        self.reply("tools").await
    }

    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments });
        self.send_request("a call", "tools/call", params).await;
        self.reply("a call").await
    }

    /// Closes the client's input, waits for its exit and returns its standard error.
    pub(crate) async fn end(self) -> String {
        let Self {
            mut child, lines, ..
        } = self;
        drop(lines);
        let mut stderr = child.stderr.take().unwrap();
        let mut log = String::new();
        let exited = async {
            stderr.read_to_string(&mut log).await.unwrap();
            child.wait().await.unwrap()
        };
        let exited = tokio::time::timeout(RECEIVE_TIMEOUT, exited).await;
        let status = exited.expect("the client does not exit");
        assert!(status.success(), "{status:?} {log}");
        log
    }
}

fn spawn_on_pipes(mut command: Command) -> (Child, JsonLines) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = JsonLines {
        reader: BufReader::new(Box::new(child.stdout.take().unwrap())),
        writer: Box::new(child.stdin.take().unwrap()),
    };
    (child, lines)
}

fn spawn_on_sockets(mut command: Command) -> (Child, JsonLines) {
    let pair = || std::os::unix::net::UnixStream::pair().unwrap();
    let ((input, theirs), (output, their_output)) = (pair(), pair());
    command
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(OwnedFd::from(their_output)));
    let child = command.spawn().unwrap();
    // The command holds the client's ends open until it is dropped.
    drop(command);
    let ours = |stream: std::os::unix::net::UnixStream| {
        stream.set_nonblocking(true).unwrap();
        UnixStream::from_std(stream).unwrap()
    };
    let lines = JsonLines {
        reader: BufReader::new(Box::new(ours(output))),
        writer: Box::new(ours(input)),
    };
    (child, lines)
}

/// The relay socket that the client connects to.
pub(crate) struct Relay {
    listener: Option<UnixListener>,
    path: PathBuf,
    home: Option<TempDir>,
}

impl Default for Relay {
    fn default() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut relay = Self::listen(home.path().join("relay.sock"));
        relay.home = Some(home);
        relay
    }
}

impl Relay {
    pub(crate) fn listen(path: PathBuf) -> Self {
        let _ = std::fs::remove_file(&path);
        Self {
            listener: Some(UnixListener::bind(&path).unwrap()),
            path,
            home: None,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    pub(crate) fn close(&mut self) {
        self.listener = None;
        let _ = std::fs::remove_file(&self.path);
    }

    pub(crate) fn open(&mut self) {
        self.listener = Some(UnixListener::bind(&self.path).unwrap());
    }

    pub(crate) async fn accept(&mut self) -> Server {
        let accepting = self.listener.as_ref().unwrap().accept();
        let accepted = tokio::time::timeout(RECEIVE_TIMEOUT, accepting).await;
        let (stream, _) = accepted.expect("the client does not connect").unwrap();
        let (reader, writer) = stream.into_split();
        Server(JsonLines {
            reader: BufReader::new(Box::new(reader)),
            writer: Box::new(writer),
        })
    }
}

/// The relay's side of a connection.
pub(crate) struct Server(JsonLines);

impl Server {
    /// The next message. That the agent has listed its tools can be reported at any time, and is left
    /// out.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            let message = self.0.next().await?;
            if message["method"] != "tools_listed" {
                return Some(message);
            }
        }
    }

    /// The next report of the tools that the agent has listed.
    pub(crate) async fn listed(&mut self) -> Value {
        loop {
            let message = self.0.next().await.expect("the client has ended");
            if message["method"] == "tools_listed" {
                self.reply(&message, json!({})).await;
                return message["params"]["caller_tools"].clone();
            }
        }
    }

    async fn send(&mut self, message: &Value) {
        self.0.write_bytes(format!("{message}\n").as_bytes()).await;
    }

    pub(crate) async fn reply(&mut self, request: &Value, result: Value) {
        let reply = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
        self.send(&reply).await;
    }

    pub(crate) async fn fail(&mut self, request: &Value, code: i64, message: &str) {
        let error = json!({ "code": code, "message": message });
        let reply = json!({ "jsonrpc": "2.0", "id": request["id"], "error": error });
        self.send(&reply).await;
    }

    /// Accepts the client's `attach`, which it returns.
    pub(crate) async fn attach(&mut self) -> Value {
        let request = self.next().await.unwrap();
        assert_eq!(request["method"], "attach", "{request}");
        assert_eq!(request["params"]["session_key"], "session-key");
        let session = request["params"]["session_id"].clone();
        self.reply(&request, json!({ "session_id": session })).await;
        request
    }

    pub(crate) async fn send_caller_tools(&mut self, caller: &str, tools: Value) {
        let name = "caller_tools_config";
        let params = json!({ "caller_id": caller, "tools": tools });
        let message = json!({ "jsonrpc": "2.0", "type": name, "method": name, "params": params });
        self.send(&message).await;
    }
}
