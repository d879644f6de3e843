//! Between the server and the supervisor, PID 1 of every container.
//!
//! The supervisor dials the relay and says `supervise`; from then on the server asks and the
//! supervisor answers on that connection. Bytes travel on connections of their own: the server asks
//! with `open_stream`, the supervisor dials and says `stream`, and after that line come raw bytes,
//! so that back-pressure is the socket's and a big output never delays a message.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What this build speaks. Raised when a side may rely on something that the one before did not do;
/// who hears a lower number, or none, does without.
pub const PROTOCOL: u32 = 1;

/// The names of the methods.
pub mod methods {
    /// Supervisor to server, first line of a control connection.
    pub const SUPERVISE: &str = "supervise";
    /// Supervisor to server, first line of a connection that then carries bytes.
    pub const STREAM: &str = "stream";
    /// Supervisor to server, again on every new connection until it is forgotten.
    pub const EXITED: &str = "exited";
    pub const START: &str = "start";
    pub const SIGNAL: &str = "signal";
    pub const OPEN_STREAM: &str = "open_stream";
    pub const ACK: &str = "ack";
    pub const CLOSE_STDIN: &str = "close_stdin";
    pub const RESIZE: &str = "resize";
    pub const FORGET: &str = "forget";
}

/// Who the supervisor is, and what it looks after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Supervise {
    pub container_id: String,
    pub container_key: String,
    /// Drawn when the supervisor starts: another one means that every process of before is gone.
    pub boot_id: String,
    #[serde(default)]
    pub version: String,
    /// Its [`PROTOCOL`]; 0 if it does not say.
    #[serde(default)]
    pub protocol: u32,
    #[serde(default)]
    pub processes: Vec<ProcessReport>,
}

/// The server's answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Supervised {
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub protocol: u32,
}

/// One process as the supervisor knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    pub process_id: String,
    pub stdout: Spooled,
    pub stderr: Spooled,
    /// How many bytes of input were taken.
    pub stdin_received: u64,
    /// Absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited: Option<Exited>,
}

/// Which bytes of a stream the supervisor holds: from the first not acknowledged to the last read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spooled {
    pub start: u64,
    pub end: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Code(i32),
    Signal(i32),
}

/// Starts a process. Starting an id twice is the same start: the answer may have been lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Chosen by the server.
    pub process_id: String,
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Size>,
    /// Most bytes of one stream that wait to be acknowledged; past it the process waits.
    pub spool_limit: u64,
    /// Streams to open at once, so that a short command costs one round trip.
    #[serde(default)]
    pub streams: Vec<OpenStream>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

/// The answer to [`Start`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub pid: u32,
    /// How many of the streams of the start are on their way; a supervisor that does not know them
    /// says nothing.
    #[serde(default)]
    pub streams: usize,
}

/// Why a process could not be started, in the `data` of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub kind: FaultKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// There is no such program.
    NotFound,
    /// There is, and it cannot be run.
    Denied,
    /// Nothing of that name is looked after.
    NoSuchProcess,
    /// The container is being stopped, and starts nothing more.
    Stopping,
    Other,
}

/// Asks the supervisor to dial a connection for bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenStream {
    /// Chosen by the server, secret, used once: it is what ties the connection to the request.
    pub stream_id: String,
    pub process_id: String,
    pub kind: StreamKind,
    /// The offset of the first byte wanted; for input, of the first byte that will come.
    pub from: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamKind {
    Stdin,
    Stdout,
    Stderr,
}

/// First line of a connection for bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    pub stream_id: String,
    /// Where the bytes begin; later than asked if they were dropped, earlier never.
    pub from: u64,
}

/// The server has stored everything before this offset: it may be dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    pub process_id: String,
    pub kind: StreamKind,
    pub offset: u64,
}

/// No more input comes after this offset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseStdin {
    pub process_id: String,
    pub at: u64,
}

/// A process by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub process_id: String,
}

/// Lets go of a process that has ended, with its output.
pub type Forget = Named;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToSignal {
    pub process_id: String,
    pub signal: i32,
    /// To everything the process started, whatever session it moved to.
    #[serde(default)]
    pub tree: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalResize {
    pub process_id: String,
    pub size: Size,
}

/// A process has ended. `stdout` and `stderr` are all it had written by then; children that it left
/// behind may write more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    pub process_id: String,
    pub ended: Ended,
    pub stdout_end: u64,
    pub stderr_end: u64,
}
