//! Removes a tree, or moves it away to be removed.

use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, RenameFlags, renameat, renameat_with, unlinkat};
use rustix::io::{Errno, Result};

use crate::open::{allow_owner, is_not_a_dir, open_dir};

/// A process that still holds a directory of the tree can add to it for as long as it likes.
const MAX_TIME: Duration = Duration::from_secs(3600);
/// How often the tree is gone through again for what could not be removed at first, for example
/// because files were added meanwhile.
const MAX_PASSES: u32 = 8;

/// Removes a tree: of any depth, with directories that deny access to their owner, while it is
/// changed. Removes everything that can be removed, and returns the first error of the rest. It is
/// not an error if nothing exists.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let mut removal = match Removal::open(path) {
        Ok(removal) => removal,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) if is_not_a_dir(error) => {
            return match unlinkat(CWD, path, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        Err(error) => return Err(error.into()),
    };
    for _ in 0..MAX_PASSES {
        removal.removed = 0;
        removal.first_error = None;
        removal.run_pass()?;
        match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(error) => removal.note(error),
        }
        if removal.removed == 0 {
            break;
        }
    }
    Err(removal.first_error.unwrap_or(Errno::NOTEMPTY).into())
}

/// Renames a tree, also one whose directory denies access to its owner.
pub fn move_tree(from: &Path, to: &Path) -> io::Result<()> {
    match renameat(CWD, from, CWD, to) {
        // Moving a directory writes its entry `..`.
        Err(Errno::ACCESS) => {
            allow_owner(CWD, from)?;
            Ok(renameat(CWD, from, CWD, to)?)
        }
        other => Ok(other?),
    }
}

/// Directories are moved to the top before they are gone through, so that neither the depth nor the
/// number of open directories grows.
#[derive(Debug)]
struct Removal {
    top: OwnedFd,
    /// Random, so that no name in the tree begins with it.
    prefix: String,
    moved: u64,
    /// Numbers of directories that were moved to the top.
    pending: Vec<u64>,
    /// How many entries this pass removed or moved.
    removed: u64,
    first_error: Option<Errno>,
    deadline: Instant,
}

impl Removal {
    fn open(path: &Path) -> Result<Self> {
        let top = match open_dir(CWD, path) {
            Err(Errno::ACCESS) => {
                allow_owner(CWD, path)?;
                open_dir(CWD, path)?
            }
            other => other?,
        };
        // It may be readable but not writable. If this fails, so does removing an entry.
        let _ = allow_owner(CWD, path);
        Ok(Self {
            top,
            prefix: format!(".removing-{:016x}-", RandomState::new().hash_one(0)),
            moved: 0,
            pending: Vec::new(),
            removed: 0,
            first_error: None,
            deadline: Instant::now() + MAX_TIME,
        })
    }

    fn note(&mut self, error: Errno) {
        self.first_error.get_or_insert(error);
    }

    fn moved_name(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }

    fn run_pass(&mut self) -> io::Result<()> {
        let dir = open_dir(&self.top, c".")?;
        self.clear(&dir, true)?;
        while let Some(number) = self.pending.pop() {
            let name = self.moved_name(number);
            match open_dir(&self.top, &name) {
                Ok(dir) => self.clear(&dir, false)?,
                // It was replaced while it was moved.
                Err(error) if is_not_a_dir(error) => {}
                Err(error) => self.note(error),
            }
            let as_dir = unlinkat(&self.top, &name, AtFlags::REMOVEDIR);
            let removed = match as_dir {
                Err(error) if is_not_a_dir(error) => unlinkat(&self.top, &name, AtFlags::empty()),
                other => other,
            };
            match removed {
                Ok(()) | Err(Errno::NOENT) => self.removed += 1,
                Err(error) => self.note(error),
            }
        }
        Ok(())
    }

    /// Removes the files of a directory and moves its directories to the top.
    fn clear(&mut self, dir: &OwnedFd, is_top: bool) -> io::Result<()> {
        let entries = match Dir::read_from(dir) {
            Ok(entries) => entries,
            Err(error) => {
                self.note(error);
                return Ok(());
            }
        };
        for entry in entries {
            if Instant::now() > self.deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.note(error);
                    break;
                }
            };
            let name = entry.file_name();
            let is_pending = is_top && self.is_pending(name);
            if matches!(name.to_bytes(), b"." | b"..") || is_pending {
                continue;
            }
            match self.remove_entry(dir, name) {
                Ok(()) => self.removed += 1,
                Err(Errno::NOENT) => {}
                Err(error) => self.note(error),
            }
        }
        Ok(())
    }

    /// Whether a name at the top is one that this pass moved there.
    fn is_pending(&self, name: &CStr) -> bool {
        let number = name
            .to_str()
            .ok()
            .and_then(|name| name.strip_prefix(&self.prefix))
            .and_then(|number| number.parse::<u64>().ok());
        number.is_some_and(|number| self.pending.binary_search(&number).is_ok())
    }

    fn remove_entry(&mut self, dir: &OwnedFd, name: &CStr) -> Result<()> {
        let as_file = unlinkat(dir, name, AtFlags::empty());
        // macOS says PERM for a directory.
        if !matches!(as_file, Err(Errno::ISDIR | Errno::PERM)) {
            return as_file;
        }
        match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ACCESS) => {}
            Err(error) if is_not_a_dir(error) => return as_file,
            other => return other,
        }
        // Moving a directory writes its entry `..`.
        allow_owner(dir, name)?;
        loop {
            self.moved += 1;
            let target = self.moved_name(self.moved);
            match renameat_with(dir, name, &self.top, &target, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.pending.push(self.moved);
                    return Ok(());
                }
                Err(Errno::EXIST) => {}
                // The file system has no such rename; the name is random.
                Err(Errno::INVAL) => {
                    renameat(dir, name, &self.top, &target)?;
                    self.pending.push(self.moved);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}
