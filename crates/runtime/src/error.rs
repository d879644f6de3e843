//! Errors of runtimes.

use std::sync::Arc;

pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum RuntimeError {
    /// The machine or the runtime does not support the request; the sentence says what would.
    #[error("{0}")]
    Unsupported(String),
    #[error("image `{0}` does not exist; `image_rebuild` builds or pulls it")]
    NoImage(String),
    #[error("container `{0}` does not exist")]
    NoContainer(String),
    /// The runtime does not answer.
    #[error("{0}")]
    Unavailable(String),
    /// The error message of the runtime.
    #[error("{0}")]
    Failed(String),
    #[error("the runtime failed")]
    Fault(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl RuntimeError {
    pub fn fault(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Fault(Arc::from(source.into()))
    }
}

impl From<std::io::Error> for RuntimeError {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        if matches!(error.kind(), StorageFull | QuotaExceeded) {
            return Self::Failed("the disk is full; free some space and try again".to_owned());
        }
        Self::fault(error)
    }
}
