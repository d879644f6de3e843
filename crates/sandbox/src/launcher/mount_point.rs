//! Mount targets in read-only directories: without root, the sandbox does not own the host's
//! directories. Such a directory is replaced by one with the same entries.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Launch;
use crate::mounts::{self, NODEV, NOSUID, TargetKind};

/// Directories with more entries are not replaced.
const MAX_ENTRIES: usize = 1000;

/// Opens the mount target `inside`, and replaces its parent if that cannot be written to.
pub(super) fn open_target(
    launch: &Launch<'_>,
    root: BorrowedFd<'_>,
    inside: &Path,
    kind: TargetKind,
) -> io::Result<OwnedFd> {
    match mounts::open_target(root, inside, kind, launch.owner()) {
        Err(error) if is_refused(&error) => {
            replace_parent(launch, root, inside)?;
            mounts::open_target(root, inside, kind, launch.owner())
        }
        other => other,
    }
}

fn is_refused(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::ACCESS | Errno::ROFS | Errno::PERM))
}

/// Replaces the closest existing directory above `inside`.
fn replace_parent(launch: &Launch<'_>, root: BorrowedFd<'_>, inside: &Path) -> io::Result<()> {
    let mut above = inside.strip_prefix("/").unwrap_or(inside).parent();
    let old = loop {
        let path = above.ok_or(io::ErrorKind::NotFound)?;
        match mounts::open_beneath(root, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => above = path.parent(),
            other => break other?,
        }
    };
    let new = mounts::tmpfs("0755", "1m", launch.owner(), NOSUID | NODEV)?;
    for (name, kind) in entries(&old)? {
        if kind == FileType::Symlink {
            let target = rustix::fs::readlinkat(&old, &*name, Vec::new())?;
            rustix::fs::symlinkat(&*target, &new, &*name)?;
            continue;
        }
        let entry = mounts::open_beneath(old.as_fd(), Path::new(&name))?;
        let kind = TargetKind::from_fd(entry.as_fd())?;
        let target = mounts::open_target(new.as_fd(), Path::new(&name), kind, launch.owner())?;
        mounts::attach(&mounts::copy(entry.as_fd(), false)?, target.as_fd())?;
    }
    mounts::attach(&new, old.as_fd())
}

fn entries(dir: &OwnedFd) -> io::Result<Vec<(OsString, FileType)>> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(dir, ".", flags, Mode::empty())?;
    let mut found = Vec::new();
    for entry in Dir::read_from(&readable)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            found.push((name.to_owned(), entry.file_type()));
        }
        if found.len() > MAX_ENTRIES {
            return Err(Errno::TOOBIG.into());
        }
    }
    Ok(found)
}
