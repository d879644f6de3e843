//! The only crate of the server that speaks the Agent Client Protocol (ACP): the catalogue of agents,
//! how they are started, and what their messages mean.
//!
//! Nothing here does I/O. Functions take lines of an agent's output and return lines for its input,
//! so that the session actor can commit both together with the events that they cause.

mod agent;
mod autonomy;
mod catalogue;
mod failure;
mod handshake;
mod home;
mod message;
mod opened_session;
mod permission_request;
mod request;
mod restrictions;
mod sign_in;
mod signals;
mod tool_filter;
mod tool_input;
mod update;
mod usage;

pub use agent::{
    Agent, McpFile, ModelSetting, OwnTexts, Package, SessionFile, ToolRefresh, TranscriptFile,
    UsageFile,
};
pub use autonomy::{AutonomyDecision, AutonomyPolicy};
pub use catalogue::catalogue;
pub use failure::{FailureCause, failure_reason};
pub use handshake::{
    Handshake, HandshakeStep, McpServerConfig, OpenedSession, ResumeMethod, SessionOptions,
};
pub use home::HomeLayout;
pub use message::AgentMessage;
pub use opened_session::offered_models;
pub use permission_request::PermissionRequest;
pub use request::{Attachment, Image, cancel_notification, method_not_found, prompt_request};
pub use restrictions::{RestrictionSettings, Restrictions};
pub use sign_in::{
    Gateway, GatewayModel, GatewayModels, GatewayPath, GatewaySetting, Login, LoginCommand,
    LoginFile, OwnModels, SignInMethods,
};
pub use signals::{AgentState, Signal};
pub use tool_filter::{PermissionRules, ToolEnforcement, ToolFilter};
pub use update::{AgentUpdate, TextChunk, ToolCall, ToolOutcome};
pub use usage::{UsageReport, model_of_turn};
