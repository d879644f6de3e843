//! Files that git ignored at the last copy. Work that was applied may have changed the rules; a file that was never
//! sent, for example one with secrets, is not sent because of that.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::record::RecordFile;
use super::repository::Repository;
use super::snapshot::Snapshot;
use crate::failure::Failure;
use crate::terminal::printable;

/// How many files a note names.
const MAX_SHOWN: usize = 5;

/// Leaves files out of a snapshot that git ignored at the last copy and no longer does, unless `include`
/// says otherwise, and remembers what git ignores now.
pub(super) fn leave_out(
    repository: &Repository,
    file: &RecordFile,
    snapshot: &mut Snapshot,
    include: bool,
) -> Result<(), Failure> {
    let before = read(file)?;
    let mut ignored = list(repository)?;
    if !include && !before.is_empty() {
        // A file that the user has added is sent.
        let tracked = paths(&repository.git.output(["ls-files", "-z"])?);
        let sent = paths(&snapshot.git.output(["ls-files", "-z"])?);
        let left_out: BTreeSet<PathBuf> = sent
            .difference(&tracked)
            .filter(|path| path.ancestors().any(|place| before.contains(place)))
            .cloned()
            .collect();
        if !left_out.is_empty() {
            snapshot.remove(&left_out)?;
            let mut shown: Vec<String> = left_out
                .iter()
                .take(MAX_SHOWN)
                .map(|path| path.display().to_string())
                .collect();
            if left_out.len() > MAX_SHOWN {
                shown.push("…".to_owned());
            }
            eprintln!(
                "note: git ignored these files at the last copy and no longer does; they are not sent without \
                 --no-longer-ignored: {}",
                printable(&shown.join(", "))
            );
            ignored.extend(left_out);
        }
    }
    write(file, &ignored)
}

/// Remembers what git ignores now, before work is applied that may change it.
pub(super) fn remember(repository: &Repository, file: &RecordFile) -> Result<(), Failure> {
    let mut ignored = read(file)?;
    ignored.extend(list(repository)?);
    write(file, &ignored)
}

/// The files that git ignores, and directories of which it ignores everything.
fn list(repository: &Repository) -> Result<BTreeSet<PathBuf>, Failure> {
    let listed = repository.git.output([
        "ls-files",
        "-z",
        "--others",
        "--ignored",
        "--exclude-standard",
        "--directory",
    ])?;
    Ok(paths(&listed))
}

fn paths(listed: &[u8]) -> BTreeSet<PathBuf> {
    let names = listed.split(|byte| *byte == 0);
    let names = names.map(|name| name.strip_suffix(b"/").unwrap_or(name));
    names
        .filter(|name| !name.is_empty())
        .map(|name| Path::new(OsStr::from_bytes(name)).to_owned())
        .collect()
}

fn read(file: &RecordFile) -> Result<BTreeSet<PathBuf>, Failure> {
    let path = file.ignored_path();
    match std::fs::read(&path) {
        Ok(listed) => Ok(paths(&listed)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(Failure::with_cause(
            format!("cannot read {}", path.display()),
            &error,
        )),
    }
}

fn write(file: &RecordFile, ignored: &BTreeSet<PathBuf>) -> Result<(), Failure> {
    let mut listed = Vec::new();
    for path in ignored {
        listed.extend(path.as_os_str().as_bytes());
        listed.push(0);
    }
    file.replace(&file.ignored_path(), &listed)
}
