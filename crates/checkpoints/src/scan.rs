//! Makes the tree of a workspace.

mod content;
mod walk;

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::{Hash, ObjectStore, StatCache};

/// Larger files are noted, not kept.
pub const MAX_KEPT_FILE_BYTES: u64 = 10 << 20;

#[derive(Debug, Clone, Copy)]
pub struct ScanLimits {
    pub max_files: u64,
    pub max_time: Duration,
    /// How many bytes the new objects may take.
    pub max_new_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    pub root: Hash,
    /// The number of files and links in the tree.
    pub files: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    #[error("it has more than {0} files, or directories, that git would not ignore")]
    TooManyFiles(u64),
    #[error("its `.gitignore` files have too many patterns")]
    TooManyRules,
    #[error("it takes longer than {} s to read it", .0.as_secs())]
    TooSlow(Duration),
    #[error("its new content takes more than the {} MB that are left for checkpoints", .0 >> 20)]
    TooLarge(u64),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Scans a directory as it is now. When it returns, the tree is on the disk.
///
/// Files that git would ignore are left out, and so is everything in `.git` except `HEAD`, `index` and the
/// refs. Processes may change files meanwhile: each file is as it was at some moment of the scan.
pub fn scan(
    root: OwnedFd,
    store: &ObjectStore,
    cache: &mut StatCache,
    limits: &ScanLimits,
) -> Result<Scan, ScanError> {
    // A scan that fails leaves an empty cache: the objects that it has found are not in the store.
    let known = std::mem::take(cache);
    let store_state = store.state_id();
    let deadline = Instant::now() + limits.max_time;
    let objects = store.new_objects(limits.max_new_bytes);
    let scanner = walk::Scanner::new(root, objects, known, store_state, limits, deadline);
    let (scan, objects, found) = scanner.run()?;
    objects.publish()?;
    *cache = StatCache {
        store_state: Some(store_state),
        ..found
    };
    Ok(scan)
}
