//! Why a runtime could not do something.

use std::sync::Arc;

pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum RuntimeError {
    /// The machine, or this runtime, cannot do it; the sentence says what would change that.
    #[error("{0}")]
    Unsupported(String),
    #[error("there is no image `{0}`; `image_rebuild` makes it")]
    NoImage(String),
    #[error("there is no container `{0}`")]
    NoContainer(String),
    /// The runtime itself does not answer.
    #[error("{0}")]
    Unavailable(String),
    /// What the runtime said.
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
        if error.kind() == std::io::ErrorKind::StorageFull {
            return Self::Failed("the disk is full; free some space and try again".to_owned());
        }
        Self::fault(error)
    }
}
