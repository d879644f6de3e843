//! OpenSpec changes and tasks, computed from the files of a workspace without running the
//! `openspec` command.
//!
//! The rules are those of the `openspec` command at the version that `tests/clients` pins;
//! `tests/e2e/openspec.rs` compares both. `docs/openspec.md` lists the intended differences. This
//! crate does no I/O: it reads through a [`FileTree`] and never writes.

mod apply;
mod checkbox;
mod delta;
mod glob;
mod list;
mod lookup;
mod nested;
mod outputs;
mod project;
mod schema;
mod settings;
mod yaml;

pub use apply::{ApplyError, ApplyInstructions, apply_instructions};
pub use list::{Change, list_changes};

const MAX_TASKS: usize = 200_000;

const CHANGES_DIR: &str = "openspec/changes";
/// The settings of a change; not one of its artifacts.
const METADATA_FILE: &str = ".openspec.yaml";
const TASKS_FILE: &str = "tasks.md";
const DEFAULT_SCHEMA: &str = "spec-driven";

/// White space as defined by JavaScript regular expressions, in which the command's rules are
/// written.
fn is_js_whitespace(c: char) -> bool {
    match c {
        '\u{feff}' => true,
        '\u{85}' => false,
        other => other.is_whitespace(),
    }
}

fn trim_js_whitespace(text: &str) -> &str {
    text.trim_matches(is_js_whitespace)
}

/// Compares by UTF-16 code units, as JavaScript sorts strings.
fn cmp_utf16(a: &str, b: &str) -> std::cmp::Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}

/// Whether a path is a directory or below it.
fn is_within(directory: &str, path: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Removes `.` and repeated slashes from a path.
fn normalize_path(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.collect::<Vec<_>>().join("/")
}

/// Whether a path starts with a Windows drive letter.
fn has_drive_letter(path: &str) -> bool {
    matches!(path.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic())
}
