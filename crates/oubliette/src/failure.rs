//! Why a command failed, in one sentence.

use std::fmt;
use std::process::ExitCode;

/// A sentence for the person at the terminal.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command was understood and could not be done.
    Failed(String),
    /// What was to be said is said; only the exit code is left.
    Exit(u8),
    /// The command line itself was wrong; clap has its own words for it.
    Usage(Box<clap::Error>),
}

impl Failure {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self::Failed(sentence.into())
    }

    /// What was being done, and the causes, in one line.
    pub(crate) fn of(what: impl fmt::Display, error: &dyn std::error::Error) -> Self {
        let mut text = format!("{what}: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::Failed(text)
    }

    pub(crate) fn print(&self) {
        match self {
            Self::Failed(sentence) => eprintln!("error: {sentence}"),
            Self::Exit(_) => {}
            Self::Usage(error) => {
                let _ = error.print();
            }
        }
    }

    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Failed(_) => ExitCode::from(1),
            Self::Exit(code) => ExitCode::from(*code),
            Self::Usage(error) => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
        }
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::Usage(Box::new(error))
    }
}

impl From<oubliette_store::StoreError> for Failure {
    fn from(error: oubliette_store::StoreError) -> Self {
        Self::of("the store could not be used", &error)
    }
}
