//! What Oubliette does, without knowledge of transports, of the store's implementation or of
//! container drivers.
//!
//! Every transport calls [`Engine::call`], which finds, permits, parses, runs and audits an operation.

mod actor;
mod agents;
mod audit;
mod call;
mod callers;
mod checkpoints;
mod clock;
mod containers;
mod credentials;
mod engine;
mod error;
mod files;
mod gateway;
mod git;
mod idle;
mod limits;
mod long_text;
mod mcp_sessions;
mod metrics;
mod network;
pub mod operations;
mod paging;
mod projects;
mod recovery;
mod refusal;
mod schedules;
mod sessions;
mod settings;
mod tokens;
mod workspaces;

pub use actor::Actor;
pub use agents::{INSTALLED_AGENTS_DIR, store_models, stored_models};
pub use call::{Call, Progress};
pub use callers::{
    CallerError, Callers, ListeningGuard, OpenStream, ToolListSubscriber, dry_declaration,
};
pub use clock::Clock;
pub use containers::{
    AvailableRuntime, Containers, IncomingStream, RelayListeners, Stream, SupervisorLink,
};
pub use credentials::{Credential, CredentialError, GIT_KINDS, credential_kinds};
pub use engine::Engine;
pub use error::{
    ALREADY_EXISTS, EngineError, NO_CHECKPOINT, NOT_FOUND, Result, UNKNOWN_CREDENTIAL_KIND,
};
pub use files::{MOUNT_LINK, SESSION_HOMES_DIR};
pub use mcp_sessions::{BoundSession, McpSessions};
pub use metrics::{CallCount, CallCounts, Metrics, StateCounts};
pub use schedules::Schedules;
pub use sessions::{
    AgentCallGuard, AgentTool, AttachedSession, Follower, PolledTurn, Sessions, TurnId, TurnState,
};
pub use settings::{
    AgentCommand, AuditSettings, BUILT_IN_CONTAINER_TYPES, CallerSettings, ContainerSettings,
    ContainerType, Limits, NetworkSettings, OnDisconnect, Price, ProjectRules, ScheduleSettings,
    SessionSettings, Settings, ToolSettings,
};
pub use tokens::{Authenticated, NewToken, Tokens};
pub use workspaces::{Download, DownloadedPieces, TransferError, Transfers, Upload};
