//! OpenSpec, read from the files of a workspace: what the `openspec` command says about them,
//! without the command.
//!
//! The rules are those of the `openspec` command at the version that `tests/clients` pins, and
//! `tests/e2e/openspec.rs` holds both side by side. What differs on purpose is in
//! `docs/openspec.md`. Everything here is pure work on a [`crate::files::Tree`]; nothing is ever written.

mod apply;
mod checkbox;
mod delta;
mod glob;
mod list;
mod nested;
mod outputs;
mod project;
mod schema;
mod settings;
mod yaml;

pub(crate) use apply::{Apply, NoTasks, apply};
pub(crate) use list::{Change, list};

use std::time::Duration;

use crate::files::Bounds;

/// What one call may look at: far more than people write by hand.
pub(crate) const OF_ALL: Bounds = Bounds {
    entries: 200_000,
    // So many for each entry that it is the entries that end a look at an honest tree.
    looks: 5_000_000,
    time: Duration::from_secs(10),
    bytes: 128 << 20,
    file: 8 << 20,
};
/// The same where what is read becomes the answer.
pub(crate) const OF_ONE: Bounds = Bounds {
    bytes: 16 << 20,
    ..OF_ALL
};
/// More than that are not told.
const MOST_TASKS: usize = 200_000;

const CHANGES: &str = "openspec/changes";
/// What belongs to a change itself and not to its artifacts.
const METADATA: &str = ".openspec.yaml";
const TASKS: &str = "tasks.md";
const DEFAULT_SCHEMA: &str = "spec-driven";

/// White space as JavaScript has it, in whose regular expressions the rules are written.
fn is_space(c: char) -> bool {
    match c {
        '\u{feff}' => true,
        '\u{85}' => false,
        other => other.is_whitespace(),
    }
}

fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// The order in which JavaScript sorts texts.
fn by_units(a: &str, b: &str) -> std::cmp::Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}

/// Whether a path is a directory or below it.
fn is_within(directory: &str, path: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path with `.` and doubled slashes taken out.
fn normalised(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.collect::<Vec<_>>().join("/")
}
