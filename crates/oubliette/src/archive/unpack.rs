//! Unpacks an archive into an empty directory, without trusting it: every path is followed name by
//! name below that directory, and never through a link.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use oubliette_trees::{Position, open_dir};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, linkat, mkdirat,
    openat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::collect::project_of;
use super::format::{Entry, Kind, MAX_PATH_BYTES, Reader, invalid};
use super::skipped::Skipped;
use super::{ARCHIVE_ENTRIES, DATABASE_FILE};

/// Where links may be: in the files of a project, `projects/ID/workspace/…`.
const MIN_LINK_DEPTH: usize = 4;
const CHUNK_BYTES: usize = 64 << 10;

/// Checks that a new archive can be read to its end, has the bytes that were written, and has only entries
/// that [`unpack`] accepts.
pub(super) fn check(source: impl Read) -> io::Result<()> {
    let mut reader = Reader::new(source);
    let mut has_database = false;
    while let Some(entry) = reader.next_entry()? {
        let names = names_of(&entry)?;
        has_database |= names == [DATABASE_FILE.as_bytes()];
    }
    if !has_database {
        return Err(invalid("it contains no database"));
    }
    if !reader.is_verified() {
        return Err(invalid("its checksum is missing"));
    }
    Ok(())
}

/// What was unpacked.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub(super) skipped: Skipped,
    /// Whether the archive had a checksum, and it was right.
    pub(super) is_verified: bool,
}

/// Unpacks an archive. An entry that contradicts an earlier one is left out; one that does not belong
/// into a data directory is an error. After an error, what was unpacked is worth nothing.
pub(super) fn unpack(source: impl Read, target: &Path) -> io::Result<Unpacked> {
    let root = open_dir(CWD, target)?;
    let mut reader = Reader::new(source);
    let mut unpacker = Unpacker {
        position: Position::new(root.try_clone()?),
        root,
        finals: Vec::new(),
        skipped: Skipped::default(),
    };
    while let Some(entry) = reader.next_entry()? {
        let names = names_of(&entry)?;
        match unpacker.add(&entry, &names, &mut reader) {
            Ok(()) => {}
            Err(AddError::Contradiction(reason)) => unpacker.skipped.add(&entry.path, reason),
            Err(AddError::Failed(error)) => return Err(error),
        }
    }
    while unpacker.position.depth() > 0 {
        unpacker.leave()?;
    }
    Ok(Unpacked {
        skipped: unpacker.skipped,
        is_verified: reader.is_verified(),
    })
}

/// The names of a path that belongs into a data directory.
fn names_of(entry: &Entry) -> io::Result<Vec<&[u8]>> {
    let path = &entry.path;
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let is_name = |name: &&[u8]| !matches!(*name, b"" | b"." | b"..") && !name.contains(&0);
    let is_known = names.first().is_some_and(|first| {
        let mut known = ARCHIVE_ENTRIES.iter();
        known.any(|known| known.as_bytes() == *first)
    });
    let is_below_projects = names.first() == Some(&b"projects".as_slice());
    let is_accepted = path.len() <= MAX_PATH_BYTES
        && names.iter().all(is_name)
        && is_known
        && (is_below_projects || names.len() == 1)
        && entry.kind != Kind::Unknown;
    if is_accepted {
        return Ok(names);
    }
    let shown: String = String::from_utf8_lossy(path).chars().take(200).collect();
    Err(invalid(format!(
        "it contains {}",
        crate::terminal::printable(&shown)
    )))
}

struct Unpacker {
    root: OwnedFd,
    position: Position,
    /// What each directory on the way becomes when it is left: files can be added only while its owner
    /// may write to it.
    finals: Vec<Final>,
    skipped: Skipped,
}

#[derive(Debug, Clone, Copy)]
struct Final {
    mode: Mode,
    modified: Option<u64>,
}

enum AddError {
    /// The entry does not fit to an earlier one.
    Contradiction(&'static str),
    Failed(io::Error),
}

impl From<io::Error> for AddError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Errno> for AddError {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

const NOT_A_DIRECTORY: AddError = AddError::Contradiction("a part of its path is no directory");

impl Unpacker {
    fn add(
        &mut self,
        entry: &Entry,
        names: &[&[u8]],
        content: &mut Reader<impl Read>,
    ) -> Result<(), AddError> {
        let Some((name, parents)) = names.split_last() else {
            return Ok(());
        };
        let name = CString::new(*name).map_err(io::Error::from)?;
        if entry.kind == Kind::Directory {
            if names.len() == 1 && *names[0] != *b"projects" {
                return Err(AddError::Contradiction("it is no directory"));
            }
            self.go_to(parents)?;
            let last = Final {
                mode: Mode::from_raw_mode(entry.mode as rustix::fs::RawMode),
                modified: Some(entry.modified),
            };
            return self.make_dir(&name, last);
        }
        let is_link = matches!(entry.kind, Kind::Link { .. } | Kind::HardLink { .. });
        if is_link && names.len() < MIN_LINK_DEPTH {
            return Err(AddError::Contradiction("a link is not expected here"));
        }
        if names.len() == 2 || names == [b"projects"] {
            return Err(AddError::Contradiction("a file is not expected here"));
        }
        self.go_to(parents)?;
        self.make_room(&name)?;
        let dir = self.position.dir()?;
        match &entry.kind {
            Kind::File { size } => {
                let whole = [(0, *size)];
                write_file(dir, &name, entry, names.len() == 1, *size, &whole, content)
            }
            Kind::Sparse { size, segments } => {
                let parts = segments.iter().map(|segment| (segment.offset, segment.len));
                let parts: Vec<_> = parts.collect();
                write_file(dir, &name, entry, names.len() == 1, *size, &parts, content)
            }
            Kind::Link { target } => {
                let target = CString::new(target.as_slice()).map_err(io::Error::from)?;
                Ok(symlinkat(target.as_c_str(), dir, &name)?)
            }
            Kind::HardLink { target } => self.link(target, names, &name),
            Kind::Directory | Kind::Unknown => Ok(()),
        }
    }

    /// Goes to a directory, and makes those on the way that do not exist.
    fn go_to(&mut self, parents: &[&[u8]]) -> Result<(), AddError> {
        let here: Vec<Vec<u8>> = match self.position.path() {
            [] => Vec::new(),
            path => path
                .split(|byte| *byte == b'/')
                .map(<[u8]>::to_vec)
                .collect(),
        };
        let shared = here
            .iter()
            .zip(parents)
            .take_while(|(a, b)| a == *b)
            .count();
        while self.position.depth() > shared {
            self.leave()?;
        }
        for name in &parents[shared..] {
            let name = CString::new(*name).map_err(io::Error::from)?;
            let last = Final {
                mode: Mode::RWXU,
                modified: None,
            };
            match self.enter(&name, None) {
                Err(Errno::NOENT) => self.make_dir(&name, last)?,
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(NOT_A_DIRECTORY),
                other => other?,
            }
        }
        Ok(())
    }

    fn make_dir(&mut self, name: &CStr, last: Final) -> Result<(), AddError> {
        match mkdirat(self.position.dir()?, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        match self.enter(name, Some(last)) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Err(AddError::Contradiction("there is a file with its name"))
            }
            other => Ok(other?),
        }
    }

    /// Enters a directory and lets its owner write to it until it is left.
    fn enter(&mut self, name: &CStr, last: Option<Final>) -> rustix::io::Result<()> {
        let stat = self.position.enter(name)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        self.finals.push(last.unwrap_or(Final {
            mode,
            modified: u64::try_from(stat.st_mtime).ok(),
        }));
        if mode.contains(Mode::RWXU) {
            return Ok(());
        }
        fchmod(self.position.dir()?, mode | Mode::RWXU)
    }

    fn leave(&mut self) -> io::Result<()> {
        if let Some(last) = self.finals.pop() {
            let dir = self.position.dir()?;
            if let Some(modified) = last.modified {
                set_modified(dir, modified)?;
            }
            fchmod(dir, last.mode & Mode::from_raw_mode(0o777))?;
        }
        Ok(self.position.leave()?)
    }

    /// Removes a file of an earlier entry.
    fn make_room(&self, name: &CStr) -> Result<(), AddError> {
        match unlinkat(self.position.dir()?, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => Err(AddError::Contradiction(
                "there is a directory with its name",
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// A file has names only in one project: another project must not be able to write to it.
    fn link(&self, target: &[u8], names: &[&[u8]], name: &CStr) -> Result<(), AddError> {
        let targets: Vec<&[u8]> = target.split(|byte| *byte == b'/').collect();
        let is_accepted = targets.len() >= MIN_LINK_DEPTH
            && names[..2] == project_of(target)
            && target.len() <= MAX_PATH_BYTES
            && !targets
                .iter()
                .any(|name| matches!(*name, b"" | b"." | b".."));
        let Some((last, parents)) = targets.split_last().filter(|_| is_accepted) else {
            return Err(AddError::Contradiction("it is a link out of its project"));
        };
        let mut dir = self.root.try_clone()?;
        for parent in parents {
            dir = open_dir(&dir, *parent).map_err(|_| NOT_A_DIRECTORY)?;
        }
        let missing = AddError::Contradiction("the file that it is a name of is not there");
        let Ok(stat) = statat(&dir, *last, AtFlags::SYMLINK_NOFOLLOW) else {
            return Err(missing);
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(missing);
        }
        Ok(linkat(
            &dir,
            *last,
            self.position.dir()?,
            name,
            AtFlags::empty(),
        )?)
    }
}

fn write_file(
    dir: BorrowedFd<'_>,
    name: &CStr,
    entry: &Entry,
    is_private: bool,
    size: u64,
    parts: &[(u64, u64)],
    content: &mut impl Read,
) -> Result<(), AddError> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(file);
    for (offset, len) in parts {
        file.seek(SeekFrom::Start(*offset))?;
        copy_with_holes(&mut content.by_ref().take(*len), &mut file)?;
    }
    file.set_len(size)?;
    let mode = entry.mode & if is_private { 0o600 } else { 0o777 };
    set_modified(file.as_fd(), entry.modified)?;
    fchmod(&file, Mode::from_raw_mode(mode as rustix::fs::RawMode))?;
    Ok(())
}

/// Copies, and leaves holes for blocks of zeros: archives of older versions have them.
fn copy_with_holes(content: &mut impl Read, file: &mut File) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let mut filled = 0;
        while filled < chunk.len() {
            match content.read(&mut chunk[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        if filled == 0 {
            return Ok(());
        }
        if chunk[..filled].iter().all(|byte| *byte == 0) {
            file.seek(SeekFrom::Current(filled as i64))?;
        } else {
            file.write_all(&chunk[..filled])?;
        }
    }
}

fn set_modified(file: BorrowedFd<'_>, seconds: u64) -> rustix::io::Result<()> {
    let time = Timespec {
        tv_sec: i64::try_from(seconds).unwrap_or(0),
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    futimens(file, &times)
}

#[cfg(test)]
mod tests;
