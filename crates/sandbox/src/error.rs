//! Errors, as far as a caller can act on them.

use std::io;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("sandbox specification is invalid: {0}")]
    Invalid(String),
    #[error("sandbox is already running as process {pid}")]
    AlreadyRunning { pid: i32 },
    #[error("sandbox is still running as process {pid}")]
    StillRunning { pid: i32 },
    #[error("sandbox is not running")]
    NotRunning,
    #[error("paths of a sandbox that bubblewrap made can be protected only when it starts")]
    CannotProtect,
    #[error("another process is launching or removing the sandbox")]
    Locked,
    /// A step of the launch failed; nothing of the sandbox is left.
    #[error("sandbox could not be launched: {step}")]
    Step {
        step: String,
        #[source]
        source: io::Error,
    },
    /// The launcher ended without a valid reply; nothing of the sandbox is left.
    #[error("sandbox launcher ended without a valid reply: {0}")]
    Launcher(String),
    #[error("sandbox did not start within {0} seconds")]
    Timeout(u64),
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("the embedded sandbox needs Linux")]
    Unsupported,
}

impl Error {
    #[cfg(target_os = "linux")]
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io {
            what: what.into(),
            source: source.into(),
        }
    }
}
