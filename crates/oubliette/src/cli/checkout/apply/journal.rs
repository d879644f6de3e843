//! The last step of an apply: a list of files to remove and to put in place. Doing it twice is the same as
//! doing it once. A file that the user has changed since is left alone, and the new one is put beside it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

const JOURNAL: &str = "journal.json";
/// A file that is being copied to its directory.
const NEW_FILE: &str = ".oubliette-apply.new";

/// Paths are relative to the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Journal {
    pub(super) root: PathBuf,
    pub(super) removed: Vec<PathBuf>,
    /// The files are below `files` in the directory of the journal.
    pub(super) written: Vec<PathBuf>,
    /// What the user's files were when the work was merged with them.
    pub(super) merged: MergedFiles,
}

/// The states of the files that are to be removed and to be written, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MergedFiles {
    removed: Vec<Option<FileState>>,
    written: Vec<Option<FileState>>,
}

impl MergedFiles {
    pub(super) fn look(root: &Path, removed: &[PathBuf], written: &[PathBuf]) -> Self {
        let look = |path: &PathBuf| FileState::of(&root.join(path));
        Self {
            removed: removed.iter().map(look).collect(),
            written: written.iter().map(look).collect(),
        }
    }
}

/// By which a file is known to be the same as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    /// None if there is no file.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        Some(Self {
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// A file that the user has changed since the merge, and left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct KeptFile {
    pub(in super::super) path: PathBuf,
    /// Where the merged version is; none if it was to be removed.
    pub(in super::super) merged_version: Option<PathBuf>,
}

/// The file, with paths as bytes: they need not be text.
#[derive(Serialize, Deserialize)]
struct Stored {
    root: Vec<u8>,
    removed: Vec<Vec<u8>>,
    written: Vec<Vec<u8>>,
    #[serde(default)]
    merged: MergedFiles,
}

/// Finishes an apply that was killed; returns the files that were left alone, or none if there was no apply.
pub(in super::super) fn finish_interrupted(stage: &Path) -> Result<Option<Vec<KeptFile>>, Failure> {
    match Journal::read(stage) {
        Ok(Some(journal)) => journal.replay(stage).map(Some),
        // It was killed while it prepared, and has changed nothing.
        Ok(None) => {
            let _ = fs::remove_dir_all(stage);
            Ok(None)
        }
        Err(error) => Err(Failure::with_cause(
            format!("cannot read {}", stage.join(JOURNAL).display()),
            &error,
        )),
    }
}

impl Journal {
    fn read(stage: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read(stage.join(JOURNAL)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let stored: Stored = serde_json::from_slice(&text)?;
        let path = |bytes: Vec<u8>| PathBuf::from(std::ffi::OsString::from_vec(bytes));
        Ok(Some(Self {
            root: path(stored.root),
            removed: stored.removed.into_iter().map(path).collect(),
            written: stored.written.into_iter().map(path).collect(),
            merged: stored.merged,
        }))
    }

    /// Fails if the disk of the user's files has no space for those that are to be written; then the stage is
    /// removed.
    pub(super) fn require_space(&self, stage: &Path) -> Result<(), Failure> {
        let (Ok(here), Ok(there)) = (fs::metadata(&self.root), fs::metadata(stage)) else {
            return Ok(());
        };
        let Ok(disk) = rustix::fs::statvfs(&self.root) else {
            return Ok(());
        };
        if here.dev() == there.dev() {
            return Ok(());
        }
        let staged = self
            .written
            .iter()
            .map(|path| stage.join("files").join(path));
        let sizes = staged.filter_map(|path| Some(fs::symlink_metadata(path).ok()?.len()));
        let (needed, free) = (sizes.sum::<u64>(), disk.f_bavail * disk.f_frsize);
        if needed <= free {
            return Ok(());
        }
        let _ = fs::remove_dir_all(stage);
        Err(Failure::new(format!(
            "nothing was changed: the files to be written take {} MB, and the disk of {} has {} MB left",
            needed.div_ceil(1 << 20),
            self.root.display(),
            free >> 20
        )))
    }

    /// Stores the journal: from here on the apply happens.
    pub(super) fn commit(&self, stage: &Path) -> Result<(), Failure> {
        let bytes = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
        let stored = Stored {
            root: bytes(&self.root),
            removed: self.removed.iter().map(bytes).collect(),
            written: self.written.iter().map(bytes).collect(),
            merged: self.merged.clone(),
        };
        let write = || {
            let new = stage.join("journal.new");
            fs::write(&new, serde_json::to_vec(&stored)?)?;
            File::open(&new)?.sync_all()?;
            fs::rename(&new, stage.join(JOURNAL))
        };
        write().map_err(|error| {
            let _ = fs::remove_dir_all(stage);
            Failure::with_cause(
                format!("nothing was changed: cannot write {}", stage.display()),
                &error,
            )
        })
    }

    /// Changes the files, and removes the journal; returns the files that were left alone.
    pub(super) fn replay(&self, stage: &Path) -> Result<Vec<KeptFile>, Failure> {
        let failed = |path: &Path, error: &io::Error| {
            Failure::with_cause(
                format!(
                    "cannot write {}; run `oubliette apply` again to finish",
                    self.root.join(path).display()
                ),
                error,
            )
        };
        let mut kept = Vec::new();
        for (index, path) in self.removed.iter().enumerate() {
            let merged = self.merged.removed.get(index).copied();
            let removed = self.remove(path, merged);
            kept.extend(removed.map_err(|error| failed(path, &error))?);
        }
        for (index, path) in self.written.iter().enumerate() {
            let merged = self.merged.written.get(index).copied();
            let put = self.put(stage, path, merged);
            kept.extend(put.map_err(|error| failed(path, &error))?);
        }
        // First the journal: without it the rest is only garbage.
        let removed = fs::remove_file(stage.join(JOURNAL));
        let removed = removed.and_then(|()| fs::remove_dir_all(stage));
        removed.map_err(|error| {
            Failure::with_cause(format!("cannot remove {}", stage.display()), &error)
        })?;
        Ok(kept)
    }

    /// `merged` is what the file was when the work was merged; none if that is not known.
    fn remove(
        &self,
        path: &Path,
        merged: Option<Option<FileState>>,
    ) -> io::Result<Option<KeptFile>> {
        let target = self.root.join(path);
        match fs::symlink_metadata(&target) {
            // An earlier run has removed the file and put others below its name.
            Ok(found) if found.is_dir() => return Ok(None),
            Ok(_) if merged.is_some_and(|merged| merged != FileState::of(&target)) => {
                return Ok(Some(KeptFile {
                    path: path.to_owned(),
                    merged_version: None,
                }));
            }
            Ok(_) => fs::remove_file(&target)?,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
        for parent in path.ancestors().skip(1) {
            // It fails while there is something in it.
            if parent.as_os_str().is_empty() || fs::remove_dir(self.root.join(parent)).is_err() {
                break;
            }
        }
        Ok(None)
    }

    fn put(
        &self,
        stage: &Path,
        path: &Path,
        merged: Option<Option<FileState>>,
    ) -> io::Result<Option<KeptFile>> {
        let (staged, target) = (stage.join("files").join(path), self.root.join(path));
        if let Err(error) = fs::symlink_metadata(&staged) {
            // An earlier run has put it there.
            return if error.kind() == ErrorKind::NotFound {
                Ok(None)
            } else {
                Err(error)
            };
        }
        let now = FileState::of(&target);
        // A file that is gone cannot be lost.
        let is_changed = now.is_some() && merged.is_some_and(|merged| merged != now);
        if !is_changed {
            move_file(&staged, &target)?;
            return Ok(None);
        }
        if is_same(&staged, &target)? {
            // An earlier run has put a copy there.
            fs::remove_file(&staged)?;
            return Ok(None);
        }
        let is_taken = |name: &Path| fs::symlink_metadata(self.root.join(name)).is_ok();
        let beside = free_name(path, ".oubliette", is_taken);
        move_file(&staged, &self.root.join(&beside))?;
        Ok(Some(KeptFile {
            path: path.to_owned(),
            merged_version: Some(beside),
        }))
    }
}

/// The path of a file with an ending, and a number if that is taken.
pub(super) fn free_name(path: &Path, ending: &str, is_taken: impl Fn(&Path) -> bool) -> PathBuf {
    let with_ending = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        if number > 0 {
            name.push(format!("-{number}"));
        }
        PathBuf::from(name)
    };
    let mut names = (0..).map(with_ending);
    names
        .find(|name| !is_taken(name))
        .unwrap_or_else(|| with_ending(0))
}

fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    let directory = to.parent().unwrap_or(to);
    fs::create_dir_all(directory)?;
    match fs::rename(from, to) {
        Err(error) if error.kind() == ErrorKind::CrossesDevices => {
            // The same name at each try, so that none of them stays.
            let near = directory.join(NEW_FILE);
            let _ = fs::remove_file(&near);
            let moved = copy(from, &near).and_then(|()| fs::rename(&near, to));
            if moved.is_err() {
                let _ = fs::remove_file(&near);
            }
            moved?;
            fs::remove_file(from)
        }
        renamed => renamed,
    }
}

/// Whether two files have the same kind and content.
fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (first, second) = (fs::symlink_metadata(one)?, fs::symlink_metadata(other)?);
    if first.file_type() != second.file_type() || first.len() != second.len() {
        return Ok(false);
    }
    if first.is_symlink() {
        return Ok(fs::read_link(one)? == fs::read_link(other)?);
    }
    Ok(first.is_file() && fs::read(one)? == fs::read(other)?)
}

pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if fs::symlink_metadata(from)?.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(from)?, to)
    } else {
        fs::copy(from, to).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(root: &Path) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut pending = vec![root.to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else {
                    let name = path.strip_prefix(root).unwrap().display().to_string();
                    found.push((name, fs::read_to_string(path).unwrap()));
                }
            }
        }
        found.sort();
        found
    }

    /// A directory and a stage that replaces `old` by `old/new`, changes `kept` and removes `gone/x`.
    fn prepare() -> (tempfile::TempDir, PathBuf, Journal) {
        let directory = tempfile::tempdir().unwrap();
        let (root, stage) = (
            directory.path().join("root"),
            directory.path().join("stage"),
        );
        for (path, text) in [("root/old", "1"), ("root/kept", "1"), ("root/gone/x", "1")] {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        for path in ["old/new", "kept"] {
            let path = stage.join("files").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "2").unwrap();
        }
        let removed: Vec<PathBuf> = vec!["gone/x".into(), "old".into()];
        let written: Vec<PathBuf> = vec!["kept".into(), "old/new".into()];
        let journal = Journal {
            merged: MergedFiles::look(&root, &removed, &written),
            root,
            removed,
            written,
        };
        (directory, stage, journal)
    }

    #[test]
    fn an_apply_that_was_killed_at_any_step_is_finished_by_the_next_command() {
        for steps in 0..=4 {
            let (_directory, stage, journal) = prepare();
            journal.commit(&stage).unwrap();
            for step in 0..steps {
                match step {
                    0 | 1 => journal.remove(&journal.removed[step], None).unwrap(),
                    _ => journal
                        .put(&stage, &journal.written[step - 2], None)
                        .unwrap(),
                };
            }
            assert_eq!(finish_interrupted(&stage).unwrap(), Some(Vec::new()));
            let expected = [("kept", "2"), ("old/new", "2")]
                .map(|(name, text)| (name.to_owned(), text.to_owned()));
            assert_eq!(files(&journal.root), expected);
            assert!(!stage.exists() && finish_interrupted(&stage).unwrap().is_none());
        }
    }

    #[test]
    fn an_apply_that_was_killed_before_its_journal_changes_nothing() {
        let (_directory, stage, journal) = prepare();
        let before = files(&journal.root);
        assert!(finish_interrupted(&stage).unwrap().is_none());
        assert_eq!(files(&journal.root), before);
        assert!(!stage.exists());
    }

    #[test]
    fn files_that_the_user_has_changed_since_are_left_alone() {
        let (_directory, stage, journal) = prepare();
        journal.commit(&stage).unwrap();
        fs::write(journal.root.join("kept"), "mine").unwrap();
        fs::write(journal.root.join("gone/x"), "mine").unwrap();
        fs::write(journal.root.join("kept.oubliette"), "other").unwrap();
        let kept = finish_interrupted(&stage).unwrap().unwrap();
        let expected = [("gone/x", None), ("kept", Some("kept.oubliette-1"))];
        let expected = expected.map(|(path, version)| KeptFile {
            path: path.into(),
            merged_version: version.map(PathBuf::from),
        });
        assert_eq!(kept, expected);
        let expected = [
            ("gone/x", "mine"),
            ("kept", "mine"),
            ("kept.oubliette", "other"),
            ("kept.oubliette-1", "2"),
            ("old/new", "2"),
        ];
        let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(files(&journal.root), expected);
        assert!(!stage.exists());
    }
}
