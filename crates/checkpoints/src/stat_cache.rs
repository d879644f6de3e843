//! What the last scan of a workspace found, so that the next one reads only what has changed.
//!
//! It is a tree of the directories. A directory that has its old times has its old names, so it is not
//! listed again; each of its files is still looked at, because the content of a file changes without its
//! directory.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;

use crate::ignore_rules::{IgnoreRules, RuleChain};
use crate::{EntryKind, Hash};

/// Two changes within this time may leave the same times in the metadata: the clock of file systems
/// advances in steps of a few milliseconds.
const CLOCK_STEP: Duration = Duration::from_millis(50);
/// The same for file systems that keep whole seconds, or even ones.
const COARSE_CLOCK_STEP: Duration = Duration::from_secs(3);

/// What tells whether a file or directory has changed. A process in a container can set the time of
/// modification, but not the time of change.
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

    /// Itself, if every change after `read_at` leaves another one. The content must be read after that.
    pub(crate) fn settled(self, read_at: SystemTime) -> Option<Self> {
        let (seconds, nanoseconds) = self.changed;
        let step = if nanoseconds == 0 {
            COARSE_CLOCK_STEP
        } else {
            CLOCK_STEP
        };
        let since_epoch = read_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let latest = since_epoch.saturating_sub(step);
        let seconds = u64::try_from(seconds).unwrap_or(0);
        let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0);
        (Duration::new(seconds, nanoseconds) < latest).then_some(self)
    }

    /// Stands for the content of a file that is not read.
    pub(crate) fn hash(&self) -> Hash {
        Hash::of(format!("{} {:?}", self.size, self.modified).as_bytes())
    }
}

/// Where a directory is with regard to a directory `.git`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GitPart {
    Outside,
    /// `.git` itself.
    Top,
    /// `refs` and below.
    Refs,
}

/// A file or link that a tree has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownFile {
    /// Absent if a change might leave the same one.
    pub(crate) signature: Option<Signature>,
    pub(crate) kind: EntryKind,
    pub(crate) mode: u16,
    pub(crate) size: u64,
    pub(crate) hash: Hash,
}

/// A directory below another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownDirectory {
    /// Its place in [`StatCache::directories`].
    pub(crate) place: Option<usize>,
    /// Its listing.
    pub(crate) hash: Option<Hash>,
    /// Whether it could not be read completely.
    pub(crate) is_unknown: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    File(KnownFile),
    Directory(KnownDirectory),
    /// Something that could not be read.
    Unknown,
    /// Something that has disappeared; it does not outlast a scan.
    Gone,
}

#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) name: Box<CStr>,
    pub(crate) known: Known,
}

/// The rules of a file.
#[derive(Debug, Clone)]
pub(crate) struct KnownRules {
    pub(crate) signature: Option<Signature>,
    pub(crate) text: Hash,
    pub(crate) rules: Arc<IgnoreRules>,
}

#[derive(Debug)]
pub(crate) struct Directory {
    /// Absent if its names have to be read again.
    pub(crate) signature: Option<Signature>,
    pub(crate) git: GitPart,
    /// What is kept of it, sorted by name.
    pub(crate) children: Vec<Child>,
    pub(crate) has_ignore_file: bool,
    pub(crate) own_rules: Option<KnownRules>,
    /// The rules of the directory above it, and its own with them. The children were chosen by them.
    pub(crate) rules_above: Arc<RuleChain>,
    pub(crate) rules: Arc<RuleChain>,
    /// Its listing, as an object.
    pub(crate) hash: Option<Hash>,
}

impl Directory {
    pub(crate) fn child(&self, name: &CStr) -> Option<&Known> {
        let found = self.children.binary_search_by(|child| {
            let known: &CStr = &child.name;
            known.to_bytes().cmp(name.to_bytes())
        });
        found.ok().map(|place| &self.children[place].known)
    }
}

/// A pattern takes up to 1 KB, a file about 100 bytes.
const FILES_PER_PATTERN: usize = 10;

/// Belongs to one workspace. An empty one is always right.
#[derive(Debug, Default)]
pub struct StatCache {
    /// A directory comes after those below it; the root is the last one.
    pub(crate) directories: Vec<Directory>,
    /// `.git/info/exclude`, and the chain that begins with it.
    pub(crate) exclude: Option<KnownRules>,
    pub(crate) first_rules: Arc<RuleChain>,
    pub(crate) files: usize,
    pub(crate) rules_weight: usize,
    /// The state of the object store that has every object of this.
    pub(crate) store_state: Option<u64>,
}

impl StatCache {
    /// The number of files that it knows.
    pub fn len(&self) -> usize {
        self.files
    }

    /// The memory that it takes, in files: a pattern takes as much as several.
    pub fn weight(&self) -> usize {
        self.files + self.rules_weight * FILES_PER_PATTERN
    }

    pub fn is_empty(&self) -> bool {
        self.files == 0
    }
}
