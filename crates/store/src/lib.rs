//! Durable state: the store traits, the embedded SQLite implementation, and the contract tests that
//! every implementation must pass.
//!
//! A write returns when it is durable. A write that belongs to an operation call takes the call's
//! audit entry and commits it in the same transaction. The store does not check permissions.

mod audit;
mod callers;
mod calls;
mod containers;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod error;
mod events;
mod mcp_sessions;
mod page;
mod projects;
mod schedules;
mod sessions;
pub mod sqlite;
mod tokens;
mod workspaces;

pub use audit::{Audit, AuditEntry, AuditFilter, AuditOutcome, AuditRecord};
pub use callers::{
    AddRequestOutcome, CallerRequest, CallerRequestResult, Callers, DeclaredTools,
    EndRequestOutcome, MAX_PENDING_REQUEST_BYTES, MAX_PENDING_REQUESTS, ToolDeclaration,
};
pub use calls::{CallTurn, Calls, ChildCall, ToolCallStart};
pub use containers::{Container, Containers, Exec};
pub use error::{Result, StoreError};
pub use events::{Events, StoredEvent};
pub use mcp_sessions::{McpSession, McpSessions};
pub use page::Page;
pub use projects::{Project, ProjectState, ProjectUpdate, Projects, VisibleProjects};
pub use schedules::{
    FinishedRun, Firing, Lease, RunBinding, RunFilter, Schedule, ScheduleRun, ScheduleTarget,
    ScheduleUpdate, Schedules,
};
pub use sessions::{
    Attachment, CommittedStep, DecisionOutcome, NewSession, PendingDecision, Session,
    SessionChoices, SessionFilter, SessionMessage, SessionStep, Sessions, SpawnOutcome,
    StopRequest, TreeLimit, TreeLimits, TreeUsage,
};
pub use tokens::{RevokeOutcome, Token, Tokens};
pub use workspaces::{Workspace, Workspaces};

/// All store traits together.
pub trait Store:
    Projects
    + Workspaces
    + Tokens
    + Audit
    + Containers
    + Sessions
    + Calls
    + Callers
    + Events
    + Schedules
    + McpSessions
    + std::fmt::Debug
    + Send
    + Sync
{
}

impl<T> Store for T where
    T: Projects
        + Workspaces
        + Tokens
        + Audit
        + Containers
        + Sessions
        + Calls
        + Callers
        + Events
        + Schedules
        + McpSessions
        + std::fmt::Debug
        + Send
        + Sync
{
}
