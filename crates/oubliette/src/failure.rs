//! The error of a command.

use std::fmt;
use std::process::ExitCode;

use crate::terminal::width::stderr_columns;
use crate::terminal::wrap::wrapped;
use crate::terminal::{note_write_error, printable};

/// Why a command failed, for the user at the terminal.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command could not be carried out; a sentence.
    Failed(String),
    /// Everything is printed already; only the exit code is left.
    Exit(u8),
    /// The command line was wrong; clap prints why.
    Usage(Box<clap::Error>),
}

impl Failure {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self::Failed(sentence.into())
    }

    /// What failed, followed by the chain of causes, in one line.
    pub(crate) fn with_cause(what: impl fmt::Display, error: &dyn std::error::Error) -> Self {
        let mut text = format!("{what}: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::Failed(text)
    }

    /// The same failure as the cause of another.
    pub(crate) fn because_of(self, what: &str) -> Self {
        match self {
            Self::Failed(sentence) => Self::Failed(format!("{what}: {sentence}")),
            other => other,
        }
    }

    pub(crate) fn print(&self) {
        match self {
            Self::Failed(sentence) => {
                let text = format!("error: {}", printable(sentence));
                eprintln!("{}", wrapped(&text, stderr_columns()));
            }
            Self::Exit(_) => {}
            Self::Usage(error) => {
                if let Err(error) = error.print() {
                    note_write_error(error);
                }
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
        Self::with_cause("cannot use the database", &error)
    }
}
