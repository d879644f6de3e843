//! The transport to the agent: lines on the standard streams.
//!
//! Before `initialize` the SDK ends the connection at a message that it does not expect. Some agents
//! send other requests first; this transport replies to them with an error and waits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use oubliette_wire::{LineReader, Message, RpcError, codes};
use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use rustix::fs::FileType;
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

const READ_BUFFER_BYTES: usize = 8 << 10;
/// Metadata of a request in the version of the protocol that has no `initialize`.
const PROTOCOL_VERSION_META: &str = "io.modelcontextprotocol/protocolVersion";

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

pub(super) struct StdioTransport {
    reader: Reader,
    writer: Arc<Mutex<Writer>>,
    lines: LineReader,
    buffer: Vec<u8>,
    initialized: bool,
    input_ended: CancellationToken,
}

impl StdioTransport {
    /// `input_ended` is cancelled at the end of the input.
    pub(super) fn open(input_ended: CancellationToken) -> io::Result<Self> {
        Ok(Self {
            reader: reader(rustix::io::dup(rustix::stdio::stdin())?)?,
            writer: Arc::new(Mutex::new(writer(rustix::io::dup(
                rustix::stdio::stdout(),
            )?)?)),
            lines: LineReader::default(),
            buffer: vec![0; READ_BUFFER_BYTES],
            initialized: false,
            input_ended,
        })
    }

    /// Replies with an error, in a task of its own: the future of `receive` can be dropped at any
    /// await.
    fn reply_error(&self, id: Value, code: i64, why: &'static str) {
        let writer = self.writer.clone();
        tokio::spawn(async move {
            let reply = Message::reply(id, Err(RpcError::new(code, why)));
            let _ = write(&writer, &reply).await;
        });
    }

    /// The message for the SDK, if the line is one that it handles.
    fn parse_line(&mut self, line: &[u8]) -> Option<ClientJsonRpcMessage> {
        if line.trim_ascii().is_empty() {
            return None;
        }
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            self.reply_error(Value::Null, codes::PARSE_ERROR, "the line is not JSON");
            return None;
        };
        if !self.initialized && !self.accept_first(&message) {
            return None;
        }
        let id = message["id"].clone();
        match serde_json::from_value(message) {
            Ok(message) => Some(message),
            Err(_) if !id.is_null() => {
                let why = "the message is not a valid MCP request";
                self.reply_error(id, codes::INVALID_REQUEST, why);
                None
            }
            Err(_) => None,
        }
    }

    /// Whether the SDK handles a message before `initialize`; otherwise a request gets an error.
    fn accept_first(&mut self, message: &Value) -> bool {
        let id = message["id"].clone();
        let Some(method) = message["method"].as_str().filter(|_| !id.is_null()) else {
            return false;
        };
        let why = match method {
            "ping" => return true,
            "server/discover" => "method not found",
            "initialize" => {
                self.initialized = true;
                return true;
            }
            _ if message["params"]["_meta"][PROTOCOL_VERSION_META].is_string() => {
                self.initialized = true;
                return true;
            }
            _ => "method not found; `initialize` comes first",
        };
        self.reply_error(id, codes::METHOD_NOT_FOUND, why);
        false
    }
}

async fn write(writer: &Mutex<Writer>, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut writer = writer.lock().await;
    writer.write_all(&line).await?;
    writer.flush().await
}

impl Transport<RoleServer> for StdioTransport {
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
                    && let Some(message) = self.parse_line(&line)
                {
                    return Some(message);
                }
            }
            match self.reader.read(&mut self.buffer).await {
                Ok(0) | Err(_) => {
                    self.input_ended.cancel();
                    return None;
                }
                Ok(read) => self.lines.push(&self.buffer[..read]),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn file_type(fd: impl AsFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

/// Unlike other files, pipes and sockets are read without a thread.
fn reader(fd: OwnedFd) -> io::Result<Reader> {
    Ok(match file_type(&fd)? {
        FileType::Fifo => Box::new(pipe::Receiver::from_owned_fd(fd)?),
        FileType::Socket => Box::new(socket(fd)?),
        _ => Box::new(tokio::io::stdin()),
    })
}

fn writer(fd: OwnedFd) -> io::Result<Writer> {
    Ok(match file_type(&fd)? {
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
