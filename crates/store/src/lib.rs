//! What survives a restart: the traits, the embedded SQLite store, and the suite every store passes.
//!
//! A write returns when it is durable. Writes that belong to a call carry the call's audit entry
//! and commit it with their effect. Nothing here decides about permission.

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

pub use audit::{Audit, AuditEntry, AuditFilter, AuditRecord, Outcome};
pub use callers::{
    Asked, CallerRequest, Callers, Declaration, Declared, Ended, MOST_PENDING, MOST_PENDING_BYTES,
    Settled,
};
pub use calls::{Begun, CallTurn, Calls, ChildCall};
pub use containers::{Container, Containers, Exec};
pub use error::{Result, StoreError};
pub use events::{Events, Logged};
pub use mcp_sessions::{McpSession, McpSessions};
pub use page::Page;
pub use projects::{Project, ProjectState, Projects, Updated, Visible};
pub use schedules::{
    Changed, Finished, Firing, Lease, Run, RunFilter, RunMark, Schedule, Schedules, Target,
};
pub use sessions::{
    Attachment, Choices, Decided, Decision, Limit, Message, NewSession, Session, SessionFilter,
    Sessions, Spawned, Step, Stepped, TreeLimits, TreeUse, Wanted,
};
pub use tokens::{Revoked, Token, Tokens};
pub use workspaces::{Workspace, Workspaces};

/// A whole store.
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
