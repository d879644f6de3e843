//! An agent that starts the client, and a relay for it to dial.

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

const PATIENCE: Duration = Duration::from_secs(30);

type Reader = BufReader<Box<dyn AsyncRead + Unpin>>;
type Writer = Box<dyn AsyncWrite + Unpin>;

/// How the client is started.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) session: bool,
    pub(crate) api_key: Option<&'static str>,
    pub(crate) socket: Option<PathBuf>,
    /// Whether its standard streams are sockets, as some programs make them, and not pipes.
    pub(crate) sockets: bool,
}

/// Lines of JSON, both ways.
struct Lines {
    reader: Reader,
    writer: Writer,
}

impl Lines {
    async fn raw(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    async fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.reader.read_line(&mut line)).await;
        match read.expect("nothing is said") {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }
}

/// The client, from an agent's side.
pub(crate) struct Agent {
    child: Child,
    lines: Lines,
    aside: VecDeque<Value>,
    socket: PathBuf,
    _home: TempDir,
}

impl Agent {
    pub(crate) fn start(options: &Options) -> Self {
        let home = tempfile::tempdir().unwrap();
        let socket = options.socket.clone();
        let socket = socket.unwrap_or_else(|| home.path().join("relay.sock"));
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
        let (child, lines) = match options.sockets {
            true => on_sockets(command),
            false => on_pipes(command),
        };
        Self {
            child,
            lines,
            aside: VecDeque::new(),
            socket,
            _home: home,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        self.lines.raw(bytes).await;
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    pub(crate) async fn begin(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let id: Value = id.into();
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(&message).await;
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.send(&message).await;
    }

    /// The first message that is as wanted; others are kept.
    async fn find(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.aside.iter().position(&wanted) {
            return self.aside.remove(at).unwrap();
        }
        loop {
            let message = self.lines.next().await.expect("the client has ended");
            if wanted(&message) {
                return message;
            }
            self.aside.push_back(message);
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
        let told = self.notification("notifications/tools/list_changed").await;
        told.get("id").is_none()
    }

    /// Whether everything that was said has been looked at, but for changes of the list.
    pub(crate) fn nothing_else(&self) -> bool {
        let mut rest = self.aside.iter();
        rest.all(|message| message["method"] == "notifications/tools/list_changed")
    }

    pub(crate) async fn initialize(&mut self, version: &str) -> Value {
        let params = json!({
            "protocolVersion": version, "capabilities": {},
            "clientInfo": { "name": "test", "version": "0" },
        });
        self.begin("initialize", "initialize", params).await;
        let reply = self.reply("initialize").await;
        self.notify("notifications/initialized", json!({})).await;
        reply
    }

    pub(crate) async fn tools(&mut self) -> Value {
        self.begin("tools", "tools/list", json!({})).await;
        self.reply("tools").await
    }

    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments });
        self.begin("a call", "tools/call", params).await;
        self.reply("a call").await
    }

    /// Ends its input, and waits for its end; what it said on standard error.
    pub(crate) async fn end(self) -> String {
        let Self {
            mut child, lines, ..
        } = self;
        drop(lines);
        let mut stderr = child.stderr.take().unwrap();
        let mut said = String::new();
        let over = async {
            stderr.read_to_string(&mut said).await.unwrap();
            child.wait().await.unwrap()
        };
        let status = tokio::time::timeout(PATIENCE, over).await;
        let status = status.expect("the client does not end");
        assert!(status.success(), "{status:?} {said}");
        said
    }
}

fn on_pipes(mut command: Command) -> (Child, Lines) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = Lines {
        reader: BufReader::new(Box::new(child.stdout.take().unwrap())),
        writer: Box::new(child.stdin.take().unwrap()),
    };
    (child, lines)
}

fn on_sockets(mut command: Command) -> (Child, Lines) {
    let pair = || std::os::unix::net::UnixStream::pair().unwrap();
    let ((input, theirs), (output, their_output)) = (pair(), pair());
    command
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(OwnedFd::from(their_output)));
    let child = command.spawn().unwrap();
    // The command keeps its ends open as long as it lives.
    drop(command);
    let ours = |stream: std::os::unix::net::UnixStream| {
        stream.set_nonblocking(true).unwrap();
        UnixStream::from_std(stream).unwrap()
    };
    let lines = Lines {
        reader: BufReader::new(Box::new(ours(output))),
        writer: Box::new(ours(input)),
    };
    (child, lines)
}

/// Where the client dials.
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
        let accepted = self.listener.as_ref().unwrap().accept();
        let accepted = tokio::time::timeout(PATIENCE, accepted).await;
        let (stream, _) = accepted.expect("nobody dials").unwrap();
        let (reader, writer) = stream.into_split();
        Server(Lines {
            reader: BufReader::new(Box::new(reader)),
            writer: Box::new(writer),
        })
    }
}

/// The relay's side of a connection.
pub(crate) struct Server(Lines);

impl Server {
    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.0.next().await
    }

    async fn send(&mut self, message: &Value) {
        self.0.raw(format!("{message}\n").as_bytes()).await;
    }

    pub(crate) async fn reply(&mut self, to: &Value, result: Value) {
        let reply = json!({ "jsonrpc": "2.0", "id": to["id"], "result": result });
        self.send(&reply).await;
    }

    pub(crate) async fn fail(&mut self, to: &Value, code: i64, why: &str) {
        let error = json!({ "code": code, "message": why });
        let reply = json!({ "jsonrpc": "2.0", "id": to["id"], "error": error });
        self.send(&reply).await;
    }

    /// Takes the client for the session that it says it is.
    pub(crate) async fn attach(&mut self) -> Value {
        let asked = self.next().await.unwrap();
        assert_eq!(asked["method"], "attach", "{asked}");
        assert_eq!(asked["params"]["session_key"], "session-key");
        let session = asked["params"]["session_id"].clone();
        self.reply(&asked, json!({ "session_id": session })).await;
        asked
    }

    pub(crate) async fn caller_tools(&mut self, caller: &str, tools: Value) {
        let name = "caller_tools_config";
        let params = json!({ "caller_id": caller, "tools": tools });
        let message = json!({ "jsonrpc": "2.0", "type": name, "method": name, "params": params });
        self.send(&message).await;
    }
}
