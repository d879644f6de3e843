//! Visits every entry of a tree.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Dir, Stat};
use rustix::io::Errno;

use crate::open::{is_dir, stat_at};
use crate::position::Position;

/// How many bytes the names of directories that wait to be entered may take.
const MAX_PENDING_BYTES: usize = 256 << 20;

/// An entry of a tree. A directory is visited when it is open, before its entries.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The directory that contains a file; a directory itself.
    pub dir: BorrowedFd<'a>,
    pub name: &'a CStr,
    /// The names of the directories above it from the root of the walk, joined by slashes.
    pub parent: &'a [u8],
    pub stat: &'a Stat,
}

impl Entry<'_> {
    /// The names from the root of the walk, joined by slashes.
    pub fn path(&self) -> Vec<u8> {
        join(self.parent, self.name)
    }

    /// The length of [`Entry::path`], which may be millions.
    pub fn path_len(&self) -> usize {
        self.parent.len() + usize::from(!self.parent.is_empty()) + self.name.count_bytes()
    }
}

/// What a walk does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Continue,
    /// Leaves out the entries of the directory.
    Skip,
    /// Ends the walk.
    Stop,
}

/// What a walk calls. An error from a visitor ends the walk; everything else that goes wrong is only
/// reported.
pub trait Visitor {
    /// A directory.
    fn directory(&mut self, entry: &Entry<'_>) -> io::Result<Next>;
    /// Anything else: a file, a link, a pipe, a socket, a device.
    fn file(&mut self, entry: &Entry<'_>) -> io::Result<Next>;
    /// An entry that is left out, with everything below it; or, for a directory that was visited
    /// already, the rest of its entries.
    fn skipped(&mut self, path: &[u8], error: &io::Error);
}

/// Walks through everything below a directory, depth first; the files of a directory come before its
/// directories. An entry that disappears meanwhile is left out without a report.
pub fn walk(root: OwnedFd, visitor: &mut impl Visitor) -> io::Result<()> {
    let mut position = Position::new(root);
    let mut pending_bytes = 0;
    let Some(names) = read_level(&position, visitor, &mut pending_bytes)? else {
        return Ok(());
    };
    let mut pending = vec![names];
    while let Some(names) = pending.last_mut() {
        let Some(name) = names.pop() else {
            pending.pop();
            if let Err(error) = position.leave()
                && let Some(names) = pending.last_mut()
            {
                visitor.skipped(position.path(), &error.into());
                pending_bytes -= names.bytes.len();
                names.bytes.clear();
            }
            continue;
        };
        pending_bytes -= name.count_bytes() + 1;
        let stat = match position.enter(&name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(error) => {
                visitor.skipped(&join(position.path(), &name), &error.into());
                continue;
            }
        };
        let entry = Entry {
            dir: position.dir()?,
            name: &name,
            parent: position.parent_path(),
            stat: &stat,
        };
        match visitor.directory(&entry)? {
            Next::Continue => match read_level(&position, visitor, &mut pending_bytes)? {
                Some(names) => pending.push(names),
                None => return Ok(()),
            },
            Next::Skip => pending.push(Names::default()),
            Next::Stop => return Ok(()),
        }
    }
    Ok(())
}

/// Visits the files of the current directory. Returns the names of its directories; `None` to stop.
fn read_level(
    position: &Position,
    visitor: &mut impl Visitor,
    pending_bytes: &mut usize,
) -> io::Result<Option<Names>> {
    let mut names = Names::default();
    let dir = position.dir()?;
    let entries = match Dir::read_from(dir) {
        Ok(entries) => entries,
        Err(error) => {
            visitor.skipped(position.path(), &error.into());
            return Ok(Some(names));
        }
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                visitor.skipped(position.path(), &error.into());
                break;
            }
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match stat_at(dir, name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(error) => {
                visitor.skipped(&join(position.path(), name), &error.into());
                continue;
            }
        };
        if is_dir(&stat) {
            let bytes = name.count_bytes() + 1;
            if *pending_bytes + bytes > MAX_PENDING_BYTES {
                let error = io::Error::other("there are too many directories");
                visitor.skipped(&join(position.path(), name), &error);
                continue;
            }
            *pending_bytes += bytes;
            names.bytes.extend_from_slice(name.to_bytes_with_nul());
            continue;
        }
        let entry = Entry {
            dir,
            name,
            parent: position.path(),
            stat: &stat,
        };
        if visitor.file(&entry)? == Next::Stop {
            return Ok(None);
        }
    }
    Ok(Some(names))
}

fn join(path: &[u8], name: &CStr) -> Vec<u8> {
    let mut joined = Vec::with_capacity(path.len() + 1 + name.count_bytes());
    joined.extend_from_slice(path);
    if !path.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name.to_bytes());
    joined
}

/// Names, each with a zero byte at its end: a directory may have millions.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
}

impl Names {
    fn pop(&mut self) -> Option<std::ffi::CString> {
        let end = self.bytes.len().checked_sub(1)?;
        let start = self.bytes[..end]
            .iter()
            .rposition(|byte| *byte == 0)
            .map_or(0, |zero| zero + 1);
        let name = std::ffi::CString::from_vec_with_nul(self.bytes.split_off(start));
        name.ok()
    }
}
