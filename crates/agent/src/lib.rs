//! The only crate of the server that speaks the Agent Client Protocol (ACP): the catalogue of agents,
//! how they are started, and what their messages mean.
//!
//! Nothing here does I/O. Functions take lines of an agent's output and return lines for its input,
//! so that the session actor can commit both together with the events that they cause.

mod catalogue;
mod droid;
mod handshake;
mod message;
mod permission_request;
mod request;
mod tool_filter;
mod update;
mod usage;

pub use catalogue::{Agent, Package, SessionFile, TranscriptFile, UsageFile, catalogue};
pub use handshake::{
    Handshake, HandshakeStep, McpServerConfig, OpenedSession, ResumeMethod, SessionOptions,
};
pub use message::AgentMessage;
pub use permission_request::{AutonomyPolicy, PermissionRequest};
pub use request::{Attachment, cancel_notification, method_not_found, prompt_request};
pub use tool_filter::{PermissionRules, ToolEnforcement, ToolFilter};
pub use update::{AgentUpdate, TextChunk, ToolCall, ToolOutcome};
pub use usage::UsageReport;
