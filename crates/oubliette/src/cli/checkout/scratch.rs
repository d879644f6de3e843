//! Directories for snapshots and for what arrives, which only the user can read. They are in the data directory;
//! those of a command that was killed are removed by the next one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use crate::failure::Failure;
use crate::home::Home;

/// The lock of a directory that is in use, and that of all of them.
const LOCK: &str = "lock";

/// A new directory, removed with this value.
#[derive(Debug)]
pub(super) struct Scratch {
    directory: TempDir,
    /// Held while the directory is in use. It ends with the process, however that ends.
    _lock: File,
}

impl Scratch {
    pub(super) fn new(home: &Home) -> Result<Self, Failure> {
        let parent = home.checkouts_dir().join("snapshots");
        let made = home.require_no_links(&["checkouts", "snapshots"]);
        let made = made.and_then(|()| Self::new_in(&parent));
        made.map_err(|error| {
            Failure::with_cause(
                format!("cannot make a directory in {}", parent.display()),
                &error,
            )
        })
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
        // Nobody removes a directory between its creation and its lock.
        let all = open_lock(parent)?;
        flock(&all, FlockOperation::LockExclusive)?;
        remove_left(parent);
        let directory = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        let lock = open_lock(directory.path())?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self {
            directory,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn open_lock(directory: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(directory.join(LOCK))
}

/// Removes the directories that no process uses.
fn remove_left(parent: &Path) {
    let directories = fs::read_dir(parent).into_iter().flatten().flatten();
    let directories = directories.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for path in directories
        .map(|entry| entry.path())
        .collect::<Vec<PathBuf>>()
    {
        let lock = File::open(path.join(LOCK));
        let in_use =
            lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
        if !in_use {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_private_and_those_of_no_process_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let parent = home.path().join("snapshots");
        let living = Scratch::new_in(&parent).unwrap();
        let left = parent.join("left");
        fs::create_dir_all(left.join("objects")).unwrap();
        open_lock(&left).unwrap();
        let other = Scratch::new_in(&parent).unwrap();
        assert!(!left.exists() && living.path().exists());
        for path in [&parent, living.path(), other.path()] {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", path.display());
        }
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
    }
}
