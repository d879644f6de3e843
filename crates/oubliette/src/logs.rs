//! Logs to stderr, as text or JSON.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// rmcp logs arguments and results at its lower levels, and an error for each client that disconnects.
const DEFAULT_FILTER: &str = "info,rmcp=warn,rmcp::service=off,rmcp::transport=off";

pub(crate) fn start(format: Format) {
    let filter =
        EnvFilter::try_from_env("OUBLIETTE_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // In tests a second call keeps the first subscriber.
    let _ = match format {
        Format::Text => lines.with_target(false).try_init(),
        Format::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .try_init(),
    };
}
