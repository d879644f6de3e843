//! The three-way merge of an apply, and what is left of it where both sides have changed the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::super::git::last_lines;
use super::super::snapshot::{Snapshot, commit_tree};
use super::journal::free_name;
use super::{listed, tree_of};
use crate::failure::Failure;

/// The mode of a repository inside this one.
const SUBMODULE: &str = "160000";
/// What conflict markers call the files here.
const HERE: &str = "here";

/// The files here with the work of a session.
#[derive(Debug)]
pub(super) struct Merge {
    pub(super) tree: String,
    pub(super) conflicts: Vec<Conflict>,
    /// The commits of both sides, by which git calls them in conflict markers.
    ours: String,
    theirs: String,
}

/// A file that both sides have changed so that git cannot merge it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Conflict {
    pub(in super::super) path: PathBuf,
    pub(in super::super) kind: ConflictKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum ConflictKind {
    /// The file has both versions, between conflict markers.
    Markers,
    /// The file is as it was here, and that of the session is the given one.
    Beside(PathBuf),
    /// Removed here and changed by the session: it is there as the session left it.
    RemovedHere,
    /// Changed here and removed by the session: it is there as it was.
    RemovedBySession,
    /// Moved, or a file on one side and a directory or repository on the other.
    Moved,
}

/// An entry of a tree or index: its mode and the name of its object.
type Blob = (String, String);

/// The entries of the base, of ours and of theirs.
type Stages = [Option<Blob>; 3];

/// Merges the changes from `sent` to `work` into `ours`, a tree. With conflicts it is an error that names
/// the files, unless `with_conflicts`; then `root` tells which names are free.
pub(super) fn merge(
    snapshot: &Snapshot,
    (sent, work): (&str, &str),
    with_conflicts: bool,
    root: &Path,
) -> Result<Merge, Failure> {
    let git = &snapshot.git;
    let base = commit_tree(git, &tree_of(git, sent)?, &[], "base")?;
    let ours = commit_tree(git, &snapshot.tree, &[&base], "ours")?;
    let theirs = commit_tree(git, &tree_of(git, work)?, &[&base], "theirs")?;
    let words = ["merge-tree", "--write-tree", "-z", "--no-messages"];
    let merged = git.run(words.into_iter().chain([ours.as_str(), theirs.as_str()]))?;
    let mut parts = merged.stdout.split(|byte| *byte == 0);
    let tree = String::from_utf8_lossy(parts.next().unwrap_or_default())
        .trim()
        .to_owned();
    let mut merge = Merge {
        tree,
        conflicts: Vec::new(),
        ours,
        theirs,
    };
    match merged.status.code() {
        Some(0) => Ok(merge),
        Some(1) => {
            let stages = stages(parts);
            if !with_conflicts {
                return Err(Failure::new(format!(
                    "nothing was changed: these files were changed here and by the session, in the same places: {}; \
                     `oubliette apply --merge` writes both versions into them, and `oubliette fetch` takes the \
                     work as a branch",
                    listed(stages.keys().map(PathBuf::as_path))
                )));
            }
            merge.settle(snapshot, &stages, root)?;
            Ok(merge)
        }
        _ if String::from_utf8_lossy(&merged.stderr).contains("usage:") => Err(Failure::new(
            "`oubliette apply` needs git 2.38 or newer on this machine; `oubliette fetch` works with older ones",
        )),
        _ => Err(Failure::new(last_lines(&merged.stderr))),
    }
}

/// Reads `MODE OBJECT STAGE<TAB>PATH`.
fn stages<'a>(lines: impl Iterator<Item = &'a [u8]>) -> BTreeMap<PathBuf, Stages> {
    let mut found: BTreeMap<PathBuf, Stages> = BTreeMap::new();
    for (path, mode, object, stage) in lines.filter_map(entry) {
        let stages = found.entry(path).or_default();
        if let Some(place) = stage.checked_sub(1).and_then(|stage| stages.get_mut(stage)) {
            *place = Some((mode, object));
        }
    }
    found
}

fn entry(line: &[u8]) -> Option<(PathBuf, String, String, usize)> {
    let tab = line.iter().position(|byte| *byte == b'\t')?;
    let (fields, path) = (String::from_utf8_lossy(&line[..tab]), &line[tab + 1..]);
    let mut fields = fields.split(' ').map(str::to_owned);
    let (mode, object) = (fields.next()?, fields.next()?);
    let stage = fields.next()?.parse().ok()?;
    Some((PathBuf::from(OsStr::from_bytes(path)), mode, object, stage))
}

impl Merge {
    /// Says what each conflict is, and gives files that have no place of their own another name.
    fn settle(
        &mut self,
        snapshot: &Snapshot,
        stages: &BTreeMap<PathBuf, Stages>,
        root: &Path,
    ) -> Result<(), Failure> {
        let index = snapshot.quarantine.path().join("conflicts-index");
        let git = snapshot.git.with_variable("GIT_INDEX_FILE", index);
        git.output(["read-tree", &self.tree])?;
        let entries = git.output(["ls-files", "--stage", "-z"])?;
        let entries: BTreeMap<PathBuf, Blob> = entries
            .split(|byte| *byte == 0)
            .filter_map(entry)
            .map(|(path, mode, object, _)| (path, (mode, object)))
            .collect();
        let mut taken: BTreeSet<PathBuf> = BTreeSet::new();
        let mut free = |path: &Path, ending: &str| {
            let is_taken = |name: &Path| {
                taken.contains(name)
                    || entries.contains_key(name)
                    || root.join(name).symlink_metadata().is_ok()
            };
            let name = free_name(path, ending, is_taken);
            taken.insert(name.clone());
            name
        };
        let mut edits = IndexEdits::default();
        for (path, [base, ours, theirs]) in stages {
            // Otherwise it came by a move.
            let was_there = base.is_some();
            let merged = entries.get(path);
            let mut shown = path.clone();
            let kind = match (ours, theirs) {
                // git has given one of the two a name with a commit in it.
                _ if self.without_commit(path).is_some() => {
                    let (place, side) = self.without_commit(path).unwrap_or_default();
                    shown = free(&place, &format!("~{side}"));
                    if let Some((mode, object)) = merged {
                        edits.remove(path);
                        edits.put(&shown, mode, object);
                    }
                    ConflictKind::Moved
                }
                (Some((mode, _)), Some(_)) | (Some(_), Some((mode, _))) if mode == SUBMODULE => {
                    ConflictKind::Moved
                }
                (Some(ours), Some((mode, object))) if merged == Some(ours) => {
                    let beside = free(path, ".oubliette");
                    edits.put(&beside, mode, object);
                    ConflictKind::Beside(beside)
                }
                (Some(_), Some(_)) => ConflictKind::Markers,
                (Some(_), None) if was_there => ConflictKind::RemovedBySession,
                (None, Some(_)) if was_there => ConflictKind::RemovedHere,
                _ => ConflictKind::Moved,
            };
            self.conflicts.push(Conflict { path: shown, kind });
        }
        if !edits.lines.is_empty() {
            let edit = ["update-index", "-z", "--replace", "--index-info"];
            git.filter(edit, edits.lines)?;
            self.tree = git.text(["write-tree"])?;
        }
        Ok(())
    }

    /// The path that git has added the name of a commit to, and the side of that commit.
    fn without_commit(&self, path: &Path) -> Option<(PathBuf, &'static str)> {
        let text = path.as_os_str().as_bytes();
        let sides = [(&self.ours, HERE), (&self.theirs, "session")];
        sides.into_iter().find_map(|(commit, side)| {
            let ending = format!("~{commit}");
            let at = text
                .windows(ending.len())
                .position(|part| part == ending.as_bytes())?;
            Some((PathBuf::from(OsStr::from_bytes(&text[..at])), side))
        })
    }

    /// Calls both sides by names that say something in the conflict markers of a file.
    pub(super) fn name_sides(&self, file: &Path, session_id: &str) -> std::io::Result<()> {
        if !file.symlink_metadata().is_ok_and(|found| found.is_file()) {
            return Ok(());
        }
        let text = std::fs::read(file)?;
        let mut named = Vec::with_capacity(text.len());
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let sides = [
                (b'<', self.ours.as_bytes(), HERE),
                (b'>', self.theirs.as_bytes(), session_id),
            ];
            let rest = sides.into_iter().find_map(|(marker, commit, name)| {
                let length = line.iter().take_while(|byte| **byte == marker).count();
                let rest = line
                    .get(length..)?
                    .strip_prefix(b" ")?
                    .strip_prefix(commit)?;
                (length > 0).then_some((&line[..=length], name, rest))
            });
            match rest {
                Some((marker, name, rest)) => {
                    named.extend_from_slice(marker);
                    named.extend_from_slice(name.as_bytes());
                    named.extend_from_slice(rest);
                }
                None => named.extend_from_slice(line),
            }
        }
        std::fs::write(file, named)
    }
}

/// Lines for `git update-index --index-info`.
#[derive(Debug, Default)]
struct IndexEdits {
    lines: Vec<u8>,
}

impl IndexEdits {
    fn put(&mut self, path: &Path, mode: &str, object: &str) {
        self.lines.extend(format!("{mode} {object}\t").into_bytes());
        self.lines.extend(path.as_os_str().as_bytes());
        self.lines.push(0);
    }

    fn remove(&mut self, path: &Path) {
        self.put(path, "0", &"0".repeat(40));
    }
}
