//! Unpacks an archive that a container has made, and that is not trusted: the user's command alone decides
//! what is written where. Everything goes into a new directory beside the target first, and is then renamed.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{Error, Read, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::cli::checkout::git::is_git_directory;

/// Links are made when all files are written, so that no file is written through one.
const MAX_LINKS: usize = 1_000_000;
/// What `apply` takes at most, too.
const MAX_BYTES: u64 = 8 << 30;
const MAX_FILES: usize = 5_000_000;
/// What describes one file: its name and that of a link may each have an entry of their own, which is read into memory.
const MAX_HEADER_BYTES: u64 = 64 << 10;

/// What was left out of a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Directories of git: their settings and hooks run commands.
    pub(super) git: usize,
    /// Pipes, sockets and devices.
    pub(super) special: usize,
}

/// Where a copy goes: into the directory `to` with the name that was asked for, or as `to`.
pub(super) fn target(to: &Path, name: &OsStr) -> Result<PathBuf> {
    let target = if to.is_dir() {
        to.join(name)
    } else {
        to.to_owned()
    };
    match fs::symlink_metadata(&target) {
        Ok(found) if found.is_symlink() => Err(Error::other(format!(
            "{} is a link; remove it, or name the file that it leads to",
            target.display()
        ))),
        Ok(found) if !found.is_file() && !found.is_dir() => Err(Error::other(format!(
            "{} is neither a file nor a directory",
            target.display()
        ))),
        _ => Ok(target),
    }
}

/// The last name of a path in a workspace; None if it has none, as `.`.
pub(super) fn requested_name(path: &str) -> Option<OsString> {
    match Path::new(path).components().next_back() {
        Some(Component::Normal(name)) => Some(name.to_owned()),
        _ => None,
    }
}

/// The archive, of which only so many bytes are read.
struct Bounded<R> {
    from: R,
    left: u64,
    /// How many bytes more the description of a file may have; none while contents are read.
    header_left: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.from.read(buffer)?;
        let bytes = read as u64;
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or_else(|| Error::other(format!("it has more than {} GiB", MAX_BYTES >> 30)))?;
        if let Some(left) = self.header_left.get() {
            let left = left.checked_sub(bytes).ok_or_else(|| {
                Error::other("the container sent a file whose name or attributes are too long")
            })?;
            self.header_left.set(Some(left));
        }
        Ok(read)
    }
}

/// The entries of an archive within bounds.
struct Entries<'a, R: Read> {
    entries: tar::Entries<'a, Bounded<R>>,
    header_left: Rc<Cell<Option<u64>>>,
    count: usize,
}

impl<'a, R: Read> Entries<'a, R> {
    fn next(&mut self) -> Result<Option<tar::Entry<'a, Bounded<R>>>> {
        self.count += 1;
        if self.count > MAX_FILES {
            return Err(Error::other(format!("it has more than {MAX_FILES} files")));
        }
        self.header_left.set(Some(MAX_HEADER_BYTES));
        let entry = self.entries.next().transpose()?;
        self.header_left.set(None);
        Ok(entry)
    }
}

/// Reads the contents of an entry that is left out.
fn skip(mut entry: impl Read) -> Result<()> {
    std::io::copy(&mut entry, &mut std::io::sink()).map(drop)
}

/// Unpacks one file as `target`, which it replaces, or one directory as `target`, which must not exist unless it is
/// an empty directory.
pub(super) fn unpack(from: impl Read, target: &Path) -> Result<LeftOut> {
    let header_left = Rc::new(Cell::new(None));
    let mut archive = tar::Archive::new(Bounded {
        from,
        left: MAX_BYTES,
        header_left: header_left.clone(),
    });
    archive.set_preserve_permissions(false);
    archive.set_preserve_ownerships(false);
    archive.set_unpack_xattrs(false);
    let mut entries = Entries {
        entries: archive.entries()?,
        header_left,
        count: 0,
    };
    let Some(mut first) = entries.next()? else {
        // The command in the container has failed, and says why.
        return Ok(LeftOut::default());
    };
    let kind = first.header().entry_type();
    if !kind.is_dir() && !kind.is_file() {
        return Err(Error::other(
            "the container sent neither a file nor a directory",
        ));
    }
    let exists = fs::symlink_metadata(target);
    let is_empty =
        exists.as_ref().is_ok_and(|found| found.is_dir()) && fs::read_dir(target)?.next().is_none();
    if kind.is_dir() && exists.is_ok() && !is_empty {
        return Err(Error::other(
            "it exists already; a directory is copied to a new or empty one only: remove it, or name another",
        ));
    }
    if kind.is_file() && exists.is_ok_and(|found| found.is_dir()) {
        return Err(Error::other("a directory is in the place of the file"));
    }
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let stage = tempfile::Builder::new()
        .prefix(".oubliette-cp-")
        .tempdir_in(parent)?;
    if kind.is_file() {
        let staged = stage.path().join("file");
        let is_executable = first.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
        let mut file = create(&staged, is_executable)?;
        std::io::copy(&mut first, &mut file)?;
        if entries.next()?.is_some() {
            return Err(Error::other(
                "the container sent several files where one was asked for",
            ));
        }
        fs::rename(&staged, target)?;
        return Ok(LeftOut::default());
    }
    let staged = stage.path().join("directory");
    fs::create_dir(&staged)?;
    let left_out = unpack_directory(entries, &staged)?;
    if is_empty {
        fs::remove_dir(target)?;
    }
    // Not into a directory that was made meanwhile.
    match renameat_with(CWD, &staged, CWD, target, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => fs::rename(&staged, target)?,
        renamed => renamed?,
    }
    Ok(left_out)
}

fn unpack_directory<R: Read>(mut entries: Entries<'_, R>, root: &Path) -> Result<LeftOut> {
    let mut left_out = LeftOut::default();
    let mut links = Vec::new();
    while let Some(mut entry) = entries.next()? {
        let path = inside(&entry.path()?)?;
        if path
            .components()
            .any(|part| is_git_directory(part.as_os_str()))
        {
            let is_top = path.file_name().is_some_and(is_git_directory);
            left_out.git += usize::from(is_top);
            skip(entry)?;
            continue;
        }
        if path.as_os_str().is_empty() {
            continue;
        }
        let target = root.join(&path);
        let kind = entry.header().entry_type();
        let is_executable = entry.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        if kind.is_dir() {
            fs::create_dir_all(&target)?;
        } else if kind.is_file() {
            std::io::copy(&mut entry, &mut create(&target, is_executable)?)?;
        } else if kind.is_hard_link() {
            let source = entry.link_name()?.unwrap_or_default();
            let source = inside(&source)?;
            if source
                .components()
                .any(|part| is_git_directory(part.as_os_str()))
            {
                continue;
            }
            fs::hard_link(root.join(source), &target)?;
        } else if kind.is_symlink() {
            let leads_to = entry.link_name()?.unwrap_or_default().into_owned();
            links.push((target, leads_to));
            if links.len() > MAX_LINKS {
                return Err(Error::other(format!("it has more than {MAX_LINKS} links")));
            }
        } else {
            left_out.special += 1;
            skip(entry)?;
        }
    }
    let root = fs::canonicalize(root)?;
    for (path, leads_to) in links {
        let parent = path.parent().unwrap_or(&root);
        // Not through another link.
        if !fs::canonicalize(parent)?.starts_with(&root) {
            return Err(Error::other(format!("{} leads outside", path.display())));
        }
        symlink(leads_to, &path)?;
    }
    Ok(left_out)
}

/// A new file. No link is followed, and none is there: they are made last.
fn create(path: &Path, is_executable: bool) -> Result<File> {
    let mode = if is_executable { 0o777 } else { 0o666 };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode).open(path)
}

/// A path of an archive, which must be below its top.
fn inside(path: &Path) -> Result<PathBuf> {
    let mut kept = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => kept.push(name),
            Component::CurDir => {}
            _ => {
                let shown = String::from_utf8_lossy(path.as_os_str().as_bytes());
                return Err(Error::other(format!(
                    "the container sent a path that leads outside: {shown}"
                )));
            }
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive with entries of a kind, a path and a text or the target of a link.
    fn archive(entries: &[(tar::EntryType, &str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, path, text) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o6755);
            // Not by `set_path`, which refuses what an attacker writes.
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            let is_file = kind.is_file();
            if !is_file {
                header.as_mut_bytes()[157..157 + text.len()].copy_from_slice(text.as_bytes());
            }
            let data = if is_file { text.as_bytes() } else { b"" };
            header.set_size(data.len() as u64);
            header.set_cksum();
            builder.append(&header, data).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn nothing_is_written_outside_of_a_new_directory() {
        use tar::EntryType as Kind;
        let dir = (Kind::Directory, "./", "");
        for entries in [
            &[dir, (Kind::Regular, "../out", "x")][..],
            &[dir, (Kind::Regular, "/out", "x")],
            &[
                dir,
                (Kind::Symlink, "l", ".."),
                (Kind::Regular, "l/out", "x"),
            ],
            &[
                dir,
                (Kind::Symlink, "l", ".."),
                (Kind::Symlink, "l/out", "x"),
            ],
            &[dir, (Kind::Link, "l", "../secret")],
            &[
                dir,
                (Kind::Symlink, "l", "../secret"),
                (Kind::Regular, "l", "x"),
            ],
            &[(Kind::Symlink, "new", "secret")],
            &[(Kind::Regular, "a", "x"), (Kind::Regular, "secret", "x")],
        ] {
            let place = tempfile::tempdir().unwrap();
            fs::write(place.path().join("secret"), "mine").unwrap();
            let target = place.path().join("new");
            let result = unpack(archive(entries).as_slice(), &target);
            assert!(result.is_err(), "{entries:?}");
            let left: Vec<_> = fs::read_dir(place.path()).unwrap().collect();
            assert_eq!(left.len(), 1, "{entries:?}");
            assert_eq!(fs::read(place.path().join("secret")).unwrap(), b"mine");
        }
    }

    #[test]
    fn repositories_and_special_files_are_left_out() {
        use tar::EntryType as Kind;
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("new");
        let entries = archive(&[
            (Kind::Directory, "./", ""),
            (Kind::Directory, "./.GIT", ""),
            (Kind::Regular, "./.GIT/config", "x"),
            (Kind::Regular, "sub/.git", "gitdir: /x"),
            (Kind::Fifo, "pipe", ""),
            (Kind::Regular, "run", "x"),
            (Kind::Link, "same", "run"),
            (Kind::Symlink, "link", "/etc"),
        ]);
        let left_out = unpack(entries.as_slice(), &target).unwrap();
        assert_eq!(left_out, LeftOut { git: 2, special: 1 });
        let mut names: Vec<_> = fs::read_dir(&target)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["link", "run", "same"]);
        let again = unpack(entries.as_slice(), &target);
        assert!(again.unwrap_err().to_string().contains("exists"));
        let empty = place.path().join("empty");
        fs::create_dir(&empty).unwrap();
        unpack(entries.as_slice(), &empty).unwrap();
        assert!(empty.join("run").exists());
    }

    #[test]
    fn what_is_read_into_memory_is_bounded() {
        use tar::EntryType as Kind;
        /// Never ends.
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
                buffer.fill(b'n');
                self.0 += buffer.len() as u64;
                assert!(self.0 < 8 << 20, "it is read without end");
                Ok(buffer.len())
            }
        }
        for kind in [Kind::GNULongName, Kind::GNULongLink, Kind::XHeader] {
            let place = tempfile::tempdir().unwrap();
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(4 << 30);
            header.set_cksum();
            let start = archive(&[(Kind::Directory, "./", "")]);
            let start = start[..512].iter().chain(header.as_bytes());
            let start: Vec<u8> = start.copied().collect();
            let endless = start.as_slice().chain(Endless(0));
            let refused = unpack(endless, &place.path().join("new")).unwrap_err();
            assert!(refused.to_string().contains("too long"), "{refused}");
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        }
        // Long names are not refused, nor large files after them and in what is left out.
        let place = tempfile::tempdir().unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
        for name in ["./", &long, ".git/pack", "last"] {
            let mut header = tar::Header::new_gnu();
            let is_dir = name.ends_with('/');
            header.set_entry_type(if is_dir {
                Kind::Directory
            } else {
                Kind::Regular
            });
            header.set_mode(0o644);
            let data = vec![b'x'; if is_dir { 0 } else { 1 << 20 }];
            header.set_size(data.len() as u64);
            builder
                .append_data(&mut header, name, data.as_slice())
                .unwrap();
        }
        let whole = builder.into_inner().unwrap();
        let target = place.path().join("new");
        unpack(whole.as_slice(), &target).unwrap();
        assert_eq!(fs::metadata(target.join(long)).unwrap().len(), 1 << 20);
        assert!(target.join("last").exists() && !target.join(".git").exists());
    }

    #[test]
    fn more_than_the_bytes_of_an_apply_are_refused() {
        let mut bounded = Bounded {
            from: std::io::repeat(0),
            left: 1000,
            header_left: Rc::default(),
        };
        let refused = std::io::copy(&mut bounded, &mut std::io::sink()).unwrap_err();
        assert!(refused.to_string().contains("8 GiB"), "{refused}");
    }

    #[test]
    fn the_name_is_that_of_the_request() {
        let named = |path: &str| requested_name(path).and_then(|name| name.into_string().ok());
        assert_eq!(named("a/b.pdf").as_deref(), Some("b.pdf"));
        assert_eq!(named("dir/").as_deref(), Some("dir"));
        assert_eq!(named("."), None);
        assert_eq!(named("a/.."), None);
    }
}
