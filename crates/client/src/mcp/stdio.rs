//! The agent's side: lines on the standard streams, as the SDK wants them.
//!
//! Before an agent has introduced itself the SDK gives up on what it does not expect. Some agents
//! ask first and introduce themselves later; here they get an answer and all the time they need.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use oubliette_wire::LineReader;
use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use rustix::fs::FileType;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_REQUEST: i64 = -32600;
const PARSE_ERROR: i64 = -32700;
/// What a request of the protocol without introduction says about itself.
const INLINE: &str = "io.modelcontextprotocol/protocolVersion";

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The standard streams.
pub(super) struct Stdio {
    reader: Reader,
    writer: Arc<Mutex<Writer>>,
    lines: LineReader,
    chunk: Vec<u8>,
    /// Whether the agent has introduced itself.
    introduced: bool,
    over: CancellationToken,
}

impl Stdio {
    /// `over` is cancelled at the end of the input.
    pub(super) fn open(over: CancellationToken) -> io::Result<Self> {
        Ok(Self {
            reader: reader(rustix::io::dup(rustix::stdio::stdin())?)?,
            writer: Arc::new(Mutex::new(writer(rustix::io::dup(
                rustix::stdio::stdout(),
            )?)?)),
            lines: LineReader::default(),
            chunk: vec![0; 8 << 10],
            introduced: false,
            over,
        })
    }

    /// Says no to a request. Nobody waits for it here: whoever receives may be given up in the
    /// middle of it.
    fn refuse(&self, id: Value, code: i64, why: &'static str) {
        let writer = self.writer.clone();
        tokio::spawn(async move {
            let error = json!({ "code": code, "message": why });
            let reply = json!({ "jsonrpc": "2.0", "id": id, "error": error });
            let _ = write(&writer, &reply).await;
        });
    }

    /// What the SDK gets of a line.
    fn understand(&mut self, line: &[u8]) -> Option<ClientJsonRpcMessage> {
        if line.trim_ascii().is_empty() {
            return None;
        }
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            self.refuse(Value::Null, PARSE_ERROR, "the line is not JSON");
            return None;
        };
        if !self.introduced && !self.introduces(&message) {
            return None;
        }
        let id = message["id"].clone();
        match serde_json::from_value(message) {
            Ok(message) => Some(message),
            Err(_) if !id.is_null() => {
                let why = "that is not a request of the protocol";
                self.refuse(id, INVALID_REQUEST, why);
                None
            }
            Err(_) => None,
        }
    }

    /// Whether the SDK knows what to do with a message that comes first.
    fn introduces(&mut self, message: &Value) -> bool {
        let (id, method) = (message["id"].clone(), message["method"].as_str());
        let (Some(method), false) = (method, id.is_null()) else {
            return false;
        };
        match method {
            "initialize" => self.introduced = true,
            "ping" => {}
            "server/discover" => {
                self.refuse(id, METHOD_NOT_FOUND, "method not found");
                return false;
            }
            _ if message["params"]["_meta"][INLINE].is_string() => self.introduced = true,
            _ => {
                let why = "method not found; `initialize` comes first";
                self.refuse(id, METHOD_NOT_FOUND, why);
                return false;
            }
        }
        true
    }
}

async fn write(writer: &Mutex<Writer>, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut writer = writer.lock().await;
    writer.write_all(&line).await?;
    writer.flush().await
}

impl Transport<RoleServer> for Stdio {
    type Error = io::Error;

    fn send(
        &mut self,
        item: ServerJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let writer = self.writer.clone();
        async move { write(&writer, &item).await }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            while let Some(line) = self.lines.next_line() {
                if let Ok(line) = line
                    && let Some(message) = self.understand(&line)
                {
                    return Some(message);
                }
            }
            match self.reader.read(&mut self.chunk).await {
                Ok(0) | Err(_) => {
                    self.over.cancel();
                    return None;
                }
                Ok(read) => self.lines.push(&self.chunk[..read]),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn kind(fd: impl AsFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

/// Pipes and sockets need no thread to wait for them.
fn reader(fd: OwnedFd) -> io::Result<Reader> {
    Ok(match kind(&fd)? {
        FileType::Fifo => Box::new(pipe::Receiver::from_owned_fd(fd)?),
        FileType::Socket => Box::new(socket(fd)?),
        _ => Box::new(tokio::io::stdin()),
    })
}

fn writer(fd: OwnedFd) -> io::Result<Writer> {
    Ok(match kind(&fd)? {
        FileType::Fifo => Box::new(pipe::Sender::from_owned_fd(fd)?),
        FileType::Socket => Box::new(socket(fd)?),
        _ => Box::new(tokio::io::stdout()),
    })
}

fn socket(fd: OwnedFd) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
