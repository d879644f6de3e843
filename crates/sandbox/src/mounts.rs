//! Mounts as descriptors: a mount is made detached, gets its attributes, and is then attached to a
//! target that was opened without following symbolic links. No mount call resolves a path of the
//! inside, because its contents are untrusted.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use crate::spec::Spec;
use crate::sys;

pub(crate) const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub(crate) const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub(crate) const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;
pub(crate) const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;

const MIN_TMPFS_BYTES: u64 = 1 << 20;

/// A new filesystem, not yet attached anywhere.
pub(crate) fn filesystem(
    kind: &str,
    options: &[(&str, &str)],
    attributes: u64,
) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(&context, *key)?;
        } else {
            rustix::mount::fsconfig_set_string(&context, *key, *value)?;
        }
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::from_bits_retain(attributes as u32);
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(mount)
}

/// A tmpfs that belongs to `owner`.
pub(crate) fn tmpfs(
    mode: &str,
    size: &str,
    owner: (u32, u32),
    attributes: u64,
) -> io::Result<OwnedFd> {
    let (uid, gid) = (owner.0.to_string(), owner.1.to_string());
    let mut options = vec![("mode", mode), ("uid", &*uid), ("gid", &*gid)];
    if !size.is_empty() {
        options.push(("size", size));
    }
    filesystem("tmpfs", &options, attributes)
}

/// The parts of the sandbox's memory that its filesystems in memory may fill. Together they leave
/// enough for PID 1: killing processes frees nothing of what is in them.
pub(crate) const TMP_SHARE: u64 = 2;
pub(crate) const SHM_SHARE: u64 = 8;
pub(crate) const RUN_SHARE: u64 = 16;

/// The size of a tmpfs: a share of the memory limit, whether or not that is enforced, or of the
/// machine's memory.
pub(crate) fn memory_share(spec: &Spec, share: u64) -> String {
    let machine = || {
        let info = rustix::system::sysinfo();
        info.totalram as u64 * u64::from(info.mem_unit)
    };
    let memory = spec.limits.memory_bytes.unwrap_or_else(machine);
    (memory / share).max(MIN_TMPFS_BYTES).to_string()
}

/// A copy of the mount at an opened file or directory, not yet attached.
pub(crate) fn copy(source: BorrowedFd<'_>, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(rustix::mount::open_tree(source, "", flags)?)
}

/// Adds attributes to a mount.
pub(crate) fn restrict(mount: &OwnedFd, attributes: u64, recursive: bool) -> io::Result<()> {
    sys::set_mount_attributes(mount.as_fd(), attributes, None, recursive)
}

/// Shows a detached mount's files with the ids of a user namespace.
pub(crate) fn map_ids(mount: &OwnedFd, userns: BorrowedFd<'_>) -> io::Result<()> {
    sys::set_mount_attributes(mount.as_fd(), 0, Some(userns), false)
}

/// Attaches a mount to an opened target.
pub(crate) fn attach(mount: &OwnedFd, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, "", target, "", flags)?)
}

/// Opens a path of the host that the caller of this crate chose.
pub(crate) fn open_host(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Opens `path` below `base` without following any symbolic link.
pub(crate) fn open_beneath(base: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return open_step(base, OsStr::new(".")).map_err(Into::into);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(
        base,
        path,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

/// What kind of entry a mount has to be attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetKind {
    Directory,
    File,
}

impl TargetKind {
    pub(crate) fn from_fd(opened: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = rustix::fs::fstat(opened)?;
        let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        Ok(if is_dir { Self::Directory } else { Self::File })
    }
}

/// Opens the mount target `inside` below `root`; `owner` owns the entries that had to be created.
pub(crate) fn open_target(
    root: BorrowedFd<'_>,
    inside: &Path,
    kind: TargetKind,
    owner: (u32, u32),
) -> io::Result<OwnedFd> {
    let names: Vec<&OsStr> = inside
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let mut current = open_step(root, OsStr::new("."))?;
    for (index, name) in names.iter().enumerate() {
        let entry_kind = if index + 1 == names.len() {
            kind
        } else {
            TargetKind::Directory
        };
        current = match open_step(current.as_fd(), name) {
            Ok(next) => next,
            Err(Errno::NOENT) => {
                create(current.as_fd(), name, entry_kind, owner)?;
                open_step(current.as_fd(), name)?
            }
            Err(error) => return Err(error.into()),
        };
    }
    Ok(current)
}

fn open_step(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(
        dir,
        name,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )
}

fn create(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    kind: TargetKind,
    owner: (u32, u32),
) -> io::Result<()> {
    match kind {
        TargetKind::Directory => rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755))?,
        TargetKind::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
        }
    }
    chown_entry(dir, name, owner)
}

/// Changes the owner of an entry, unless it is already the owner.
pub(crate) fn chown_entry(dir: BorrowedFd<'_>, name: &OsStr, owner: (u32, u32)) -> io::Result<()> {
    let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statat(dir, name, nofollow)?;
    if (stat.st_uid, stat.st_gid) == owner {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
    Ok(rustix::fs::chownat(
        dir,
        name,
        Some(uid),
        Some(gid),
        nofollow,
    )?)
}
