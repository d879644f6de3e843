//! Durable state: the store traits, the embedded SQLite implementation, and the contract tests that
//! every implementation must pass.
//!
//! A write returns when it is durable. A write that belongs to an operation call takes the call's
//! audit entry and commits it in the same transaction. The store checks no permissions, except that it refuses declarations of caller tools by a token that
//! does not own the session.

mod audit;
mod callers;
mod calls;
mod charges;
mod checkpoints;
mod containers;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod error;
mod events;
mod mcp_sessions;
mod page;
mod projects;
mod reserve;
mod schedules;
mod sessions;
pub mod sqlite;
mod tokens;
mod workspaces;

pub use audit::{AuditEntry, AuditFilter, AuditOutcome, AuditRecord, AuditStore};
pub use callers::{
    AddRequestOutcome, CallerRequest, CallerRequestResult, CallerStore, DeclaredTools,
    EndRequestOutcome, MAX_PENDING_REQUEST_BYTES, MAX_PENDING_REQUESTS, ToolDeclaration,
};
pub use calls::{
    CallStore, CallTurn, CalledTurn, MAX_KEPT_OUTCOME_BYTES, MAX_KEPT_OUTCOMES, StopOutcome,
    ToolCallStart,
};
pub use charges::{ChargeStore, ChargedSession, SessionCharge};
pub use checkpoints::{Checkpoint, CheckpointStep, CheckpointStore, TreeHash};
pub use containers::{
    Container, ContainerStore, DROPPED_RESULT, Exec, MAX_KEPT_RESULT_BYTES, MAX_KEPT_RESULTS,
};
pub use error::{Result, StoreError};
pub use events::{EventStore, StoredEvent};
pub use mcp_sessions::{McpSession, McpSessionStore};
pub use page::Page;
pub use projects::{Project, ProjectState, ProjectStore, ProjectUpdate, VisibleProjects};
pub use reserve::with_reserve;
pub use schedules::{
    FinishedRun, Firing, Lease, MAX_SCHEDULE_PROMPT_BYTES, MAX_SCHEDULES, RunBinding, RunFilter,
    Schedule, ScheduleRun, ScheduleStore, ScheduleTarget, ScheduleUpdate,
};
pub use sessions::{
    Attachment, CommittedStep, DecisionOutcome, JoinFilter, MAX_QUEUED_BYTES, NewSession,
    PendingDecision, RequestedSettings, Session, SessionChoices, SessionFilter, SessionMessage,
    SessionStep, SessionStore, SessionTreeLimits, SpawnOutcome, StopRequest, StoredCounts,
    TreeLimit, TreeUsage,
};
pub use tokens::{RevokeOutcome, Token, TokenStore};
pub use workspaces::{Workspace, WorkspaceStore};

/// All store traits together.
pub trait Store:
    ProjectStore
    + WorkspaceStore
    + TokenStore
    + AuditStore
    + ContainerStore
    + SessionStore
    + CallStore
    + CallerStore
    + EventStore
    + ScheduleStore
    + McpSessionStore
    + CheckpointStore
    + ChargeStore
    + std::fmt::Debug
    + Send
    + Sync
{
}

impl<T> Store for T where
    T: ProjectStore
        + WorkspaceStore
        + TokenStore
        + AuditStore
        + ContainerStore
        + SessionStore
        + CallStore
        + CallerStore
        + EventStore
        + ScheduleStore
        + McpSessionStore
        + CheckpointStore
        + ChargeStore
        + std::fmt::Debug
        + Send
        + Sync
{
}
