//! The last step of an apply: a list of files to remove and to put in place. Doing it twice is the same as
//! doing it once.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

const JOURNAL: &str = "journal.json";

/// Paths are relative to the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Journal {
    pub(super) root: PathBuf,
    pub(super) removed: Vec<PathBuf>,
    /// The files are below `files` in the directory of the journal.
    pub(super) written: Vec<PathBuf>,
}

/// The file, with paths as bytes: they need not be text.
#[derive(Serialize, Deserialize)]
struct Stored {
    root: Vec<u8>,
    removed: Vec<Vec<u8>>,
    written: Vec<Vec<u8>>,
}

/// Finishes an apply that was killed; returns whether there was one.
pub(in super::super) fn finish_left(stage: &Path) -> Result<bool, Failure> {
    match Journal::read(stage) {
        Ok(Some(journal)) => {
            journal.replay(stage)?;
            Ok(true)
        }
        // It was killed while it prepared, and has changed nothing.
        Ok(None) => {
            let _ = fs::remove_dir_all(stage);
            Ok(false)
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
        }))
    }

    /// Stores the journal: from here on the apply happens.
    pub(super) fn commit(&self, stage: &Path) -> Result<(), Failure> {
        let bytes = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
        let stored = Stored {
            root: bytes(&self.root),
            removed: self.removed.iter().map(bytes).collect(),
            written: self.written.iter().map(bytes).collect(),
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

    /// Changes the files, and removes the journal.
    pub(super) fn replay(&self, stage: &Path) -> Result<(), Failure> {
        let failed = |path: &Path, error: &io::Error| {
            Failure::with_cause(
                format!(
                    "cannot write {}; run `oubliette apply` again to finish",
                    self.root.join(path).display()
                ),
                error,
            )
        };
        for path in &self.removed {
            self.remove(path).map_err(|error| failed(path, &error))?;
        }
        for path in &self.written {
            self.put(stage, path)
                .map_err(|error| failed(path, &error))?;
        }
        // First the journal: without it the rest is only garbage.
        let removed = fs::remove_file(stage.join(JOURNAL));
        let removed = removed.and_then(|()| fs::remove_dir_all(stage));
        removed.map_err(|error| {
            Failure::with_cause(format!("cannot remove {}", stage.display()), &error)
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let target = self.root.join(path);
        match fs::symlink_metadata(&target) {
            // An earlier run has removed the file and put others below its name.
            Ok(found) if found.is_dir() => return Ok(()),
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
        Ok(())
    }

    fn put(&self, stage: &Path, path: &Path) -> io::Result<()> {
        let (staged, target) = (stage.join("files").join(path), self.root.join(path));
        if let Err(error) = fs::symlink_metadata(&staged) {
            // An earlier run has put it there.
            return if error.kind() == ErrorKind::NotFound {
                Ok(())
            } else {
                Err(error)
            };
        }
        let directory = target.parent().unwrap_or(&self.root);
        fs::create_dir_all(directory)?;
        match fs::rename(&staged, &target) {
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                let near = directory.join(format!(".oubliette-{}", uuid::Uuid::new_v4()));
                copy(&staged, &near)?;
                fs::rename(&near, &target)?;
                fs::remove_file(&staged)
            }
            renamed => renamed,
        }
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
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
        let journal = Journal {
            root,
            removed: vec!["gone/x".into(), "old".into()],
            written: vec!["kept".into(), "old/new".into()],
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
                    0 | 1 => journal.remove(&journal.removed[step]).unwrap(),
                    _ => journal.put(&stage, &journal.written[step - 2]).unwrap(),
                }
            }
            assert!(finish_left(&stage).unwrap());
            let expected = [("kept", "2"), ("old/new", "2")]
                .map(|(name, text)| (name.to_owned(), text.to_owned()));
            assert_eq!(files(&journal.root), expected);
            assert!(!stage.exists() && !finish_left(&stage).unwrap());
        }
    }

    #[test]
    fn an_apply_that_was_killed_before_its_journal_changes_nothing() {
        let (_directory, stage, journal) = prepare();
        let before = files(&journal.root);
        assert!(!finish_left(&stage).unwrap());
        assert_eq!(files(&journal.root), before);
        assert!(!stage.exists());
    }
}
