//! Messages between the server and the supervisor, which is PID 1 of every container.
//!
//! The supervisor connects to the relay and sends `supervise`; from then on the server sends
//! requests on that connection and the supervisor replies. The bytes of a process travel on
//! connections of their own: the server requests one with `open_stream`, the supervisor connects and
//! sends `stream`, and raw bytes follow that line. Back-pressure is then the socket's, and a large
//! output never delays a message.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The protocol version of this build. It is raised when one side may rely on something that the
/// version before did not do; towards a peer with a lower version, or none, it must not. Since version 2
/// the client of a container has [`crate::AGENT_SUBCOMMAND`].
pub const PROTOCOL_VERSION: u32 = 2;

/// The methods of control connections and streams. The server sends those without a comment.
pub mod supervisor_methods {
    /// Sent by the supervisor as the first line of a control connection.
    pub const SUPERVISE: &str = "supervise";
    /// Sent by the supervisor as the first line of a connection that then carries bytes.
    pub const STREAM: &str = "stream";
    /// Sent by the supervisor, again on every new connection until the server sends `forget`.
    pub const EXITED: &str = "exited";
    pub const START: &str = "start";
    pub const SIGNAL: &str = "signal";
    pub const OPEN_STREAM: &str = "open_stream";
    pub const ACK: &str = "ack";
    pub const CLOSE_STDIN: &str = "close_stdin";
    pub const RESIZE: &str = "resize";
    pub const FORGET: &str = "forget";
}

/// Identifies the supervisor and reports its processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Supervise {
    pub container_id: String,
    pub container_key: String,
    /// Random, chosen when the supervisor starts. If it changes, all earlier processes are gone.
    pub boot_id: String,
    #[serde(default)]
    pub version: String,
    /// Its [`PROTOCOL_VERSION`]; 0 if absent.
    #[serde(default)]
    pub protocol: u32,
    #[serde(default)]
    pub processes: Vec<ProcessReport>,
    /// Whether programs of the container reach the gateway to models.
    #[serde(default)]
    pub gateway: bool,
}

/// The result of [`Supervise`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Supervised {
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub protocol: u32,
}

/// The state of one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    pub process_id: String,
    pub stdout: SpoolRange,
    pub stderr: SpoolRange,
    /// How many bytes of input the supervisor has received.
    pub stdin_received: u64,
    /// Absent while the process runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited: Option<Exited>,
}

/// The byte offsets of a stream that the supervisor holds: `start` is the first one that is not
/// acknowledged, `end` is behind the last one that was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolRange {
    pub start: u64,
    pub end: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

/// Starts a process. A second start with the same id returns the first process: the server repeats
/// a start whose result was lost.
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
    pub pty: Option<TerminalSize>,
    /// The maximum of unacknowledged bytes of one stream; a process that writes more is blocked.
    pub spool_limit: u64,
    /// Whether no other process tree of the container may read this one's memory and environment. The
    /// trees of other processes have this in common: none can read an isolated one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub isolated: bool,
    /// Streams to open together with the start, so that a short command costs one round trip.
    #[serde(default)]
    pub streams: Vec<OpenStream>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// The result of [`Start`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub pid: u32,
    /// How many of the requested streams the supervisor opens; 0 from a supervisor that does not
    /// support them.
    #[serde(default)]
    pub streams: usize,
}

/// The `data` of an error about a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFault {
    pub kind: ProcessFaultKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessFaultKind {
    /// The program does not exist.
    NotFound,
    /// The program exists and cannot be executed.
    Denied,
    /// The supervisor has no process of that id.
    NoSuchProcess,
    /// The container is stopping and starts no more processes.
    Stopping,
    Other,
}

/// Requests a connection that carries the bytes of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenStream {
    /// Chosen by the server, secret, used once: it ties the connection to this request.
    pub stream_id: String,
    pub process_id: String,
    pub kind: StreamKind,
    /// The offset of the first byte: of output, the first to send; of input, the first that comes.
    pub from: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamKind {
    Stdin,
    Stdout,
    Stderr,
}

/// The first line of a connection that carries bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOpened {
    pub stream_id: String,
    /// The offset of the first byte; later than requested if bytes were dropped, never earlier.
    pub from: u64,
}

/// The server has stored everything before `offset`, and the supervisor may drop it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckOutput {
    pub process_id: String,
    pub kind: StreamKind,
    pub offset: u64,
}

/// The input ends at offset `at`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseStdin {
    pub process_id: String,
    pub at: u64,
}

/// Removes a process that has ended, with its output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forget {
    pub process_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalProcess {
    pub process_id: String,
    pub signal: i32,
    /// Whether the signal also goes to every process that this one started, directly or not.
    #[serde(default)]
    pub tree: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeTerminal {
    pub process_id: String,
    pub size: TerminalSize,
}

/// A process has ended. The offsets count what it had written by then; children that still run may
/// write more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    pub process_id: String,
    pub ended: ExitStatus,
    pub stdout_end: u64,
    pub stderr_end: u64,
}
