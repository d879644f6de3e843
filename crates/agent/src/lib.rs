//! The only crate of the server that speaks ACP: which agents there are, how they are started, and
//! what their lines mean.
//!
//! Nothing here does I/O. Bytes come in with their place in the agent's output and leave as lines
//! for its input, so that whoever owns a session can commit both with the events they came to.

mod catalogue;
mod handshake;
mod line;
mod output;
mod permission;
mod request;
mod tools;
mod update;
mod usage;

pub use catalogue::{Agent, OwnFile, Package, catalogue};
pub use handshake::{Handshake, Heard as HandshakeHeard, Opened, Plan, Resumed, Server};
pub use line::{Line, RpcError, read};
pub use output::{output_line, output_mark};
pub use permission::{Permission, Policy};
pub use request::{Attached, cancel, prompt, refuse};
pub use tools::{Keeper, Rules, Tools};
pub use update::{Chunk, Said, Tool, ToolEnd};
pub use usage::{Reported, usage_file};
