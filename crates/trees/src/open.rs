//! Opens names that may be replaced at any moment.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

const DIR_FLAGS: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::RDONLY)
    .union(OFlags::CLOEXEC);

/// Opens a directory to read it. The last name of the path is not followed if it is a link.
pub fn open_dir(at: impl AsFd, path: impl Arg) -> Result<OwnedFd> {
    openat(at, path, DIR_FLAGS, Mode::empty())
}

/// Opens a directory by an absolute path to read it. No name of the path may be a link.
pub fn open_without_links(path: &Path) -> Result<OwnedFd> {
    // A directory on the way need not be readable.
    #[cfg(target_os = "linux")]
    const STEP_FLAGS: OFlags = OFlags::PATH
        .union(OFlags::DIRECTORY)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::CLOEXEC);
    #[cfg(not(target_os = "linux"))]
    const STEP_FLAGS: OFlags = DIR_FLAGS;
    let mut directory = openat(CWD, "/", STEP_FLAGS, Mode::empty())?;
    for part in path.components() {
        match part {
            Component::RootDir => {}
            Component::Normal(name) => {
                directory = openat(&directory, name, STEP_FLAGS, Mode::empty())?;
            }
            _ => return Err(Errno::INVAL),
        }
    }
    open_dir(&directory, ".")
}

/// Opens a regular file to read it, with what it was when it was opened. `None` if the name is
/// something else by now.
pub fn open_file(at: impl AsFd, name: &CStr) -> Result<Option<(File, Stat)>> {
    let Some(file) = open_regular(at, name)? else {
        return Ok(None);
    };
    let stat = fstat(&file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(is_file.then(|| (File::from(file), stat)))
}

/// `NONBLOCK` keeps a pipe, or a file with a lease, from blocking.
const FILE_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Opening a device can have an effect, so the kind is known before the file is opened.
#[cfg(target_os = "linux")]
fn open_regular(at: impl AsFd, name: &CStr) -> Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = openat(&at, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&path)?.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    openat(CWD, descriptor_path(&path), FILE_FLAGS, Mode::empty()).map(Some)
}

#[cfg(not(target_os = "linux"))]
fn open_regular(at: impl AsFd, name: &CStr) -> Result<Option<OwnedFd>> {
    let stat = rustix::fs::statat(&at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    openat(at, name, FILE_FLAGS | OFlags::NOFOLLOW, Mode::empty()).map(Some)
}

/// Lets the owner read, write and enter a directory; nothing else changes its mode.
#[cfg(target_os = "linux")]
pub(crate) fn allow_owner(at: impl AsFd, name: impl Arg) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = openat(at, name, flags, Mode::empty())?;
    let mode = Mode::from_raw_mode(fstat(&path)?.st_mode);
    if mode.contains(Mode::RWXU) {
        return Ok(());
    }
    // `fchmodat` would follow a link that took the directory's place meanwhile.
    rustix::fs::chmod(descriptor_path(&path), mode | Mode::RWXU)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn allow_owner(at: impl AsFd, name: impl Arg) -> Result<()> {
    rustix::fs::chmodat(at, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW)
}

#[cfg(target_os = "linux")]
fn descriptor_path(descriptor: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// What an entry is, without following it.
pub(crate) fn stat_at(at: impl AsFd, name: &CStr) -> Result<Stat> {
    rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(crate) fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Whether an error says that a name is not the directory that it was.
pub(crate) fn is_not_a_dir(error: Errno) -> bool {
    matches!(error, Errno::NOTDIR | Errno::LOOP)
}
