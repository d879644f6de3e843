//! What the last scan of a workspace found out about its files, so that the next one reads only those
//! that have changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;

use crate::Hash;
use crate::ignore_rules::IgnoreRules;

/// Two changes within this time may leave the same times in the file's metadata: the clock of file
/// systems advances in steps of a few milliseconds.
const CLOCK_STEP: Duration = Duration::from_millis(50);

/// What tells whether a file has changed. A process in a container can set the time of modification, but
/// not the time of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature {
    device: u64,
    inode: u64,
    size: u64,
    mode: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Signature {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the types differ between platforms"
    )]
    pub(crate) fn new(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode as u32,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Whether a later change would leave another signature, if the file was read at `read_at`.
    fn is_settled(&self, read_at: SystemTime) -> bool {
        let since_epoch = read_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let latest = since_epoch.saturating_sub(CLOCK_STEP);
        let (seconds, nanoseconds) = self.changed;
        let seconds = u64::try_from(seconds).unwrap_or(0);
        let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0);
        Duration::new(seconds, nanoseconds) < latest
    }

    /// Stands for the content of a file that is not read.
    pub(crate) fn hash(&self) -> Hash {
        Hash::of(format!("{} {:?}", self.size, self.modified).as_bytes())
    }
}

#[derive(Debug)]
struct CachedFile {
    signature: Signature,
    hash: Hash,
    /// The scan that saw it last.
    seen: u64,
}

#[derive(Debug)]
struct CachedRules {
    signature: Signature,
    rules: Arc<IgnoreRules>,
    seen: u64,
}

/// Belongs to one workspace. An empty one is always right.
#[derive(Debug, Default)]
pub struct StatCache {
    files: HashMap<Vec<u8>, CachedFile>,
    rules: HashMap<Vec<u8>, CachedRules>,
    scan: u64,
}

impl StatCache {
    /// The number of files that it knows.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(crate) fn start_scan(&mut self) {
        self.scan += 1;
    }

    /// Forgets what the scan has not seen.
    pub(crate) fn end_scan(&mut self) {
        let scan = self.scan;
        self.files.retain(|_, file| file.seen == scan);
        self.rules.retain(|_, rules| rules.seen == scan);
    }

    /// The content of a file, if it cannot have changed.
    pub(crate) fn content(&mut self, path: &[u8], signature: &Signature) -> Option<Hash> {
        let file = self.files.get_mut(path)?;
        if file.signature != *signature {
            return None;
        }
        file.seen = self.scan;
        Some(file.hash)
    }

    pub(crate) fn remember(
        &mut self,
        path: &[u8],
        signature: Signature,
        hash: Hash,
        read_at: SystemTime,
    ) {
        if signature.is_settled(read_at) {
            let seen = self.scan;
            let file = CachedFile {
                signature,
                hash,
                seen,
            };
            self.files.insert(path.to_vec(), file);
        }
    }

    pub(crate) fn rules(&mut self, path: &[u8], signature: &Signature) -> Option<Arc<IgnoreRules>> {
        let cached = self.rules.get_mut(path)?;
        if cached.signature != *signature {
            return None;
        }
        cached.seen = self.scan;
        Some(cached.rules.clone())
    }

    pub(crate) fn remember_rules(
        &mut self,
        path: &[u8],
        signature: Signature,
        rules: Arc<IgnoreRules>,
        read_at: SystemTime,
    ) {
        if signature.is_settled(read_at) {
            let seen = self.scan;
            let cached = CachedRules {
                signature,
                rules,
                seen,
            };
            self.rules.insert(path.to_vec(), cached);
        }
    }
}
