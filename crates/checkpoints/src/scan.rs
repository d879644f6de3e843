//! Makes the tree of a workspace.

use std::ffi::CStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use oubliette_trees::{Entry, Next, Visitor, open_dir, open_file, walk};
use rustix::fs::{FileType, Stat, fstat, readlinkat};
use rustix::io::Errno;

use crate::ignore_rules::{IgnoreRules, RuleChain};
use crate::object_store::NewObjects;
use crate::stat_cache::Signature;
use crate::{EntryKind, Hash, ObjectStore, StatCache, Tree, TreeEntry};

/// Larger files are noted, not kept.
pub const MAX_KEPT_FILE_BYTES: u64 = 10 << 20;
/// The limit of the Linux kernel for a path that is used at once.
const MAX_PATH_BYTES: usize = 4096;
const MAX_IGNORE_FILE_BYTES: u64 = 256 << 10;
/// How many entries are visited between two looks at the clock.
const ENTRIES_PER_CLOCK_READ: u64 = 256;

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
    #[error("it has more than {0} files that git would not ignore")]
    TooManyFiles(u64),
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
    cache.start_scan();
    let mut scanner = Scanner {
        objects: store.new_objects(limits.max_new_bytes),
        cache,
        limits,
        deadline: Instant::now() + limits.max_time,
        frames: Vec::new(),
        path: Vec::new(),
        entries: 0,
        files: 0,
        failure: None,
    };
    scanner.enter_root(root.as_fd());
    walk(root, &mut scanner)?;
    let root = scanner.finish()?;
    let Scanner {
        objects,
        cache,
        files,
        ..
    } = scanner;
    objects.publish()?;
    cache.end_scan();
    Ok(Scan { root, files })
}

/// Where a directory is with regard to a directory `.git`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GitPart {
    Outside,
    /// `.git` itself.
    Top,
    /// `refs` and below.
    Refs,
}

/// A directory whose entries are being visited.
#[derive(Debug)]
struct Frame {
    path: Vec<u8>,
    name: Vec<u8>,
    entries: Vec<TreeEntry>,
    rules: Arc<RuleChain>,
    git: GitPart,
    /// Whether some of its entries could not be read.
    is_incomplete: bool,
}

struct Scanner<'a> {
    objects: NewObjects<'a>,
    cache: &'a mut StatCache,
    limits: &'a ScanLimits,
    deadline: Instant,
    /// The directories from the root to the current one.
    frames: Vec<Frame>,
    /// The path of the current entry.
    path: Vec<u8>,
    entries: u64,
    files: u64,
    failure: Option<ScanError>,
}

impl Scanner<'_> {
    fn enter_root(&mut self, root: BorrowedFd<'_>) {
        let mut rules = RuleChain::default();
        if let Some(exclude) = self.read_exclude_file(root) {
            rules.push(0, exclude);
        }
        if let Some(own) = self.read_rules(root, c".gitignore", b".gitignore") {
            rules.push(0, own);
        }
        self.frames.push(Frame {
            path: Vec::new(),
            name: Vec::new(),
            entries: Vec::new(),
            rules: Arc::new(rules),
            git: GitPart::Outside,
            is_incomplete: false,
        });
    }

    /// `.git/info/exclude`.
    fn read_exclude_file(&mut self, root: BorrowedFd<'_>) -> Option<Arc<IgnoreRules>> {
        let git = open_dir(root, c".git").ok()?;
        let info = open_dir(&git, c"info").ok()?;
        self.read_rules(info.as_fd(), c"exclude", b".git/info/exclude")
    }

    fn read_rules(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
    ) -> Option<Arc<IgnoreRules>> {
        let read_at = SystemTime::now();
        // Not through a link, as git.
        let (file, stat) = open_file(directory, name).ok()??;
        let signature = Signature::new(&stat);
        if let Some(rules) = self.cache.rules(path, &signature) {
            return Some(rules);
        }
        let mut text = Vec::new();
        file.take(MAX_IGNORE_FILE_BYTES)
            .read_to_end(&mut text)
            .ok()?;
        let rules = Arc::new(IgnoreRules::parse(&text));
        self.cache
            .remember_rules(path, signature, rules.clone(), read_at);
        Some(rules)
    }

    fn fail(&mut self, failure: ScanError) -> Next {
        self.failure.get_or_insert(failure);
        Next::Stop
    }

    /// Closes the directories that the walk has left.
    fn close_below(&mut self, parent: &[u8]) -> Result<(), ScanError> {
        while self
            .frames
            .last()
            .is_some_and(|frame| frame.path.len() > parent.len())
        {
            self.close_last()?;
        }
        Ok(())
    }

    /// Stores the listing of the last directory, and adds it to the one above. Returns its hash.
    fn close_last(&mut self) -> Result<Hash, ScanError> {
        let Some(mut frame) = self.frames.pop() else {
            return Err(io::Error::other("the scan has no directory").into());
        };
        frame.entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let tree = Tree {
            entries: frame.entries,
        };
        let hash = self.put(&tree.encode())?;
        let kind = if frame.is_incomplete {
            EntryKind::Unknown
        } else {
            EntryKind::Directory
        };
        if let Some(above) = self.frames.last_mut() {
            above.entries.push(TreeEntry {
                name: frame.name,
                kind,
                mode: 0,
                size: 0,
                hash,
            });
        }
        Ok(hash)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<Hash, ScanError> {
        let stored = self.objects.put(bytes)?;
        stored.ok_or(ScanError::TooLarge(self.limits.max_new_bytes))
    }

    fn finish(&mut self) -> Result<Hash, ScanError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        loop {
            let is_incomplete = self.frames.last().is_some_and(|frame| frame.is_incomplete);
            let hash = self.close_last()?;
            if self.frames.is_empty() {
                if is_incomplete {
                    let error = io::Error::other("the directory could not be read completely");
                    return Err(error.into());
                }
                return Ok(hash);
            }
        }
    }

    /// Counts an entry and takes its path; what the walk does if the entry is not looked at.
    fn start_entry(&mut self, entry: &Entry<'_>) -> Option<Next> {
        self.entries += 1;
        if self.entries.is_multiple_of(ENTRIES_PER_CLOCK_READ) && Instant::now() > self.deadline {
            return Some(self.fail(ScanError::TooSlow(self.limits.max_time)));
        }
        if entry.path_len() > MAX_PATH_BYTES {
            self.add_unknown(entry.name.to_bytes());
            return Some(Next::Skip);
        }
        self.path.clear();
        if !entry.parent.is_empty() {
            self.path.extend_from_slice(entry.parent);
            self.path.push(b'/');
        }
        self.path.extend_from_slice(entry.name.to_bytes());
        None
    }

    fn add_unknown(&mut self, name: &[u8]) {
        if let Some(frame) = self.frames.last_mut() {
            frame.entries.push(TreeEntry {
                name: name.to_vec(),
                kind: EntryKind::Unknown,
                mode: 0,
                size: 0,
                hash: Hash::of(b""),
            });
        }
    }

    fn add_file(&mut self, entry: &Entry<'_>) -> Result<(), ScanError> {
        let found = match FileType::from_raw_mode(entry.stat.st_mode) {
            FileType::RegularFile => self.read_file(entry)?,
            FileType::Symlink => match readlinkat(entry.dir, entry.name, Vec::new()) {
                Ok(target) => Found::Entry(
                    EntryKind::Link,
                    target.as_bytes().len() as u64,
                    self.put(target.as_bytes())?,
                ),
                // It is something else by now, or gone.
                Err(Errno::NOENT | Errno::INVAL) => Found::Nothing,
                Err(_) => Found::Unreadable,
            },
            // A pipe, a socket or a device.
            _ => Found::Nothing,
        };
        let name = entry.name.to_bytes();
        match found {
            Found::Nothing => {}
            Found::Unreadable => self.add_unknown(name),
            Found::Entry(kind, size, hash) => {
                self.files += 1;
                if self.files > self.limits.max_files {
                    return Err(ScanError::TooManyFiles(self.limits.max_files));
                }
                if let Some(frame) = self.frames.last_mut() {
                    frame.entries.push(TreeEntry {
                        name: name.to_vec(),
                        kind,
                        mode: permissions(entry.stat, kind),
                        size,
                        hash,
                    });
                }
            }
        }
        Ok(())
    }

    fn read_file(&mut self, entry: &Entry<'_>) -> Result<Found, ScanError> {
        let signature = Signature::new(entry.stat);
        let size = u64::try_from(entry.stat.st_size).unwrap_or(0);
        if size > MAX_KEPT_FILE_BYTES {
            let hash = signature.hash();
            return Ok(Found::Entry(EntryKind::LargeFile, size, hash));
        }
        if let Some(hash) = self.cache.content(&self.path, &signature)
            && self.objects.contains(hash)
        {
            return Ok(Found::Entry(EntryKind::File, size, hash));
        }
        let read_at = SystemTime::now();
        let (file, opened) = match open_file(entry.dir, entry.name) {
            Ok(Some(opened)) => opened,
            Ok(None) | Err(Errno::NOENT) => return Ok(Found::Nothing),
            Err(_) => return Ok(Found::Unreadable),
        };
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        let read = (&file)
            .take(MAX_KEPT_FILE_BYTES + 1)
            .read_to_end(&mut bytes);
        if read.is_err() {
            return Ok(Found::Unreadable);
        }
        let signature = Signature::new(&opened);
        let size = bytes.len() as u64;
        if size > MAX_KEPT_FILE_BYTES {
            let hash = signature.hash();
            return Ok(Found::Entry(EntryKind::LargeFile, size, hash));
        }
        let hash = self.put(&bytes)?;
        let is_unchanged = fstat(&file).is_ok_and(|after| Signature::new(&after) == signature);
        if is_unchanged {
            self.cache.remember(&self.path, signature, hash, read_at);
        }
        Ok(Found::Entry(EntryKind::File, size, hash))
    }
}

enum Found {
    Entry(EntryKind, u64, Hash),
    /// There is nothing to keep.
    Nothing,
    Unreadable,
}

fn permissions(stat: &Stat, kind: EntryKind) -> u16 {
    if kind == EntryKind::Link {
        return 0;
    }
    u16::try_from(stat.st_mode & 0o777).unwrap_or(0)
}

impl Visitor for Scanner<'_> {
    fn directory(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        if let Err(error) = self.close_below(entry.parent) {
            return Ok(self.fail(error));
        }
        if let Some(next) = self.start_entry(entry) {
            return Ok(next);
        }
        let Some(above) = self.frames.last() else {
            return Ok(Next::Stop);
        };
        let name = entry.name.to_bytes();
        let git = match (above.git, name) {
            (GitPart::Outside, b".git") => GitPart::Top,
            (GitPart::Outside, _) if above.rules.ignores(&self.path, true) => {
                return Ok(Next::Skip);
            }
            (GitPart::Outside, _) => GitPart::Outside,
            (GitPart::Top, b"refs") | (GitPart::Refs, _) => GitPart::Refs,
            (GitPart::Top, _) => return Ok(Next::Skip),
        };
        let mut rules = above.rules.clone();
        let path = self.path.clone();
        if git == GitPart::Outside {
            let file = [&path[..], b"/.gitignore"].concat();
            if let Some(own) = self.read_rules(entry.dir, c".gitignore", &file) {
                Arc::make_mut(&mut rules).push(path.len() + 1, own);
            }
        }
        self.frames.push(Frame {
            name: name.to_vec(),
            path,
            entries: Vec::new(),
            rules,
            git,
            is_incomplete: false,
        });
        Ok(Next::Continue)
    }

    fn file(&mut self, entry: &Entry<'_>) -> io::Result<Next> {
        if let Some(next) = self.start_entry(entry) {
            return Ok(match next {
                Next::Skip => Next::Continue,
                other => other,
            });
        }
        let Some(directory) = self.frames.last() else {
            return Ok(Next::Stop);
        };
        let is_kept = match directory.git {
            GitPart::Outside => !directory.rules.ignores(&self.path, false),
            GitPart::Top => matches!(entry.name.to_bytes(), b"HEAD" | b"index" | b"packed-refs"),
            GitPart::Refs => true,
        };
        if !is_kept {
            return Ok(Next::Continue);
        }
        Ok(match self.add_file(entry) {
            Ok(()) => Next::Continue,
            Err(error) => self.fail(error),
        })
    }

    fn skipped(&mut self, path: &[u8], _: &io::Error) {
        if let Some(frame) = self.frames.iter_mut().find(|frame| frame.path == path) {
            frame.is_incomplete = true;
            return;
        }
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        let is_open = |frame: &&mut Frame| frame.path == parent;
        if let Some(frame) = self.frames.iter_mut().find(is_open) {
            // In `.git`, only what would be kept matters.
            if frame.git == GitPart::Top && name != b"refs" {
                return;
            }
            frame.entries.push(TreeEntry {
                name: name.to_vec(),
                kind: EntryKind::Unknown,
                mode: 0,
                size: 0,
                hash: Hash::of(b""),
            });
        }
    }
}
