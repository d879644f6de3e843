//! `oubliette apply`: merges the work of a session into the files here.
//!
//! Everything is prepared first, in a directory of its own: the merge, the new files, and a journal. Then
//! files are only renamed and removed. A command that is killed meanwhile leaves the journal, and the next
//! one in this checkout finishes it. What the files were is kept (`undo.rs`).

mod can_run;
mod command;
mod journal;
mod merge;
mod outward_links;
mod undo;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::git::{Git, is_git_directory};
use super::repository::Repository;
use super::snapshot::{Snapshot, write_tree};
use crate::failure::Failure;
pub(super) use command::undo_command;
use journal::{Journal, MergedFiles};
pub(super) use journal::{KeptFile, finish_interrupted};
use merge::{Conflict, ConflictKind, Merge};
use undo::undo;

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
    /// Written links that lead out of the repository.
    pub(super) outward_links: Vec<String>,
    /// Files that both sides have changed, and that could not be merged.
    pub(super) conflicts: Vec<Conflict>,
}

/// What is applied, and how.
#[derive(Debug)]
pub(super) struct SessionWork<'a> {
    pub(super) session_id: &'a str,
    /// The commit with the files that were sent.
    pub(super) sent: &'a str,
    /// The commit with the files of the session.
    pub(super) work: &'a str,
    /// Whether conflicts are written into the files; otherwise they are an error.
    pub(super) with_conflicts: bool,
}

/// Directories of an apply, beside the record of the checkout.
#[derive(Debug)]
pub(super) struct ApplyPaths {
    /// Does not exist unless an apply was killed.
    pub(super) stage: PathBuf,
    /// The files as they were before the last apply.
    pub(super) undo: PathBuf,
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

/// Merges the work of a session into the files that the snapshot was taken of.
pub(super) fn apply(
    repository: &Repository,
    snapshot: &Snapshot,
    session: &SessionWork<'_>,
    paths: &ApplyPaths,
) -> Result<Applied, Failure> {
    let (git, stage) = (&snapshot.git, paths.stage.as_path());
    let range = (session.sent, session.work);
    let merge = merge::merge(snapshot, range, session.with_conflicts, &repository.root)?;
    let merged = merge.tree.as_str();
    let changes = differences(git, &snapshot.tree, merged)?;
    let of_kind = |kind: ChangeKind| changes.iter().filter(move |change| change.kind == kind);
    let mut applied = Applied {
        written: of_kind(ChangeKind::Add).count() + of_kind(ChangeKind::Modify).count(),
        removed: of_kind(ChangeKind::Remove).count(),
        skipped: of_kind(ChangeKind::Submodule)
            .map(|change| change.path.to_string_lossy().into_owned())
            .collect(),
        conflicts: merge.conflicts.clone(),
        ..Applied::default()
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
    let names: Vec<&Path> = written.iter().map(PathBuf::as_path).collect();
    applied.can_run = can_run::find(&repository.git, &repository.root, &names)?;
    let staged = stage_files(snapshot, merged, &changes, stage);
    let staged = staged.and_then(|()| name_sides(&merge, stage, session.session_id));
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
    applied.outward_links = outward_links::find(&stage.join("files"), &names);
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
    journal.require_space(stage)?;
    undo::keep(&paths.undo, &journal, stage, session.session_id)?;
    journal.commit(stage)?;
    applied.kept = journal.replay(stage)?;
    Ok(applied)
}

/// Names both sides in the conflict markers of the prepared files.
fn name_sides(merge: &Merge, stage: &Path, session_id: &str) -> Result<(), Failure> {
    for conflict in &merge.conflicts {
        if conflict.kind == ConflictKind::Markers {
            let file = stage.join("files").join(&conflict.path);
            merge.name_sides(&file, session_id).map_err(|error| {
                Failure::with_cause(format!("cannot write {}", file.display()), &error)
            })?;
        }
    }
    Ok(())
}

pub(super) fn tree_of(git: &Git, commit: &str) -> Result<String, Failure> {
    git.text(["rev-parse", "--verify", &format!("{commit}^{{tree}}")])
}

/// Some paths, for an error.
fn listed<'a>(paths: impl Iterator<Item = &'a Path>) -> String {
    let mut shown: Vec<String> = paths
        .take(MAX_LISTED_PATHS + 1)
        .map(|path| path.display().to_string())
        .collect();
    if shown.len() > MAX_LISTED_PATHS {
        shown.truncate(MAX_LISTED_PATHS);
        shown.push("…".to_owned());
    }
    shown.join(", ")
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
    Err(Failure::new(format!(
        "nothing was changed: files that git ignores, or links, are where files have to be written: {}; move \
         them away and try again",
        listed(in_the_way.iter().map(PathBuf::as_path))
    )))
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
