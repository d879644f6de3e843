//! The help of commands in the command line's own words. The registry describes operations to models; what is
//! not here is taken from there, with the names of the command line.

mod commands;
mod parameters;

use oubliette_engine::operations::Entry;

use commands::COMMANDS;
use parameters::{HIDDEN, PARAMETERS};

/// What a command does.
pub(super) struct CommandText {
    operation: &'static str,
    /// One line, without a full stop.
    pub(super) about: &'static str,
    /// Further sentences of `--help`.
    pub(super) details: &'static str,
    /// Lines of at most 78 columns.
    pub(super) examples: &'static [&'static str],
}

const fn text(
    operation: &'static str,
    about: &'static str,
    details: &'static str,
    examples: &'static [&'static str],
) -> CommandText {
    CommandText {
        operation,
        about,
        details,
        examples,
    }
}

pub(super) fn command(entry: &Entry) -> Option<&'static CommandText> {
    COMMANDS.iter().find(|text| text.operation == entry.name)
}

/// The help of a parameter.
pub(super) fn parameter(entry: &Entry, name: &str) -> Option<&'static str> {
    let find = |operation: &str| {
        let found = PARAMETERS
            .iter()
            .find(|row| (row.0, row.1) == (operation, name));
        found.map(|row| row.2)
    };
    find(entry.name).or_else(|| find("*"))
}

/// Whether only programs need a parameter.
pub(super) fn is_hidden(entry: &Entry, name: &str) -> bool {
    let is_for = |operation: &str| operation == "*" || operation == entry.name;
    let mut rows = HIDDEN.iter().filter(|(operation, _)| is_for(operation));
    rows.any(|(_, names)| names.contains(&name))
}

/// Examples under a heading.
pub(super) fn examples(lines: &[&str]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| format!("\n  {line}")).collect();
    format!("Examples:{}", lines.concat())
}

#[cfg(test)]
mod tests;
