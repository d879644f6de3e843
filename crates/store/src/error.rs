//! The error type of the store.

use std::path::PathBuf;
use std::sync::Arc;

use oubliette_model::ProjectId;

use crate::{MAX_QUEUED_BYTES, MAX_SCHEDULE_PROMPT_BYTES, MAX_SCHEDULES};

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// An error of the store; callers can match on the kinds that they can handle.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("the name or id already exists")]
    Duplicate,
    /// A row that the write refers to does not exist.
    #[error("what this call is about was deleted meanwhile")]
    Gone,
    #[error("the workspace is in use")]
    InUse,
    #[error("the session belongs to another token")]
    NotOwner,
    #[error(
        "{} MB of messages wait in the sessions of this project, the maximum is {}; wait until the agents \
         have taken some, or end sessions with `session_end`",
        queued_bytes >> 20, MAX_QUEUED_BYTES >> 20
    )]
    QueueFull { queued_bytes: u64 },
    #[error(
        "the project {project} has {count} schedules with {} KB of prompts; the maximum is \
         {MAX_SCHEDULES} and {} KB: delete some with `schedule_delete`, or put long prompts into files of \
         the project",
        prompt_bytes >> 10, MAX_SCHEDULE_PROMPT_BYTES >> 10
    )]
    TooManySchedules {
        project: ProjectId,
        count: u32,
        prompt_bytes: u64,
    },
    #[error(
        "the project has {count} workspaces, which is the maximum; delete one with `workspace_delete`, or \
         raise `limits.max_workspaces` in the server's configuration"
    )]
    TooManyWorkspaces { count: u32 },
    #[error("the database is locked by another program; try again when that program is done")]
    Busy,
    #[error("the disk is full, so this call changed nothing; free some space and try again")]
    DiskFull,
    #[error(
        "the database {} is damaged; stop the server and run `oubliette restore` with a backup",
        .0.display()
    )]
    Damaged(PathBuf),
    #[error(
        "the database {} was written by a newer Oubliette (format {found}, this program knows \
         {known}); install that version or restore an older backup",
        path.display()
    )]
    NewerFormat {
        path: PathBuf,
        found: i64,
        known: i64,
    },
    #[error("{} is not an Oubliette database; it was not changed", .0.display())]
    ForeignFile(PathBuf),
    #[error("the server is stopping, so this call changed nothing; try again when it runs again")]
    Closed,
    #[error("the store failed")]
    Failed(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    pub fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(Arc::from(source.into()))
    }
}
