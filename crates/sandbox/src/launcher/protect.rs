//! Paths in writable binds that no process inside can change, replace or create.
//!
//! A path is mounted read-only onto itself. Every directory above it is mounted onto itself as well: a
//! mount point cannot be renamed, so nothing else can take the path's place. A path that does not exist
//! is made as an empty directory, which git does not report.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Mode, StatVfsMountFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::{StepContext, StepResult};
use crate::mounts::{self, NODEV, NOSUID, RDONLY};
use crate::spec::ProtectedPath;
use crate::sys;

/// Protects paths below `root`; `owner` owns the directories that are made.
pub(super) fn protect(
    root: BorrowedFd<'_>,
    paths: &[ProtectedPath],
    owner: (u32, u32),
) -> StepResult<()> {
    for path in paths {
        let inside = path.within.join(&path.path);
        protect_path(root, path, owner).step(format!(
            "protect {} (every part of it but the last must be a directory, and none a symbolic link)",
            inside.display()
        ))?;
    }
    Ok(())
}

fn protect_path(root: BorrowedFd<'_>, path: &ProtectedPath, owner: (u32, u32)) -> io::Result<()> {
    let top = path.within.strip_prefix("/").unwrap_or(&path.within);
    let top = match mounts::open_beneath(root, top) {
        // There is nothing to protect yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let names = normal_names(&path.path);
    let mut current = hold(top, names.is_empty())?;
    for (index, name) in names.iter().enumerate() {
        let Some(entry) = open_or_make(current.as_fd(), name, owner)? else {
            // A directory above it is protected as a whole.
            return Ok(());
        };
        let is_last = index + 1 == names.len();
        current = hold(entry, is_last)?;
    }
    Ok(())
}

/// The names in a relative path.
fn normal_names(path: &Path) -> Vec<&OsStr> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect()
}

/// Opens an entry, or makes it as a directory; none in a read-only directory.
fn open_or_make(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    owner: (u32, u32),
) -> io::Result<Option<OwnedFd>> {
    let path = Path::new(name);
    match mounts::open_beneath(dir, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other.map(Some),
    }
    let make = || rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755));
    let made = match make() {
        // In a person's directory only the sandbox's root is a user.
        Err(Errno::OVERFLOW) => sys::with_file_owner(owner, make),
        made => made,
    };
    match made {
        Err(Errno::ROFS) => return Ok(None),
        other => other?,
    }
    mounts::chown_entry(dir, name, owner)?;
    mounts::open_beneath(dir, path).map(Some)
}

/// Mounts a directory of the new root onto itself, so that it cannot be renamed.
pub(super) fn hold_directory(root: BorrowedFd<'_>, inside: &Path) -> io::Result<()> {
    let relative = inside.strip_prefix("/").unwrap_or(inside);
    hold(mounts::open_beneath(root, relative)?, false).map(drop)
}

/// Mounts an entry onto itself, unless it is a mount already, and returns what is there now.
fn hold(entry: OwnedFd, read_only: bool) -> io::Result<OwnedFd> {
    let is_read_only = || {
        let flags = rustix::fs::fstatvfs(&entry).map(|stat| stat.f_flag);
        flags.is_ok_and(|flags| flags.contains(StatVfsMountFlags::RDONLY))
    };
    if is_mount_point(&entry)? && (!read_only || is_read_only()) {
        return Ok(entry);
    }
    let mount = mounts::copy(entry.as_fd(), true)?;
    let attributes = if read_only { RDONLY } else { 0 };
    mounts::restrict(&mount, attributes | NOSUID | NODEV, true)?;
    mounts::attach(&mount, entry.as_fd())?;
    Ok(mount)
}

fn is_mount_point(entry: &OwnedFd) -> io::Result<bool> {
    let stat = rustix::fs::statx(entry, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
