//! Everything that the server and the programs in containers send each other.
//!
//! Newline-delimited JSON-RPC 2.0, both ways. Types here only grow: a client one version older or
//! newer than the server still works, so new fields are optional and unknown ones are ignored.

mod file_changes;
mod home;
mod jsonrpc;
mod lines;
pub mod mux;
mod paths;
mod relay;
mod supervise;

pub use file_changes::{
    APPLY_FILES, AppliedFiles, FileAction, FileChange, FileChangeHead, FileChangeKind,
};
pub use home::{AGENT_SUBCOMMAND, FileFormat, HomeFile, HomePlan, HomeReport, merge_json};
pub use jsonrpc::{InvalidRequest, Message, Request, RpcError, codes};
pub use lines::{LineReader, LineTooLong, MAX_LINE_BYTES};
pub use paths::{
    AGENT_INSTRUCTIONS, CLIENT_PATH, CONFIRM_LISTS_VARIABLE, EGRESS_SOCKET_PATH,
    EGRESS_SOCKET_VARIABLE, LOOPBACK_PORTS_VARIABLE, RELAY_DIR_PATH, RELAY_SOCKET_PATH,
};
pub use relay::{
    Attach, Attached, CallTool, CallerTool, CallerTools, Cancel, ListTools, ToolEntry, ToolList,
    ToolResult, ToolsListed, caller_tool_name, relay_methods,
};
pub use supervise::{
    AckOutput, CloseStdin, ExitStatus, Exited, Forget, OpenStream, PROTOCOL_VERSION, ProcessFault,
    ProcessFaultKind, ProcessReport, ResizeTerminal, SignalProcess, SpoolRange, Start, Started,
    StreamKind, StreamOpened, Supervise, Supervised, TerminalSize, User, supervisor_methods,
};
