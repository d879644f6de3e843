//! Files with a key of Oubliette, for example the configuration of an MCP client. They are not sent: an agent could use
//! the key. What is committed is sent with the history all the same.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::snapshot::Snapshot;
use crate::failure::Failure;
use crate::terminal::printable;

/// How keys are written, for the extended regular expressions of git.
const KEY_PATTERN: &str = "oub_[A-Za-z0-9_-]{43}";
/// The tree without files, which git knows everywhere.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
/// How many files one command of git names.
const MAX_PATHS: usize = 500;
/// How many files the note names.
const MAX_SHOWN: usize = 5;

/// Leaves the uncommitted contents of files that have a key out of a snapshot.
pub(super) fn leave_out(snapshot: &mut Snapshot) -> Result<(), Failure> {
    let found = find(snapshot)?;
    for some in found.chunks(MAX_PATHS) {
        snapshot.revert(&some.iter().cloned().collect::<BTreeSet<_>>())?;
    }
    if !found.is_empty() {
        let mut shown: Vec<String> = found
            .iter()
            .take(MAX_SHOWN)
            .map(|path| path.display().to_string())
            .collect();
        if found.len() > MAX_SHOWN {
            shown.push("…".to_owned());
        }
        eprintln!(
            "note: not sent, because they have a key of Oubliette: {}",
            printable(&shown.join(", "))
        );
    }
    Ok(())
}

/// The uncommitted files of a snapshot that have a key.
fn find(snapshot: &Snapshot) -> Result<Vec<PathBuf>, Failure> {
    let head = snapshot.head.commit.as_deref().unwrap_or(EMPTY_TREE);
    // Also those from which a key was removed.
    let changed = snapshot.git.output([
        "diff-index",
        "--cached",
        "-z",
        "--name-only",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--text",
        "--diff-filter=d",
        "-G",
        KEY_PATTERN,
        head,
    ])?;
    let changed = paths(&changed);
    let mut found = Vec::new();
    for some in changed.chunks(MAX_PATHS) {
        let search = [
            "grep",
            "--cached",
            "--full-name",
            "--text",
            "-z",
            "-l",
            "-E",
            "-e",
            KEY_PATTERN,
            "--",
        ];
        let literal = some.iter().map(|path| {
            let mut pattern = OsString::from(":(top,literal)");
            pattern.push(path);
            pattern
        });
        let search = search.map(OsString::from).into_iter().chain(literal);
        // It fails if it finds nothing.
        found.extend(paths(&snapshot.git.run(search)?.stdout));
    }
    Ok(found)
}

fn paths(listed: &[u8]) -> Vec<PathBuf> {
    let names = listed.split(|byte| *byte == 0);
    names
        .filter(|name| !name.is_empty())
        .map(|name| Path::new(OsStr::from_bytes(name)).to_owned())
        .collect()
}
