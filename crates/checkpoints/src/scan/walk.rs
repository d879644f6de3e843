//! Visits the directories of a workspace, and looks at their files.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use oubliette_trees::{Position, open_dir};
use rustix::fs::{AtFlags, Dir, FileType, Stat, fstat, statat};
use rustix::io::Errno;

use super::content::{Found, put, read_entry, read_rules};
use super::{Scan, ScanError, ScanLimits};
use crate::ignore_rules::RuleChain;
use crate::listing::ListingEncoder;
use crate::object_store::NewObjects;
use crate::stat_cache::{
    Child, Directory, GitPart, Known, KnownDirectory, KnownFile, KnownRules, Signature, StatCache,
};
use crate::{EntryKind, Hash};

/// The limit of the Linux kernel for a path that is used at once.
const MAX_PATH_BYTES: usize = 4096;
/// What is kept of `.git`: `refs` is a directory.
const KEPT_OF_GIT: [&[u8]; 4] = [b"HEAD", b"index", b"packed-refs", b"refs"];
/// How many entries are visited between two looks at the clock.
const ENTRIES_PER_CLOCK_READ: u64 = 256;
/// Of all files with rules: some megabytes, and seconds to compile them.
const MAX_RULES_WEIGHT: usize = 50_000;

pub(super) struct Scanner<'a> {
    objects: NewObjects<'a>,
    limits: &'a ScanLimits,
    deadline: Instant,
    position: Position,
    /// The directories of the last scan that were not visited yet.
    known: Vec<Option<Directory>>,
    /// Whether the store has every object of the last scan.
    has_known_objects: bool,
    known_exclude: Option<KnownRules>,
    known_first_rules: Arc<RuleChain>,
    found: Vec<Directory>,
    /// The directories from the root to the current one.
    frames: Vec<Frame>,
    /// The path of the current entry.
    path: Vec<u8>,
    entries: u64,
    files: u64,
    /// What is in the tree besides files.
    others: u64,
    /// What the patterns of all files with rules count.
    rules_weight: usize,
}

/// A directory whose subdirectories are being visited.
struct Frame {
    directory: Directory,
    /// The next child to visit, if that is a directory.
    next: usize,
    /// Whether the listing differs from that of the last scan, as far as that is known.
    is_changed: bool,
    /// Whether some of its entries could not be read.
    is_incomplete: bool,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(
        root: OwnedFd,
        objects: NewObjects<'a>,
        known: StatCache,
        store_state: u64,
        limits: &'a ScanLimits,
        deadline: Instant,
    ) -> Self {
        Self {
            objects,
            limits,
            deadline,
            position: Position::new(root),
            has_known_objects: known.store_state == Some(store_state),
            known: known.directories.into_iter().map(Some).collect(),
            known_exclude: known.exclude,
            known_first_rules: known.first_rules,
            found: Vec::new(),
            frames: Vec::new(),
            path: Vec::new(),
            entries: 0,
            files: 0,
            others: 0,
            rules_weight: 0,
        }
    }

    pub(super) fn run(mut self) -> Result<(Scan, NewObjects<'a>, StatCache), ScanError> {
        let exclude = self.read_exclude_file();
        self.count_rules(exclude.as_ref())?;
        let same = same_rules(exclude.as_ref(), self.known_exclude.as_ref());
        let first_rules = if same {
            self.known_first_rules.clone()
        } else {
            chain(&Arc::default(), 0, exclude.as_ref())
        };
        let stat = fstat(self.position.dir().map_err(io::Error::from)?).map_err(io::Error::from)?;
        let known = self.known.last_mut().and_then(Option::take);
        self.open(known, &stat, GitPart::Outside, first_rules.clone())?;
        let root = loop {
            if let Some(root) = self.step()? {
                break root;
            }
        };
        let found = StatCache {
            directories: self.found,
            exclude,
            first_rules,
            files: usize::try_from(self.files).unwrap_or(usize::MAX),
            rules_weight: self.rules_weight,
            store_state: None,
        };
        let scan = Scan {
            root,
            files: self.files,
        };
        Ok((scan, self.objects, found))
    }

    /// `.git/info/exclude`.
    fn read_exclude_file(&self) -> Option<KnownRules> {
        let git = open_dir(self.position.dir().ok()?, c".git").ok()?;
        let info = open_dir(&git, c"info").ok()?;
        read_rules(info.as_fd(), c"exclude", self.known_exclude.as_ref())
    }

    /// Enters the next directory, or leaves the current one. Returns the hash of the root at its end.
    fn step(&mut self) -> Result<Option<Hash>, ScanError> {
        let Some(frame) = self.frames.last_mut() else {
            return Err(io::Error::other("the scan has no directory").into());
        };
        let Some(child) = frame.directory.children.get_mut(frame.next) else {
            return self.close();
        };
        frame.next += 1;
        let Known::Directory(below) = child.known else {
            return Ok(None);
        };
        let name = child.name.to_bytes();
        let git = part_below(frame.directory.git, name);
        let is_too_long = self.position.path().len() + 1 + name.len() > MAX_PATH_BYTES;
        let entered = if is_too_long {
            Err(Errno::NAMETOOLONG)
        } else {
            self.position.enter(&child.name)
        };
        let stat = match entered {
            Ok(stat) => stat,
            Err(error) => {
                child.known = match error {
                    Errno::NOENT => Known::Gone,
                    _ => Known::Unknown,
                };
                frame.is_changed = true;
                frame.directory.signature = None;
                return Ok(None);
            }
        };
        let rules = frame.directory.rules.clone();
        let known = below
            .place
            .and_then(|place| self.known.get_mut(place)?.take());
        self.open(known, &stat, git, rules)?;
        Ok(None)
    }

    /// Looks at the files of the directory that was entered.
    fn open(
        &mut self,
        known: Option<Directory>,
        stat: &Stat,
        git: GitPart,
        rules_above: Arc<RuleChain>,
    ) -> Result<(), ScanError> {
        let read_at = SystemTime::now();
        let signature = Signature::new(stat);
        let known = known.filter(|known| known.git == git);
        let has_same_names = known
            .as_ref()
            .is_some_and(|known| known.signature == Some(signature));
        let has_rules = git == GitPart::Outside
            && !(has_same_names && known.as_ref().is_some_and(|known| !known.has_ignore_file));
        let own_rules = if has_rules {
            let old = known.as_ref().and_then(|known| known.own_rules.as_ref());
            let dir = self.position.dir().map_err(io::Error::from)?;
            let own = read_rules(dir, c".gitignore", old);
            self.count_rules(own.as_ref())?;
            own
        } else {
            None
        };
        let same_rules = known.as_ref().is_some_and(|known| {
            Arc::ptr_eq(&known.rules_above, &rules_above)
                && same_rules(own_rules.as_ref(), known.own_rules.as_ref())
        });
        match known {
            Some(mut known) if has_same_names && same_rules => {
                known.own_rules = own_rules;
                self.check_files(known)
            }
            known => {
                let path = self.position.path();
                let own_start = path.len() + usize::from(!path.is_empty());
                let rules = match &known {
                    Some(known) if same_rules => known.rules.clone(),
                    _ => chain(&rules_above, own_start, own_rules.as_ref()),
                };
                let directory = Directory {
                    signature: signature.settled(read_at),
                    git,
                    children: Vec::new(),
                    has_ignore_file: false,
                    own_rules,
                    rules_above,
                    rules,
                    hash: None,
                };
                self.read_names(directory, known)
            }
        }
    }

    /// Looks at the files of a directory that has its old names.
    fn check_files(&mut self, mut directory: Directory) -> Result<(), ScanError> {
        let mut is_changed = false;
        let mut children = std::mem::take(&mut directory.children);
        for child in &mut children {
            let Known::File(file) = &mut child.known else {
                self.count_other()?;
                continue;
            };
            self.count_entry()?;
            self.count_file()?;
            let dir = self.position.dir().map_err(io::Error::from)?;
            let stat = statat(dir, &*child.name, AtFlags::SYMLINK_NOFOLLOW);
            if let Ok(stat) = &stat
                && file.signature == Some(Signature::new(stat))
                && (self.has_known_objects || self.objects.contains(file.hash))
            {
                continue;
            }
            let found = match stat {
                Ok(stat) => read_entry(dir, &child.name, &stat, &mut self.objects)?,
                Err(Errno::NOENT) => Found::Nothing,
                Err(_) => Found::Unreadable,
            };
            let old = child.known;
            child.known = match found {
                Found::File(file) => Known::File(file),
                Found::Nothing => Known::Gone,
                Found::Unreadable => Known::Unknown,
            };
            if !matches!(child.known, Known::File(_)) {
                directory.signature = None;
                self.files -= 1;
            }
            is_changed |= !is_same_entry(&old, &child.known);
        }
        directory.children = children;
        self.frames.push(Frame {
            directory,
            next: 0,
            is_changed,
            is_incomplete: false,
        });
        Ok(())
    }

    /// Reads the names of a directory, and looks at its files.
    fn read_names(
        &mut self,
        mut directory: Directory,
        known: Option<Directory>,
    ) -> Result<(), ScanError> {
        let entries = Dir::read_from(self.position.dir().map_err(io::Error::from)?);
        let mut is_incomplete = entries.is_err();
        for entry in entries.into_iter().flatten() {
            let Ok(entry) = entry else {
                is_incomplete = true;
                break;
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.count_entry()?;
            directory.has_ignore_file |= name.to_bytes() == b".gitignore";
            let old = known.as_ref().and_then(|known| known.child(name));
            let kind = entry.file_type();
            let Some(found) = self.look_at(&directory, name, kind, old)? else {
                continue;
            };
            match found {
                // It disappeared after its name was read, or cannot be read now: the names are read again.
                Known::Gone => {
                    directory.signature = None;
                    continue;
                }
                Known::Unknown => directory.signature = None,
                _ => {}
            }
            match found {
                Known::File(_) => self.count_file()?,
                _ => self.count_other()?,
            }
            directory.children.push(Child {
                name: name.into(),
                known: found,
            });
        }
        let children = &mut directory.children;
        children.sort_unstable_by(|a, b| a.name.to_bytes().cmp(b.name.to_bytes()));
        children.dedup_by(|a, b| a.name == b.name);
        self.frames.push(Frame {
            directory,
            next: 0,
            is_changed: true,
            is_incomplete,
        });
        Ok(())
    }

    /// What a name of a directory stands for; none if it is not kept.
    fn look_at(
        &mut self,
        directory: &Directory,
        name: &CStr,
        kind: FileType,
        old: Option<&Known>,
    ) -> Result<Option<Known>, ScanError> {
        if directory.git == GitPart::Top && !KEPT_OF_GIT.contains(&name.to_bytes()) {
            return Ok(None);
        }
        self.path.clear();
        let above = self.position.path();
        if !above.is_empty() {
            self.path.extend_from_slice(above);
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        let dir = self.position.dir().map_err(io::Error::from)?;
        let mut stat = None;
        let mut is_directory = kind == FileType::Directory;
        if kind == FileType::Unknown {
            match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => {
                    is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
                    stat = Some(found);
                }
                Err(Errno::NOENT) => return Ok(Some(Known::Gone)),
                Err(_) => return Ok(Some(Known::Unknown)),
            }
        }
        let is_kept = match (directory.git, is_directory) {
            (GitPart::Outside, true) if name.to_bytes() == b".git" => true,
            (GitPart::Outside, _) if self.path.len() > MAX_PATH_BYTES => {
                return Ok(Some(Known::Unknown));
            }
            (GitPart::Outside, _) => !directory.rules.ignores(&self.path, is_directory),
            (GitPart::Top, is_directory) => is_directory == (name.to_bytes() == b"refs"),
            (GitPart::Refs, _) => true,
        };
        if !is_kept {
            return Ok(None);
        }
        if is_directory {
            let old = match old {
                Some(Known::Directory(old)) => old.place,
                _ => None,
            };
            return Ok(Some(Known::Directory(KnownDirectory {
                place: old,
                hash: None,
                is_unknown: false,
            })));
        }
        let stat = match stat.map_or_else(|| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW), Ok) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Some(Known::Gone)),
            Err(_) => return Ok(Some(Known::Unknown)),
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            // It took the place of a file just now.
            return Ok(Some(Known::Unknown));
        }
        if let Some(Known::File(old)) = old
            && old.signature == Some(Signature::new(&stat))
            && (self.has_known_objects || self.objects.contains(old.hash))
        {
            return Ok(Some(Known::File(*old)));
        }
        Ok(match read_entry(dir, name, &stat, &mut self.objects)? {
            Found::File(file) => Some(Known::File(file)),
            Found::Nothing if is_plain(&stat) => Some(Known::Gone),
            Found::Nothing => None,
            Found::Unreadable => Some(Known::Unknown),
        })
    }

    /// Stores the listing of the current directory and goes back to the one above.
    fn close(&mut self) -> Result<Option<Hash>, ScanError> {
        let Some(mut frame) = self.frames.pop() else {
            return Err(io::Error::other("the scan has no directory").into());
        };
        let directory = &mut frame.directory;
        directory
            .children
            .retain(|child| child.known != Known::Gone);
        if frame.is_incomplete {
            directory.signature = None;
        }
        let same = directory.hash.filter(|hash| {
            !frame.is_changed && (self.has_known_objects || self.objects.contains(*hash))
        });
        let hash = match same {
            Some(hash) => hash,
            None => put(&mut self.objects, &encode(&directory.children))?,
        };
        directory.hash = Some(hash);
        let place = self.found.len();
        self.found.push(frame.directory);
        let Some(above) = self.frames.last_mut() else {
            if frame.is_incomplete {
                let error = io::Error::other("the directory could not be read completely");
                return Err(error.into());
            }
            return Ok(Some(hash));
        };
        // It is the child that was visited last.
        if let Some(child) = above.directory.children.get_mut(above.next - 1) {
            let known = Known::Directory(KnownDirectory {
                place: Some(place),
                hash: Some(hash),
                is_unknown: frame.is_incomplete,
            });
            above.is_changed |= !is_same_entry(&child.known, &known);
            child.known = known;
        }
        if self.position.leave().is_err() {
            // The directory above was moved, and what it has below cannot be reached.
            above.is_incomplete = true;
            above.is_changed = true;
            let rest = above.directory.children.iter_mut().skip(above.next);
            for child in rest.filter(|child| matches!(child.known, Known::Directory(_))) {
                child.known = Known::Gone;
            }
        }
        Ok(None)
    }

    fn count_entry(&mut self) -> Result<(), ScanError> {
        self.entries += 1;
        if self.entries.is_multiple_of(ENTRIES_PER_CLOCK_READ) && Instant::now() > self.deadline {
            return Err(ScanError::TooSlow(self.limits.max_time));
        }
        Ok(())
    }

    fn count_rules(&mut self, rules: Option<&KnownRules>) -> Result<(), ScanError> {
        let Some(rules) = rules else { return Ok(()) };
        self.rules_weight += rules.rules.weight;
        if self.rules_weight > MAX_RULES_WEIGHT {
            return Err(ScanError::TooManyRules);
        }
        if Instant::now() > self.deadline {
            return Err(ScanError::TooSlow(self.limits.max_time));
        }
        Ok(())
    }

    fn count_file(&mut self) -> Result<(), ScanError> {
        self.files += 1;
        self.check_count(self.files)
    }

    fn count_other(&mut self) -> Result<(), ScanError> {
        self.others += 1;
        self.check_count(self.others)
    }

    fn check_count(&self, count: u64) -> Result<(), ScanError> {
        if count > self.limits.max_files {
            return Err(ScanError::TooManyFiles(self.limits.max_files));
        }
        Ok(())
    }
}

fn part_below(above: GitPart, name: &[u8]) -> GitPart {
    match (above, name) {
        (GitPart::Outside, b".git") => GitPart::Top,
        (GitPart::Outside, _) => GitPart::Outside,
        (GitPart::Top | GitPart::Refs, _) => GitPart::Refs,
    }
}

/// Whether a file is one that would be kept.
fn is_plain(stat: &Stat) -> bool {
    matches!(
        FileType::from_raw_mode(stat.st_mode),
        FileType::RegularFile | FileType::Symlink
    )
}

fn same_rules(one: Option<&KnownRules>, other: Option<&KnownRules>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(&one.rules, &other.rules),
        _ => false,
    }
}

fn chain(above: &Arc<RuleChain>, start: usize, own: Option<&KnownRules>) -> Arc<RuleChain> {
    let mut rules = above.clone();
    if let Some(own) = own.filter(|own| !own.rules.is_empty()) {
        Arc::make_mut(&mut rules).push(start, own.rules.clone());
    }
    rules
}

/// Whether two children are the same in a listing.
fn is_same_entry(one: &Known, other: &Known) -> bool {
    entry(one) == entry(other)
}

/// The kind, permissions, size and hash of a child in a listing.
fn entry(known: &Known) -> Option<(EntryKind, u16, u64, Hash)> {
    Some(match known {
        Known::File(KnownFile {
            kind,
            mode,
            size,
            hash,
            ..
        }) => (*kind, *mode, *size, *hash),
        Known::Directory(directory) => {
            let kind = if directory.is_unknown {
                EntryKind::Unknown
            } else {
                EntryKind::Directory
            };
            (kind, 0, 0, directory.hash?)
        }
        Known::Unknown => (EntryKind::Unknown, 0, 0, Hash::of(b"")),
        Known::Gone => return None,
    })
}

fn encode(children: &[Child]) -> Vec<u8> {
    let mut encoder = ListingEncoder::new(children.len());
    for child in children {
        if let Some((kind, mode, size, hash)) = entry(&child.known) {
            encoder.add(child.name.to_bytes(), kind, mode, size, hash);
        }
    }
    encoder.into_bytes()
}
