//! The disk usage of a tree.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;

use crate::open::open_dir;
use crate::walk::{Entry, Next, Visitor, walk};

/// Counting stops here, because more files take too long.
const MAX_ENTRIES: u64 = 5_000_000;
/// How many files with several names are remembered; others count once for each name.
const MAX_LINKED_FILES: usize = 1_000_000;

/// What a tree takes on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    /// Whether some directories could not be read, or there were too many files.
    pub is_incomplete: bool,
}

/// The bytes on the disk below a directory; none if it does not exist. A file with several names
/// counts once.
pub fn disk_usage(directory: &Path) -> io::Result<Usage> {
    let root = match open_dir(CWD, directory) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(Usage::default()),
        Err(error) => return Err(error.into()),
    };
    let mut counter = Counter::default();
    walk(root, &mut counter)?;
    Ok(counter.usage)
}

#[derive(Debug, Default)]
struct Counter {
    usage: Usage,
    entries: u64,
    linked: HashSet<(u64, u64)>,
}

impl Counter {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the types differ between platforms"
    )]
    fn add(&mut self, entry: &Entry<'_>, may_be_linked: bool) -> Next {
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            self.usage.is_incomplete = true;
            return Next::Stop;
        }
        if may_be_linked && entry.stat.st_nlink > 1 && self.linked.len() < MAX_LINKED_FILES {
            let identity = (entry.stat.st_dev as u64, entry.stat.st_ino as u64);
            if !self.linked.insert(identity) {
                return Next::Continue;
            }
        }
        let blocks = u64::try_from(entry.stat.st_blocks).unwrap_or(0);
        self.usage.bytes = self.usage.bytes.saturating_add(blocks.saturating_mul(512));
        Next::Continue
    }
}

impl Visitor for Counter {
    fn directory(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        Ok(self.add(entry, false))
    }

    fn file(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        Ok(self.add(entry, true))
    }

    fn skipped(&mut self, _: &[u8], _: &io::Error) {
        self.usage.is_incomplete = true;
    }
}
