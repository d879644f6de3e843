//! The error type of the store.

use std::path::PathBuf;
use std::sync::Arc;

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// An error of the store; callers can match on the kinds that they can handle.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("the name or id already exists")]
    Duplicate,
    #[error("the workspace is in use")]
    InUse,
    #[error("the session belongs to another token")]
    NotOwner,
    #[error("the database is locked by another program; try again when that program is done")]
    Busy,
    #[error("the disk is full; nothing was changed; free some space and try again")]
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
    #[error("the store is shutting down")]
    Closed,
    #[error("the store failed")]
    Failed(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    pub fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(Arc::from(source.into()))
    }
}
