//! Binds of a person's own directory. Nothing in it may change its owner, so the mount itself shows the
//! person's files as those of the sandbox's root, and what root makes there is stored as the person's.
//! Files of other users in the directory have no owner inside: root has no rights to them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Signal;

use super::{Child, Launch, ids};
use crate::mounts;
use crate::report::IdMapping;
use crate::sys::{self, Cloned};

/// Gives a detached mount of `source`, which belongs to `owner`, the ids that the sandbox needs.
pub(super) fn show_as_roots(
    launch: &Launch<'_>,
    mount: &OwnedFd,
    source: &OwnedFd,
    owner: (u32, u32),
) -> io::Result<()> {
    match launch.ids {
        // Built in the user namespace, where only this user has a name: root.
        IdMapping::Single { uid, .. } => {
            check(source, (0, owner.1))?;
            require_user(owner, uid)
        }
        IdMapping::Identity if owner.0 == 0 => check(source, owner),
        ids => {
            check(source, owner)?;
            let users = mapping(owner, ids.owner())?;
            mounts::map_ids(mount, users.as_fd())
        }
    }
}

/// Fails if the directory belongs to another user than was expected.
pub(super) fn check(source: &OwnedFd, owner: (u32, u32)) -> io::Result<()> {
    let stat = rustix::fs::fstat(source)?;
    let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
    if is_dir && stat.st_uid == owner.0 {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EPERM))
}

/// Fails if files that the sandbox makes would not be the owner's.
pub(super) fn require_user(owner: (u32, u32), uid: u32) -> io::Result<()> {
    if owner.0 == uid {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EPERM))
}

/// A user namespace that maps one user and group, as mounts take it: from the ids in the filesystem to
/// those of processes.
fn mapping(stored: (u32, u32), shown: (u32, u32)) -> io::Result<OwnedFd> {
    let pid = match sys::clone3(libc::CLONE_NEWUSER, None)? {
        // It only has to exist until the namespace is open.
        Cloned::Child => {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            sys::wait_for_termination(std::time::Duration::from_secs(60));
            std::process::exit(0);
        }
        Cloned::Parent { child, .. } => child,
    };
    let child = Child { pid };
    let proc = format!("/proc/{}", child.pid.as_raw_nonzero());
    fs::write(
        format!("{proc}/uid_map"),
        format!("{} {} 1", stored.0, shown.0),
    )?;
    fs::write(
        format!("{proc}/gid_map"),
        format!("{} {} 1", stored.1, shown.1),
    )?;
    ids::user_namespace(child.pid)
}
