//! Gives trees of files to the sandbox's root. Their contents are untrusted: symbolic links are never
//! followed, and mounts below are not entered.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid};

use crate::launcher::ids::{IDS_PER_SANDBOX, unshifted};
use crate::{Error, Result};

/// Changes the owner of a file, or of a directory and everything in it, to the one of
/// [`crate::IdMapping::owner`]. Entries that already have an id of that range keep it.
pub(crate) fn chown_tree(path: &Path, owner: (u32, u32)) -> Result<()> {
    walk(path, owner).map_err(|source| {
        Error::io(
            format!("failed to change the owner of {}", path.display()),
            source,
        )
    })
}

fn walk(path: &Path, owner: (u32, u32)) -> rustix::io::Result<()> {
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    let top = rustix::fs::statat(CWD, path, nofollow)?;
    if FileType::from_raw_mode(top.st_mode) != FileType::Directory {
        let (uid, gid) = new_owner(&top, owner);
        return rustix::fs::chownat(CWD, path, uid, gid, nofollow);
    }
    let mut queue: VecDeque<OsString> = VecDeque::from([OsString::new()]);
    let top_dir = open_dir(CWD, path)?;
    while let Some(relative) = queue.pop_front() {
        let Some(dir) = open_relative(&top_dir, &relative)? else {
            continue;
        };
        if rustix::fs::fstat(&dir)?.st_dev != top.st_dev {
            continue;
        }
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&dir, name, nofollow) else {
                continue;
            };
            let (uid, gid) = new_owner(&stat, owner);
            if uid.is_some() || gid.is_some() {
                rustix::fs::chownat(&dir, name, uid, gid, nofollow)?;
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                queue.push_back(Path::new(&relative).join(name).into_os_string());
            }
        }
    }
    // Last, so that the next launch repeats an interrupted walk.
    let (uid, gid) = new_owner(&top, owner);
    rustix::fs::fchown(&top_dir, uid, gid)
}

/// The ids that an entry must get; none if it has them.
fn new_owner(stat: &Stat, owner: (u32, u32)) -> (Option<Uid>, Option<Gid>) {
    let shift = |id: u32, base: u32| {
        let is_own = id >= base && id - base < IDS_PER_SANDBOX;
        (!is_own).then(|| base + unshifted(id).unwrap_or(0))
    };
    (
        shift(stat.st_uid, owner.0).map(Uid::from_raw),
        shift(stat.st_gid, owner.1).map(Gid::from_raw),
    )
}

fn open_dir(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

/// A directory below the top; none if it is no longer a directory.
fn open_relative(top: &OwnedFd, relative: &OsString) -> rustix::io::Result<Option<OwnedFd>> {
    use rustix::fs::ResolveFlags;
    use rustix::io::Errno;
    if relative.is_empty() {
        return open_dir(top, Path::new(".")).map(Some);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::openat2(top, relative, flags, Mode::empty(), resolve) {
        Ok(dir) => Ok(Some(dir)),
        // Directories with too long a path (ENAMETOOLONG) keep their owner.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
        Err(error) => Err(error),
    }
}
