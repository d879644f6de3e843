//! Unpacks an archive that a container has made, and that is not trusted: the user's command alone decides
//! what is written where. Everything goes into a new directory beside the target first, and is then renamed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{Error, Read, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::cli::checkout::git::is_git_directory;

/// Links are made when all files are written, so that no file is written through one.
const MAX_LINKS: usize = 1_000_000;

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

/// Unpacks one file as `target`, which it replaces, or one directory as `target`, which must not exist unless it is
/// an empty directory.
pub(super) fn unpack(from: impl Read, target: &Path) -> Result<LeftOut> {
    let mut archive = tar::Archive::new(from);
    archive.set_preserve_permissions(false);
    archive.set_preserve_ownerships(false);
    archive.set_unpack_xattrs(false);
    let mut entries = archive.entries()?;
    let Some(first) = entries.next() else {
        // The command in the container has failed, and says why.
        return Ok(LeftOut::default());
    };
    let mut first = first?;
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
        if entries.next().is_some() {
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

fn unpack_directory<R: Read>(entries: tar::Entries<'_, R>, root: &Path) -> Result<LeftOut> {
    let mut left_out = LeftOut::default();
    let mut links = Vec::new();
    for entry in entries {
        let mut entry = entry?;
        let path = inside(&entry.path()?)?;
        if path
            .components()
            .any(|part| is_git_directory(part.as_os_str()))
        {
            let is_top = path.file_name().is_some_and(is_git_directory);
            left_out.git += usize::from(is_top);
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
    fn the_name_is_that_of_the_request() {
        let named = |path: &str| requested_name(path).and_then(|name| name.into_string().ok());
        assert_eq!(named("a/b.pdf").as_deref(), Some("b.pdf"));
        assert_eq!(named("dir/").as_deref(), Some("dir"));
        assert_eq!(named("."), None);
        assert_eq!(named("a/.."), None);
    }
}
