//! Every serialised promise between the server and what runs in containers.
//!
//! Newline-delimited JSON-RPC 2.0, both ways. Types here only grow: a client one version older or
//! newer than the server still works, so new fields are optional and unknown ones are ignored.

pub mod carry;
mod lines;
mod message;
mod paths;
mod relay;
mod supervise;

pub use lines::{LineReader, LineTooLong, MAX_LINE_BYTES};
pub use message::{Message, RpcError, codes};
pub use paths::{CLIENT_PATH, RELAY_DIR_PATH, RELAY_SOCKET_PATH};
pub use relay::{
    Attach, Attached, CallTool, CallerTool, CallerTools, Cancel, ListTools, ToolEntry, ToolList,
    ToolResult, caller_tool_name, calls,
};
pub use supervise::{
    Ack, CloseStdin, Ended, Exited, Fault, FaultKind, Forget, Named, OpenStream, Opened, PROTOCOL,
    ProcessReport, Size, Spooled, Start, Started, StreamKind, Supervise, Supervised,
    TerminalResize, ToSignal, User, methods,
};
