//! Logs to stderr or a file, as text or JSON.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::background::LogFile;
use crate::terminal::output;

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// rmcp logs arguments and results at its lower levels, and an error for each client that disconnects.
const DEFAULT_FILTER: &str = "info,rmcp=warn,rmcp::service=off,rmcp::transport=off";

/// Starts logging, to stderr if there is no file.
pub(crate) fn start(format: Format, file: Option<LogFile>) {
    let filter =
        EnvFilter::try_from_env("OUBLIETTE_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let has_colors = file.is_none() && output::has_color();
    let writer = match file {
        Some(file) => BoxMakeWriter::new(move || file.clone()),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A failed write would be reported by `eprintln!`, which panics once the reader of stderr is gone.
        .log_internal_errors(false)
        .with_writer(writer)
        .with_ansi(has_colors);
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
