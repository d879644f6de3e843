//! A workspace as it is read from outside, within bounds.
//!
//! Everything in it may have been made by an agent and may change meanwhile. Names are opened one by
//! one beneath the directory that holds them and never through a link: links are followed by hand,
//! and only to what is in the same workspace, so that nothing leads out of it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat,
};
use rustix::io::Errno;

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;
const DEEPEST: usize = 100;
const SPENT: &str = "the openspec directory is too big or too intricate to be read in time";
const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::RDONLY);

/// How much one look at a workspace may see in all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Names in directories, which are held in memory.
    pub(crate) entries: usize,
    /// Paths that are followed, each name that is looked up on the way, and directories that are
    /// listed: those cost time even where nothing is.
    pub(crate) looks: usize,
    pub(crate) time: Duration,
    pub(crate) bytes: u64,
    /// Of one file.
    pub(crate) file: u64,
}

/// A workspace that is being read. For one call: what it has seen, it does not look at again.
#[derive(Debug)]
pub(crate) struct Tree {
    top: Rc<OwnedFd>,
    /// Where agents see it: a link to below that is a link into it.
    seen_as: String,
    file: u64,
    entries: Cell<usize>,
    looks: Cell<usize>,
    deadline: Instant,
    bytes: Cell<u64>,
    /// The directories on the way to the last one that was used.
    way: RefCell<Vec<Step>>,
}

#[derive(Debug, Clone)]
struct Step {
    name: String,
    directory: Rc<OwnedFd>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
    Link,
    Other,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// When it was changed, in milliseconds since 1970; not for directories.
    pub(crate) modified: i64,
}

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its path from the top, without links.
    pub(crate) path: String,
    /// Never a link.
    pub(crate) kind: Kind,
    pub(crate) modified: i64,
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Lost {
    /// It would be here if it were there.
    #[error("it is not there")]
    Absent(String),
    #[error("a link on the way leads to nothing")]
    Dangling,
    #[error("a link on the way leads out of the workspace")]
    Outside,
    #[error("links on the way lead in a circle")]
    Circle,
    #[error("it is below something that is not a directory")]
    NotADirectory,
    #[error("it is not a file")]
    NotAFile,
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    #[error("there is more to look at than one call may: {0}")]
    TooMuch(&'static str),
    #[error("{0}")]
    Failed(Errno),
}

impl Tree {
    pub(super) fn open(directory: &Path, seen_as: String, bounds: Bounds) -> Result<Self, Lost> {
        let top = openat(CWD, directory, DIRECTORY, Mode::empty()).map_err(Lost::Failed)?;
        Ok(Self {
            top: Rc::new(top),
            seen_as,
            file: bounds.file,
            entries: Cell::new(bounds.entries),
            looks: Cell::new(bounds.looks),
            deadline: Instant::now() + bounds.time,
            bytes: Cell::new(bounds.bytes),
            way: RefCell::default(),
        })
    }

    /// Fails from the moment on when looks or time are used up. Who made something of such a failure,
    /// as that a file is not there, learns here that it may be wrong.
    pub(crate) fn goes_on(&self) -> Result<(), Lost> {
        let is_spent = self.looks.get() == 0 || Instant::now() >= self.deadline;
        match is_spent {
            true => Err(Lost::TooMuch(SPENT)),
            false => Ok(()),
        }
    }

    fn count_look(&self) -> Result<(), Lost> {
        self.goes_on()?;
        self.looks.set(self.looks.get().saturating_sub(1));
        Ok(())
    }

    /// How an agent names what is at a path.
    pub(crate) fn name_inside(&self, path: &str) -> String {
        format!("{}/{path}", self.seen_as)
    }

    /// What a path leads to, through links.
    pub(crate) fn find(&self, path: &str) -> Result<Found, Lost> {
        let arrival = self.arrive(path)?;
        Ok(Found {
            kind: kind(&arrival.stat),
            modified: modified(&arrival.stat),
            path: arrival.path,
        })
    }

    pub(crate) fn is_directory(&self, path: &str) -> bool {
        self.find(path)
            .is_ok_and(|found| found.kind == Kind::Directory)
    }

    /// The names in a directory, sorted by their bytes. Names that are not text are left out: nobody
    /// could be told about them.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<Entry>, Lost> {
        let arrival = self.arrive(path)?;
        let Some(directory) = arrival.directory else {
            return Err(Lost::NotADirectory);
        };
        self.count_look()?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory).map_err(Lost::Failed)? {
            self.goes_on()?;
            let entry = entry.map_err(Lost::Failed)?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if matches!(name, "." | "..") {
                continue;
            }
            let left = self.entries.get().checked_sub(1);
            self.entries
                .set(left.ok_or(Lost::TooMuch("too many files"))?);
            if entry.file_type() == FileType::Directory {
                entries.push(Entry {
                    name: name.to_owned(),
                    kind: Kind::Directory,
                    modified: 0,
                });
                continue;
            }
            match statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => entries.push(Entry {
                    name: name.to_owned(),
                    kind: kind(&stat),
                    modified: modified(&stat),
                }),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(Lost::Failed(error)),
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// What is in a file; what is not text in it becomes a replacement character.
    pub(crate) fn read(&self, path: &str) -> Result<String, Lost> {
        let arrival = self.arrive(path)?;
        if kind(&arrival.stat) != Kind::File {
            return Err(Lost::NotAFile);
        }
        // Something else may stand there by now: nothing that could be waited for is opened.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&arrival.holder, &arrival.name, flags, Mode::empty());
        let file = file.map_err(Lost::Failed)?;
        let stat = fstat(&file).map_err(Lost::Failed)?;
        if kind(&stat) != Kind::File {
            return Err(Lost::NotAFile);
        }
        if u64::try_from(stat.st_size).is_ok_and(|size| size > self.file) {
            return Err(Lost::TooLarge(self.file));
        }
        let mut bytes = Vec::new();
        let read = std::fs::File::from(file)
            .take(self.file + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| Lost::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let read = u64::try_from(read).unwrap_or(u64::MAX);
        if read > self.file {
            return Err(Lost::TooLarge(self.file));
        }
        let left = self.bytes.get().checked_sub(read);
        self.bytes
            .set(left.ok_or(Lost::TooMuch("its files are too large together"))?);
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// Follows a path to its end.
    fn arrive(&self, path: &str) -> Result<Arrival, Lost> {
        self.count_look()?;
        let mut way = self.way.borrow_mut();
        let mut ahead: VecDeque<(String, bool)> = split(path, false).collect();
        let known = way
            .iter()
            .zip(&ahead)
            .take_while(|(step, (name, _))| step.name == *name)
            .count();
        way.truncate(known);
        ahead.drain(..known);
        let mut links = 0;
        while let Some((name, of_link)) = ahead.pop_front() {
            if name == ".." {
                way.pop().ok_or(Lost::Outside)?;
                continue;
            }
            self.count_look()?;
            let holder = way.last().map_or(&self.top, |step| &step.directory);
            let stat = match statat(holder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) if of_link => return Err(Lost::Dangling),
                Err(Errno::NOENT) => {
                    let rest = ahead.into_iter().map(|(name, _)| name);
                    let names = way.iter().map(|step| step.name.clone());
                    let names: Vec<_> = names.chain([name]).chain(rest).collect();
                    return Err(Lost::Absent(names.join("/")));
                }
                Err(error) => return Err(Lost::Failed(error)),
            };
            match kind(&stat) {
                Kind::Link => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(Lost::Circle);
                    }
                    let target = readlinkat(holder, &name, Vec::new()).map_err(Lost::Failed)?;
                    let target = target.into_string().map_err(|_| Lost::Dangling)?;
                    let target = match target.starts_with('/') {
                        false => target,
                        true => {
                            way.clear();
                            self.below(&target).ok_or(Lost::Outside)?
                        }
                    };
                    for part in split(&target, true).collect::<Vec<_>>().into_iter().rev() {
                        ahead.push_front(part);
                    }
                }
                Kind::Directory => {
                    if way.len() >= DEEPEST {
                        return Err(Lost::TooMuch("directories that are too deep"));
                    }
                    let inner = openat(holder, &name, DIRECTORY, Mode::empty());
                    let directory = Rc::new(inner.map_err(Lost::Failed)?);
                    way.push(Step { name, directory });
                }
                _ if ahead.is_empty() => {
                    return Ok(Arrival {
                        path: joined(&way, Some(&name)),
                        holder: holder.clone(),
                        directory: None,
                        name,
                        stat,
                    });
                }
                _ => return Err(Lost::NotADirectory),
            }
        }
        let here = way.last().map_or(&self.top, |step| &step.directory);
        Ok(Arrival {
            path: joined(&way, None),
            holder: here.clone(),
            directory: Some(here.clone()),
            name: ".".to_owned(),
            stat: fstat(here).map_err(Lost::Failed)?,
        })
    }

    /// The path from the top of what an agent sees at an absolute path.
    fn below(&self, absolute: &str) -> Option<String> {
        let rest = absolute.strip_prefix(&self.seen_as)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
    }
}

/// Where a path ended.
#[derive(Debug)]
struct Arrival {
    path: String,
    holder: Rc<OwnedFd>,
    name: String,
    directory: Option<Rc<OwnedFd>>,
    stat: Stat,
}

fn split(path: &str, of_link: bool) -> impl Iterator<Item = (String, bool)> {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.map(move |part| (part.to_owned(), of_link))
}

fn joined(way: &[Step], last: Option<&str>) -> String {
    let names = way.iter().map(|step| step.name.as_str());
    names.chain(last).collect::<Vec<_>>().join("/")
}

fn kind(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::RegularFile => Kind::File,
        FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    }
}

/// Rounded to milliseconds as JavaScript does it, for which a time is a number with a fraction: half
/// of one is reached a little early.
fn modified(stat: &Stat) -> i64 {
    let milliseconds = stat.st_mtime as f64 * 1000.0 + stat.st_mtime_nsec as f64 / 1e6;
    (milliseconds + 0.5).floor() as i64
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        entries: 20,
        looks: 1000,
        time: Duration::from_secs(600),
        bytes: 100,
        file: 40,
    };

    fn open(directory: &Path) -> Tree {
        Tree::open(directory, "/workspace".to_owned(), BOUNDS).unwrap()
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
        for (path, lost) in [
            ("out/secret", Lost::Outside),
            ("a/up", Lost::Outside),
            ("neighbours", Lost::Outside),
            ("../secret", Lost::Outside),
            ("dangling", Lost::Dangling),
            ("circle", Lost::Circle),
            ("a/b/file/x", Lost::NotADirectory),
            ("short/x/y", Lost::Absent("a/b/x/y".to_owned())),
        ] {
            assert_eq!(tree.find(path), Err(lost), "{path}");
        }
        assert_eq!(tree.read("a"), Err(Lost::NotAFile));
        assert_eq!(tree.list("a/b/file"), Err(Lost::NotADirectory));
        let names = tree.list("short").unwrap();
        let names: Vec<_> = names.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["file", "round"]);
    }

    #[test]
    fn what_is_too_large_or_too_much_is_not_read() {
        let inside = tempfile::tempdir().unwrap();
        let at = |name: &str| inside.path().join(name);
        fs::write(at("large"), "x".repeat(41)).unwrap();
        fs::write(at("fits"), "x".repeat(40)).unwrap();
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let tree = open(inside.path());
        assert_eq!(tree.read("large"), Err(Lost::TooLarge(40)));
        assert_eq!(tree.read("pipe"), Err(Lost::NotAFile));
        assert!(tree.read("fits").is_ok() && tree.read("fits").is_ok());
        assert!(matches!(tree.read("fits"), Err(Lost::TooMuch(_))));
        for number in 0..20 {
            fs::write(at(&format!("file {number}")), "").unwrap();
        }
        assert!(matches!(tree.list(""), Err(Lost::TooMuch(_))));
    }

    #[test]
    fn looks_at_what_is_not_there_or_empty_end_too() {
        let inside = tempfile::tempdir().unwrap();
        fs::create_dir(inside.path().join("empty")).unwrap();
        let spent = Err(Lost::TooMuch(SPENT));
        let finds = |tree: &Tree| tree.find("absent").map(drop);
        let lists = |tree: &Tree| tree.list("empty").map(drop);
        for look in [finds as fn(&Tree) -> Result<(), Lost>, lists] {
            let tree = open(inside.path());
            assert_ne!(look(&tree), spent);
            assert_eq!(tree.goes_on(), Ok(()));
            assert!((0..BOUNDS.looks).any(|_| look(&tree) == spent));
            assert_eq!(tree.goes_on(), spent);
            let bounds = Bounds {
                time: Duration::ZERO,
                ..BOUNDS
            };
            let late = Tree::open(inside.path(), "/workspace".to_owned(), bounds).unwrap();
            assert_eq!(look(&late), spent);
        }
    }
}
