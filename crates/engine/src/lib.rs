//! What Oubliette does. Knows no transport, names no store and no driver.
//!
//! Every face calls [`Engine::call`], the one path by which an operation is found, permitted,
//! parsed, run and audited.

mod actor;
mod agents;
mod audit;
mod call;
mod callers;
mod clock;
mod containers;
mod credentials;
mod engine;
mod error;
mod files;
mod git;
mod limits;
mod metrics;
pub mod operations;
mod paging;
mod projects;
mod schedules;
mod sessions;
mod settings;
mod tokens;
mod workspaces;

pub use actor::Actor;
pub use audit::AuditLog;
pub use call::{Call, Progress};
pub use callers::{CallerError, Ear, Listening, OpenLine, dry_declaration};
pub use clock::Clock;
pub use containers::{Choice, Doors, Incoming, Link, Stream};
pub use credentials::{Credential, CredentialError};
pub use engine::Engine;
pub use error::{EngineError, Result};
pub use metrics::{Counted, Metrics};
pub use sessions::follow::Follower;
pub use sessions::{Speaker, Verb};
pub use settings::{
    AgentCommand, AuditSettings, CallerSettings, ContainerSettings, ContainerType, Limits,
    OnDisconnect, Price, ProjectRules, ScheduleSettings, SessionSettings, Settings, ToolSettings,
};
pub use tokens::{Authenticated, Minted};
