//! The errors of calls.

use std::sync::Arc;

use oubliette_model::{InvalidValue, WorkspaceId, quoted};
use oubliette_store::StoreError;

pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// What [`EngineError::NotFound`] says, for a client that has only the text.
pub const NOT_FOUND: &str = "not found";
/// What [`EngineError::AlreadyExists`] says.
pub const ALREADY_EXISTS: &str = "already exists";
/// What is said about a turn whose files were not kept.
pub const NO_CHECKPOINT: &str = "there is no checkpoint";
/// What is said about a kind of credential that neither an agent nor git takes.
pub const UNKNOWN_CREDENTIAL_KIND: &str = "there is no kind of credential";

/// Each kind is translated in one way by each transport. The text is for people and models: what was
/// wrong and what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    #[error("unknown tool {}{}", quoted(name), did_you_mean(nearest.as_deref()))]
    UnknownTool {
        name: String,
        nearest: Option<String>,
    },
    #[error("tool not allowed for this token scope: {reason}")]
    Refused {
        /// The parameter that requires a wider scope; none if the operation itself does.
        parameter: Option<&'static str>,
        /// What may not be done and who could do it.
        reason: String,
    },
    #[error("{what} {} {NOT_FOUND}; {hint}", quoted(id))]
    NotFound {
        what: &'static str,
        id: String,
        hint: &'static str,
    },
    #[error("{what} {ALREADY_EXISTS}{hint}")]
    AlreadyExists {
        what: &'static str,
        /// Which one it is and what to do, if that may be known: `; …` or `: …`.
        hint: String,
    },
    #[error("{0}")]
    Invalid(String),
    /// Something outside the server failed that the caller can act on, for example a clone.
    #[error("{0}")]
    Failed(String),
    #[error("the call was cancelled")]
    Cancelled,
    #[error("an internal error; the server's log has the details")]
    Fault(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl EngineError {
    pub fn invalid(sentence: impl Into<String>) -> Self {
        Self::Invalid(sentence.into())
    }

    pub fn fault(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Fault(Arc::from(source.into()))
    }

    pub(crate) fn disk_full() -> Self {
        Self::Failed("the disk is full; free some space and try again".to_owned())
    }

    pub fn project_not_found(id: impl ToString) -> Self {
        Self::NotFound {
            what: "project",
            id: id.to_string(),
            hint: "`project_list` shows the projects that this token can use",
        }
    }

    pub(crate) fn workspace_exists(id: &WorkspaceId) -> Self {
        Self::AlreadyExists {
            what: "workspace",
            hint: format!(": {}; use it, or choose another id", quoted(id.as_str())),
        }
    }

    pub(crate) fn token_not_found(id: impl ToString) -> Self {
        Self::NotFound {
            what: "token",
            id: id.to_string(),
            hint: "`token_list` shows the tokens",
        }
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        match error {
            // The caller can act on it.
            StoreError::Busy
            | StoreError::Closed
            | StoreError::DiskFull
            | StoreError::Gone
            | StoreError::QueueFull { .. }
            | StoreError::TooManySchedules { .. }
            | StoreError::TooManyWorkspaces { .. } => Self::Failed(error.to_string()),
            StoreError::NotOwner => Self::Failed(
                "only the token that created the session can declare `caller_tools` for it; omit them, \
                 or start a session of your own with `new_session`"
                    .to_owned(),
            ),
            other => Self::fault(other),
        }
    }
}

impl From<InvalidValue> for EngineError {
    fn from(InvalidValue(sentence): InvalidValue) -> Self {
        Self::Invalid(sentence)
    }
}

impl From<std::io::Error> for EngineError {
    fn from(error: std::io::Error) -> Self {
        if is_disk_full(&error) {
            return Self::disk_full();
        }
        Self::fault(error)
    }
}

/// Whether the disk, or what the server's user may use of it, is full.
fn is_disk_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// The end of an error message about an unknown name.
pub(crate) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_a_caller_can_act_on_say_what_is_wrong() {
        for (error, word) in [
            (StoreError::Busy.into(), "locked"),
            (StoreError::Closed.into(), "stopping"),
            (StoreError::DiskFull.into(), "full"),
            (StoreError::Gone.into(), "deleted"),
            (
                std::io::Error::from(std::io::ErrorKind::StorageFull).into(),
                "full",
            ),
            (
                std::io::Error::from(std::io::ErrorKind::QuotaExceeded).into(),
                "full",
            ),
        ] {
            assert!(
                matches!(&error, EngineError::Failed(text) if text.contains(word)),
                "{error:?}"
            );
        }
        let fault: EngineError = StoreError::Damaged("oubliette.db".into()).into();
        assert!(matches!(fault, EngineError::Fault(_)));
    }
}
