//! Logs to stderr, for people or for programs.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// rmcp logs arguments and results at its lower levels and errors for clients that just leave.
const DEFAULT: &str = "info,rmcp=warn,rmcp::service=off,rmcp::transport=off";

pub(crate) fn start(format: Format) {
    let filter =
        EnvFilter::try_from_env("OUBLIETTE_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A second start, in tests, keeps the first.
    let _ = match format {
        Format::Text => lines.with_target(false).try_init(),
        Format::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .try_init(),
    };
}
