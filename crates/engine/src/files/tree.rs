//! Reads the files of a workspace within limits.
//!
//! An agent may have made any of them, and may change them meanwhile. Each name is opened relative
//! to the directory that contains it and never through a link: this module resolves links itself,
//! and only to targets in the same workspace, so that no path leads out of it.

mod browse;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use oubliette_model::path_to_text;
use oubliette_model::{FileEntry, FileKind, FileTree, Found, ReadError};
use oubliette_trees::{open_dir, open_file};
use rustix::fs::{AtFlags, Dir, FileType, Stat, fstat, readlinkat, statat};
use rustix::io::Errno;

pub(crate) use browse::{ListRequest, ListedEntry};

/// The limit of the Linux kernel.
const MAX_LINKS: usize = 40;
const MAX_DEPTH: usize = 100;
const TOO_COMPLEX: ReadError =
    ReadError::LimitReached("the files are too many or too complex to be read in time");

/// How much one call may read of a workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadLimits {
    /// Directory entries, which are held in memory.
    pub(crate) max_entries: usize,
    /// Resolved paths, looked up names and listed directories. They take time even if there is
    /// nothing to read.
    pub(crate) max_lookups: usize,
    pub(crate) max_time: Duration,
    pub(crate) max_total_bytes: u64,
    pub(crate) max_file_bytes: u64,
}

/// An open workspace, for one call.
#[derive(Debug)]
pub(crate) struct WorkspaceTree {
    root: Rc<OwnedFd>,
    /// The path of the workspace in the container: absolute links below it lead into the workspace.
    container_root: String,
    max_file_bytes: u64,
    entries_left: Cell<usize>,
    lookups_left: Cell<usize>,
    deadline: Instant,
    bytes_left: Cell<u64>,
    /// The directories of the last resolved path, to be reused by the next one.
    open_path: RefCell<Vec<OpenDirectory>>,
}

#[derive(Debug, Clone)]
struct OpenDirectory {
    name: Vec<u8>,
    directory: Rc<OwnedFd>,
}

impl FileTree for WorkspaceTree {
    fn find(&self, path: &str) -> Result<Found, ReadError> {
        let resolved = self.resolve(path.as_bytes())?;
        Ok(Found {
            kind: file_kind(&resolved.stat),
            modified_ms: modified_ms(&resolved.stat),
            path: resolved.path,
        })
    }

    /// Leaves out names that are not UTF-8, which no result could contain.
    fn list(&self, path: &str) -> Result<Vec<FileEntry>, ReadError> {
        let resolved = self.resolve(path.as_bytes())?;
        let Some(directory) = resolved.directory else {
            return Err(ReadError::NotADirectory);
        };
        self.count_lookup()?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory).map_err(io_error)? {
            self.check_limits()?;
            let entry = entry.map_err(io_error)?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if matches!(name, "." | "..") {
                continue;
            }
            let left = self.entries_left.get().checked_sub(1);
            self.entries_left
                .set(left.ok_or(ReadError::LimitReached("too many files"))?);
            if entry.file_type() == FileType::Directory {
                entries.push(FileEntry {
                    name: name.to_owned(),
                    kind: FileKind::Directory,
                    modified_ms: 0,
                });
                continue;
            }
            match statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => entries.push(FileEntry {
                    name: name.to_owned(),
                    kind: file_kind(&stat),
                    modified_ms: modified_ms(&stat),
                }),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(io_error(error)),
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn read(&self, path: &str) -> Result<String, ReadError> {
        let (file, stat) = self.open_file(path.as_bytes())?;
        if u64::try_from(stat.st_size).is_ok_and(|size| size > self.max_file_bytes) {
            return Err(ReadError::FileTooLarge(self.max_file_bytes));
        }
        let mut bytes = Vec::new();
        file.take(self.max_file_bytes + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| io_error(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if size > self.max_file_bytes {
            return Err(ReadError::FileTooLarge(self.max_file_bytes));
        }
        let left = self.bytes_left.get().checked_sub(size);
        self.bytes_left
            .set(left.ok_or(ReadError::LimitReached("the files are too large in total"))?);
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    fn check_limits(&self) -> Result<(), ReadError> {
        if self.lookups_left.get() == 0 || Instant::now() >= self.deadline {
            return Err(TOO_COMPLEX);
        }
        Ok(())
    }

    fn container_path(&self, path: &str) -> String {
        format!("{}/{path}", self.container_root)
    }
}

impl WorkspaceTree {
    pub(super) fn new(root: OwnedFd, container_root: String, limits: ReadLimits) -> Self {
        Self {
            root: Rc::new(root),
            container_root,
            max_file_bytes: limits.max_file_bytes,
            entries_left: Cell::new(limits.max_entries),
            lookups_left: Cell::new(limits.max_lookups),
            deadline: Instant::now() + limits.max_time,
            bytes_left: Cell::new(limits.max_total_bytes),
            open_path: RefCell::default(),
        }
    }

    fn count_lookup(&self) -> Result<(), ReadError> {
        self.check_limits()?;
        self.lookups_left
            .set(self.lookups_left.get().saturating_sub(1));
        Ok(())
    }

    /// Opens a regular file.
    fn open_file(&self, path: &[u8]) -> Result<(File, Stat), ReadError> {
        let resolved = self.resolve(path)?;
        if file_kind(&resolved.stat) != FileKind::File {
            return Err(ReadError::NotAFile);
        }
        let name = CString::new(resolved.name).map_err(|_| ReadError::NotAFile)?;
        // An agent may have replaced the file.
        let opened = open_file(&resolved.parent, &name).map_err(io_error)?;
        opened.ok_or(ReadError::NotAFile)
    }

    /// Resolves a path, following links.
    fn resolve(&self, path: &[u8]) -> Result<ResolvedPath, ReadError> {
        self.count_lookup()?;
        let mut open_path = self.open_path.borrow_mut();
        let mut pending: VecDeque<(Vec<u8>, bool)> = split(path, false).collect();
        let shared = open_path
            .iter()
            .zip(&pending)
            .take_while(|(open, (name, _))| open.name == *name)
            .count();
        open_path.truncate(shared);
        pending.drain(..shared);
        let mut links = 0;
        while let Some((name, is_from_link)) = pending.pop_front() {
            if name == b".." {
                open_path.pop().ok_or(ReadError::OutsideWorkspace)?;
                continue;
            }
            self.count_lookup()?;
            let parent = open_path.last().map_or(&self.root, |open| &open.directory);
            let stat = match statat(parent, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) if is_from_link => return Err(ReadError::DanglingLink),
                Err(Errno::NOENT) => {
                    let names: Vec<_> = open_path
                        .iter()
                        .map(|open| open.name.clone())
                        .chain([name])
                        .chain(pending.into_iter().map(|(name, _)| name))
                        .collect();
                    let path = names.join(&b'/');
                    return Err(ReadError::NotFound(path_to_text(&path)));
                }
                Err(error) => return Err(io_error(error)),
            };
            match file_kind(&stat) {
                FileKind::Link => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(ReadError::LinkLoop);
                    }
                    let mut target = readlinkat(parent, name.as_slice(), Vec::new())
                        .map_err(io_error)?
                        .into_bytes();
                    if target.starts_with(b"/") {
                        open_path.clear();
                        target = self
                            .path_in_workspace(&target)
                            .ok_or(ReadError::OutsideWorkspace)?;
                    }
                    for part in split(&target, true).collect::<Vec<_>>().into_iter().rev() {
                        pending.push_front(part);
                    }
                }
                FileKind::Directory => {
                    if open_path.len() >= MAX_DEPTH {
                        return Err(ReadError::LimitReached(
                            "the directories are nested too deeply",
                        ));
                    }
                    let directory = open_dir(parent, name.as_slice())
                        .map(Rc::new)
                        .map_err(io_error)?;
                    open_path.push(OpenDirectory { name, directory });
                }
                _ if pending.is_empty() => {
                    return Ok(ResolvedPath {
                        path: join_names(&open_path, Some(&name)),
                        parent: parent.clone(),
                        directory: None,
                        name,
                        stat,
                    });
                }
                _ => return Err(ReadError::NotADirectory),
            }
        }
        let directory = open_path.last().map_or(&self.root, |open| &open.directory);
        Ok(ResolvedPath {
            path: join_names(&open_path, None),
            parent: directory.clone(),
            directory: Some(directory.clone()),
            name: b".".to_vec(),
            stat: fstat(directory).map_err(io_error)?,
        })
    }

    /// Converts an absolute path of the container to one relative to the workspace.
    fn path_in_workspace(&self, absolute: &[u8]) -> Option<Vec<u8>> {
        let rest = absolute.strip_prefix(self.container_root.as_bytes())?;
        (rest.is_empty() || rest.starts_with(b"/")).then(|| rest.to_owned())
    }
}

#[derive(Debug)]
struct ResolvedPath {
    path: String,
    parent: Rc<OwnedFd>,
    name: Vec<u8>,
    directory: Option<Rc<OwnedFd>>,
    stat: Stat,
}

fn io_error(error: Errno) -> ReadError {
    ReadError::Io(error.to_string())
}

fn split(path: &[u8], is_from_link: bool) -> impl Iterator<Item = (Vec<u8>, bool)> {
    let parts = path
        .split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."));
    parts.map(move |part| (part.to_owned(), is_from_link))
}

fn join_names(directories: &[OpenDirectory], last: Option<&[u8]>) -> String {
    let names = directories.iter().map(|open| open.name.as_slice());
    path_to_text(&names.chain(last).collect::<Vec<_>>().join(&b'/'))
}

fn file_kind(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => FileKind::Directory,
        FileType::RegularFile => FileKind::File,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    }
}

/// Rounds as JavaScript does, whose times are floating-point numbers, so that a half is reached a
/// little early.
fn modified_ms(stat: &Stat) -> i64 {
    let milliseconds = stat.st_mtime as f64 * 1000.0 + stat.st_mtime_nsec as f64 / 1e6;
    (milliseconds + 0.5).floor() as i64
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use rustix::fs::CWD;

    use super::*;

    const LIMITS: ReadLimits = ReadLimits {
        max_entries: 20,
        max_lookups: 1000,
        max_time: Duration::from_secs(600),
        max_total_bytes: 100,
        max_file_bytes: 40,
    };

    fn open(directory: &Path) -> WorkspaceTree {
        with_limits(directory, LIMITS)
    }

    fn with_limits(directory: &Path, limits: ReadLimits) -> WorkspaceTree {
        let root = open_dir(CWD, directory).unwrap();
        WorkspaceTree::new(root, "/workspace".to_owned(), limits)
    }

    #[test]
    fn links_are_followed_inside_the_workspace_and_never_out_of_it() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| inside.path().join(name);
        fs::write(outside.path().join("secret"), "secret").unwrap();
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), "text").unwrap();
        symlink("a/b", at("short")).unwrap();
        symlink("/workspace/a/b/file", at("absolute")).unwrap();
        symlink("/workspaces", at("neighbours")).unwrap();
        symlink("../b/file", at("a/b/round")).unwrap();
        symlink(outside.path(), at("out")).unwrap();
        symlink("../../secret", at("a/up")).unwrap();
        symlink("nothing", at("dangling")).unwrap();
        symlink("circle", at("circle")).unwrap();
        let tree = open(inside.path());
        for path in [
            "a/b/file",
            "short/file",
            "absolute",
            "a/b/round",
            "short/../b/file",
        ] {
            assert_eq!(tree.read(path).as_deref(), Ok("text"), "{path}");
            assert_eq!(tree.find(path).unwrap().path, "a/b/file", "{path}");
        }
        for (path, error) in [
            ("out/secret", ReadError::OutsideWorkspace),
            ("a/up", ReadError::OutsideWorkspace),
            ("neighbours", ReadError::OutsideWorkspace),
            ("../secret", ReadError::OutsideWorkspace),
            ("dangling", ReadError::DanglingLink),
            ("circle", ReadError::LinkLoop),
            ("a/b/file/x", ReadError::NotADirectory),
            ("short/x/y", ReadError::NotFound("a/b/x/y".to_owned())),
        ] {
            assert_eq!(tree.find(path), Err(error), "{path}");
        }
        assert_eq!(tree.read("a"), Err(ReadError::NotAFile));
        assert_eq!(tree.list("a/b/file"), Err(ReadError::NotADirectory));
        let names = tree.list("short").unwrap();
        let names: Vec<_> = names.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["file", "round"]);
    }

    #[test]
    fn files_over_the_limits_are_not_read() {
        let inside = tempfile::tempdir().unwrap();
        let at = |name: &str| inside.path().join(name);
        fs::write(at("large"), "x".repeat(41)).unwrap();
        fs::write(at("fits"), "x".repeat(40)).unwrap();
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        let tree = open(inside.path());
        assert_eq!(tree.read("large"), Err(ReadError::FileTooLarge(40)));
        assert_eq!(tree.read("pipe"), Err(ReadError::NotAFile));
        assert!(tree.read("fits").is_ok() && tree.read("fits").is_ok());
        assert!(matches!(tree.read("fits"), Err(ReadError::LimitReached(_))));
        for number in 0..20 {
            fs::write(at(&format!("file {number}")), "").unwrap();
        }
        assert!(matches!(tree.list(""), Err(ReadError::LimitReached(_))));
    }

    #[test]
    fn lookups_of_missing_and_empty_paths_count() {
        let inside = tempfile::tempdir().unwrap();
        fs::create_dir(inside.path().join("empty")).unwrap();
        let spent = Err(TOO_COMPLEX);
        let finds = |tree: &WorkspaceTree| tree.find("absent").map(drop);
        let lists = |tree: &WorkspaceTree| tree.list("empty").map(drop);
        for lookup in [finds as fn(&WorkspaceTree) -> Result<(), ReadError>, lists] {
            let tree = open(inside.path());
            assert_ne!(lookup(&tree), spent);
            assert_eq!(tree.check_limits(), Ok(()));
            assert!((0..LIMITS.max_lookups).any(|_| lookup(&tree) == spent));
            assert_eq!(tree.check_limits(), spent);
            let limits = ReadLimits {
                max_time: Duration::ZERO,
                ..LIMITS
            };
            let late = with_limits(inside.path(), limits);
            assert_eq!(lookup(&late), spent);
        }
    }
}
