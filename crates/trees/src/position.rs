//! A directory at any depth below a root, with a constant number of open descriptors.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Stat, fstat};
use rustix::io::{Errno, Result};

use crate::open::open_dir;

/// How many of the deepest directories stay open.
const MAX_OPEN_DIRS: usize = 32;
/// How many directories may be opened in total to find lost ones again, which takes time for each
/// directory above them.
const MAX_REOPENED_DIRS: u64 = 4_000_000;

/// The position of a walk. Directories above the deepest ones are closed, and opened again on the way
/// back: as the parent of the deeper one or, if that was moved, by their names from the root. A
/// directory is used again only if it is the same one.
#[derive(Debug)]
pub struct Position {
    root: OwnedFd,
    levels: Vec<Level>,
    /// The names from the root, joined by slashes.
    path: Vec<u8>,
    /// The open directories of the deepest levels.
    open: VecDeque<OwnedFd>,
    reopens_left: u64,
}

#[derive(Debug)]
struct Level {
    /// Where the name begins in the path.
    name_start: usize,
    identity: Identity,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the types differ between platforms"
    )]
    fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
        }
    }
}

impl Position {
    pub fn new(root: OwnedFd) -> Self {
        Self {
            root,
            levels: Vec::new(),
            path: Vec::new(),
            open: VecDeque::new(),
            reopens_left: MAX_REOPENED_DIRS,
        }
    }

    /// How many directories are above this one.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// The names from the root, joined by slashes; empty for the root.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The name of the current directory; empty for the root.
    pub fn name(&self) -> &[u8] {
        let start = self.levels.last().map_or(0, |level| level.name_start);
        &self.path[start..]
    }

    /// The path of the directory above.
    pub(crate) fn parent_path(&self) -> &[u8] {
        let start = self.levels.last().map_or(0, |level| level.name_start);
        &self.path[..start.saturating_sub(1)]
    }

    #[cfg(test)]
    pub(crate) fn open_dirs(&self) -> usize {
        self.open.len()
    }

    /// The current directory. An error if it was lost when [`Position::leave`] came back to it.
    pub fn dir(&self) -> Result<BorrowedFd<'_>> {
        match self.open.back() {
            Some(dir) => Ok(dir.as_fd()),
            None if self.levels.is_empty() => Ok(self.root.as_fd()),
            None => Err(Errno::STALE),
        }
    }

    /// Goes into a directory of the current one.
    pub fn enter(&mut self, name: &CStr) -> Result<Stat> {
        let dir = open_dir(self.dir()?, name)?;
        let stat = fstat(&dir)?;
        let separator = usize::from(!self.path.is_empty());
        self.levels.push(Level {
            name_start: self.path.len() + separator,
            identity: Identity::of(&stat),
        });
        if separator == 1 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        if self.open.len() == MAX_OPEN_DIRS {
            self.open.pop_front();
        }
        self.open.push_back(dir);
        Ok(stat)
    }

    /// Goes back to the parent. An error says that the parent cannot be found any more: the position
    /// is there, but only [`Position::leave`] can be called.
    pub fn leave(&mut self) -> Result<()> {
        let Some(level) = self.levels.pop() else {
            return Ok(());
        };
        self.path.truncate(level.name_start.saturating_sub(1));
        let left = self.open.pop_back();
        let Some(parent) = self.levels.last() else {
            return Ok(());
        };
        if !self.open.is_empty() {
            return Ok(());
        }
        let identity = parent.identity;
        let by_parent = left.and_then(|left| same_dir(&left, c"..", identity).ok());
        let dir = match by_parent {
            Some(dir) => dir,
            None => self.reopen(identity)?,
        };
        self.open.push_back(dir);
        Ok(())
    }

    /// Opens the current directory by its names.
    fn reopen(&mut self, identity: Identity) -> Result<OwnedFd> {
        let mut dir: Option<OwnedFd> = None;
        for name in self.path.split(|byte| *byte == b'/') {
            self.reopens_left = self.reopens_left.checked_sub(1).ok_or(Errno::STALE)?;
            let at = dir.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            dir = Some(open_dir(at, name)?);
        }
        let dir = dir.ok_or(Errno::STALE)?;
        if Identity::of(&fstat(&dir)?) == identity {
            Ok(dir)
        } else {
            Err(Errno::STALE)
        }
    }
}

fn same_dir(at: &OwnedFd, name: &CStr, identity: Identity) -> Result<OwnedFd> {
    let dir = open_dir(at, name)?;
    if Identity::of(&fstat(&dir)?) == identity {
        Ok(dir)
    } else {
        Err(Errno::STALE)
    }
}
