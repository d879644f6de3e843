//! `oubliette apply`: merges the work of a session into the files here.
//!
//! Everything is prepared first, in a directory of its own: the merge, the new files, and a journal. Then
//! files are only renamed and removed. A command that is killed meanwhile leaves the journal, and the next
//! one in this checkout finishes it.

mod can_run;
mod journal;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::git::{Git, is_git_directory, last_lines};
use super::repository::Repository;
use super::snapshot::{Snapshot, commit_tree, write_tree};
use crate::failure::Failure;
use journal::{Journal, MergedFiles};
pub(super) use journal::{KeptFile, finish_interrupted};

/// What an apply has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) written: usize,
    pub(super) removed: usize,
    /// Repositories inside this one, whose commits are not changed here.
    pub(super) skipped: Vec<String>,
    /// Files that were changed here at the last moment, and left alone.
    pub(super) kept: Vec<KeptFile>,
    /// Written files that a program of the user may run without being told to.
    pub(super) can_run: Vec<String>,
}

/// How many paths an error lists.
const MAX_LISTED_PATHS: usize = 20;
const MAX_CHECKED_ENTRIES: u64 = 100_000;

/// A difference between the files here and the merged ones.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    path: PathBuf,
    kind: ChangeKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangeKind {
    Add,
    Modify,
    Remove,
    Submodule,
}

/// Merges the changes from `sent` to `work` into the files that the snapshot was taken of. `stage` is a
/// directory that does not exist.
pub(super) fn apply(
    repository: &Repository,
    snapshot: &Snapshot,
    sent: &str,
    work: &str,
    stage: &Path,
) -> Result<Applied, Failure> {
    let git = &snapshot.git;
    let merged = merge(git, &snapshot.tree, sent, work)?;
    let changes = differences(git, &snapshot.tree, &merged)?;
    let of_kind = |kind: ChangeKind| changes.iter().filter(move |change| change.kind == kind);
    let mut applied = Applied {
        written: of_kind(ChangeKind::Add).count() + of_kind(ChangeKind::Modify).count(),
        removed: of_kind(ChangeKind::Remove).count(),
        skipped: of_kind(ChangeKind::Submodule)
            .map(|change| change.path.to_string_lossy().into_owned())
            .collect(),
        kept: Vec::new(),
        can_run: Vec::new(),
    };
    applied.skipped.truncate(MAX_LISTED_PATHS);
    if applied.written + applied.removed == 0 {
        return Ok(applied);
    }
    check_obstacles(&repository.root, &changes)?;
    let removed: Vec<PathBuf> = of_kind(ChangeKind::Remove)
        .map(|change| change.path.clone())
        .collect();
    let written: Vec<PathBuf> = of_kind(ChangeKind::Add)
        .chain(of_kind(ChangeKind::Modify))
        .map(|change| change.path.clone())
        .collect();
    // Before the files are compared with the snapshot: later changes show in one or the other.
    let seen = MergedFiles::look(&repository.root, &removed, &written);
    let paths: Vec<&Path> = written.iter().map(PathBuf::as_path).collect();
    applied.can_run = can_run::find(&repository.git, &repository.root, &paths)?;
    let staged = stage_files(snapshot, &merged, &changes, stage);
    let prepared = staged.and_then(|()| {
        // Other programs may have changed files since the snapshot.
        let now = write_tree(git, &repository.data_directories()?, &mut Vec::new())?;
        if now == snapshot.tree {
            return Ok(());
        }
        Err(Failure::new(
            "files were changed while the work was being merged; nothing was changed: try again",
        ))
    });
    if let Err(failure) = prepared {
        let _ = fs::remove_dir_all(stage);
        return Err(failure);
    }
    let journal = Journal {
        root: repository.root.clone(),
        removed,
        written,
        merged: seen,
    };
    journal.commit(stage)?;
    applied.kept = journal.replay(stage)?;
    Ok(applied)
}

/// The tree of a three-way merge; an error that names the files if there are conflicts.
fn merge(git: &Git, ours: &str, sent: &str, work: &str) -> Result<String, Failure> {
    let base = commit_tree(git, &tree_of(git, sent)?, &[], "base")?;
    let ours = commit_tree(git, ours, &[&base], "ours")?;
    let theirs = commit_tree(git, &tree_of(git, work)?, &[&base], "theirs")?;
    let merged = git.run([
        "merge-tree",
        "--write-tree",
        "-z",
        "--name-only",
        "--no-messages",
        &ours,
        &theirs,
    ])?;
    let mut parts = merged.stdout.split(|byte| *byte == 0);
    let tree = String::from_utf8_lossy(parts.next().unwrap_or_default())
        .trim()
        .to_owned();
    match merged.status.code() {
        Some(0) => Ok(tree),
        Some(1) => {
            let paths: BTreeSet<&[u8]> = parts.filter(|path| !path.is_empty()).collect();
            let paths = paths
                .into_iter()
                .map(|path| Path::new(OsStr::from_bytes(path)));
            Err(conflict(
                "these files were changed here and by the session, in the same places",
                paths,
                "take the work as a branch with `oubliette fetch`, and merge it",
            ))
        }
        _ if String::from_utf8_lossy(&merged.stderr).contains("usage:") => Err(Failure::new(
            "`oubliette apply` needs git 2.38 or newer on this machine; `oubliette fetch` works with older ones",
        )),
        _ => Err(Failure::new(last_lines(&merged.stderr))),
    }
}

pub(super) fn tree_of(git: &Git, commit: &str) -> Result<String, Failure> {
    git.text(["rev-parse", "--verify", &format!("{commit}^{{tree}}")])
}

fn conflict<'a>(what: &str, paths: impl Iterator<Item = &'a Path>, remedy: &str) -> Failure {
    let mut shown: Vec<String> = paths
        .take(MAX_LISTED_PATHS + 1)
        .map(|path| path.display().to_string())
        .collect();
    if shown.len() > MAX_LISTED_PATHS {
        shown.truncate(MAX_LISTED_PATHS);
        shown.push("…".to_owned());
    }
    Failure::new(format!(
        "nothing was changed: {what}: {}; {remedy}",
        shown.join(", ")
    ))
}

fn differences(git: &Git, from: &str, to: &str) -> Result<Vec<Change>, Failure> {
    let output = git.output(["diff-tree", "-r", "-z", "--no-renames", "--raw", from, to])?;
    let mut fields = output.split(|byte| *byte == 0);
    let mut changes = Vec::new();
    while let (Some(header), Some(path)) = (fields.next(), fields.next()) {
        let header = String::from_utf8_lossy(header).into_owned();
        let mut words = header.trim_start_matches(':').split(' ');
        let (old, new) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let kind = match (old, new) {
            ("160000", _) | (_, "160000") => ChangeKind::Submodule,
            ("000000", _) => ChangeKind::Add,
            (_, "000000") => ChangeKind::Remove,
            _ => ChangeKind::Modify,
        };
        let path = PathBuf::from(OsStr::from_bytes(path));
        let is_inside = path
            .components()
            .all(|part| matches!(part, Component::Normal(name) if !is_git_directory(name)));
        if !is_inside || path.as_os_str().is_empty() {
            return Err(Failure::new(format!(
                "nothing was changed: the work has a file that cannot be written: {}",
                path.display()
            )));
        }
        changes.push(Change { path, kind });
    }
    Ok(changes)
}

/// Fails if something is in the way that git does not know, for example an ignored file, or if a path
/// leads through a symlink.
fn check_obstacles(root: &Path, changes: &[Change]) -> Result<(), Failure> {
    let removed: BTreeSet<&Path> = changes
        .iter()
        .filter(|change| change.kind == ChangeKind::Remove)
        .map(|change| change.path.as_path())
        .collect();
    let mut in_the_way = BTreeSet::new();
    for change in changes {
        if change.kind == ChangeKind::Submodule {
            continue;
        }
        for parent in change.path.ancestors().skip(1) {
            if parent.as_os_str().is_empty() {
                break;
            }
            match fs::symlink_metadata(root.join(parent)) {
                Ok(found) if !found.is_dir() && !removed.contains(parent) => {
                    in_the_way.insert(parent.to_owned());
                }
                _ => {}
            }
        }
        if change.kind == ChangeKind::Add {
            match fs::symlink_metadata(root.join(&change.path)) {
                Ok(found) if found.is_dir() => {
                    let mut left = MAX_CHECKED_ENTRIES;
                    if !becomes_empty(root, &change.path, &removed, &mut left) {
                        in_the_way.insert(change.path.clone());
                    }
                }
                Ok(_) => {
                    in_the_way.insert(change.path.clone());
                }
                Err(_) => {}
            }
        }
    }
    if in_the_way.is_empty() {
        return Ok(());
    }
    Err(conflict(
        "files that git ignores, or links, are where the session has made files",
        in_the_way.iter().map(PathBuf::as_path),
        "move them away and try again",
    ))
}

/// Whether nothing is left of a directory when the removed files are gone.
fn becomes_empty(root: &Path, directory: &Path, removed: &BTreeSet<&Path>, left: &mut u64) -> bool {
    let Ok(entries) = fs::read_dir(root.join(directory)) else {
        return false;
    };
    entries.flatten().all(|entry| {
        let path = directory.join(entry.file_name());
        *left = left.saturating_sub(1);
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        *left > 0
            && (removed.contains(path.as_path())
                || (is_dir && becomes_empty(root, &path, removed, left)))
    })
}

/// Writes the new and modified files below `stage/files`, as a checkout would.
fn stage_files(
    snapshot: &Snapshot,
    merged: &str,
    changes: &[Change],
    stage: &Path,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::with_cause(format!("cannot write {}", stage.display()), &error)
    };
    // What is there without a journal was never begun.
    match fs::remove_dir_all(stage) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    fs::create_dir_all(stage).map_err(failed)?;
    let index = snapshot.quarantine.path().join("merged-index");
    let git = snapshot.git.with_variable("GIT_INDEX_FILE", index);
    git.output(["read-tree", merged])?;
    let mut paths = Vec::new();
    for change in changes {
        if matches!(change.kind, ChangeKind::Add | ChangeKind::Modify) {
            paths.extend(change.path.as_os_str().as_bytes());
            paths.push(0);
        }
    }
    let mut prefix = std::ffi::OsString::from("--prefix=");
    prefix.push(stage.join("files"));
    prefix.push("/");
    let arguments: [&OsStr; 4] = [
        "checkout-index".as_ref(),
        "-z".as_ref(),
        "--stdin".as_ref(),
        &prefix,
    ];
    git.filter(arguments, paths)?;
    // Two names that this file system cannot tell apart are one file.
    for change in changes {
        let staged = stage.join("files").join(&change.path);
        if matches!(change.kind, ChangeKind::Add | ChangeKind::Modify)
            && fs::symlink_metadata(&staged).is_err()
        {
            return Err(Failure::new(format!(
                "nothing was changed: {} could not be written on this file system",
                change.path.display()
            )));
        }
    }
    Ok(())
}
