//! The devices of a sandbox: the handful that every program expects, no more.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::{At, Attempt, Launch};
use crate::mounts::{self, Kind, NOEXEC, NOSUID, RDONLY};

const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
const LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Everything below `/dev` but the terminals, which need the sandbox's own namespaces.
pub(super) fn build(launch: &Launch<'_>, root: BorrowedFd<'_>) -> Attempt<()> {
    let owner = launch.owner();
    let at = "mount /dev";
    let dev = mounts::tmpfs("0755", "1m", owner, NOSUID | NOEXEC).at(at)?;
    let place = mounts::place(root, Path::new("/dev"), Kind::Directory, owner).at(at)?;
    mounts::attach(&dev, place.as_fd()).at(at)?;
    for name in DEVICES {
        let at = format!("bind /dev/{name}");
        let device = mounts::open_host(&Path::new("/dev").join(name)).at(&*at)?;
        let mount = mounts::copy(device.as_fd(), false).at(&*at)?;
        // Writing to a device is not writing to its mount; changing its mode is.
        mounts::restrict(&mount, RDONLY | NOSUID | NOEXEC, false).at(&*at)?;
        let place = mounts::place(dev.as_fd(), Path::new(name), Kind::File, owner).at(&*at)?;
        mounts::attach(&mount, place.as_fd()).at(at)?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(*target, &dev, *name).at(at)?;
        mounts::give(dev.as_fd(), name.as_ref(), owner).at(at)?;
    }
    let shm = mounts::tmpfs("1777", "", owner, NOSUID | NOEXEC | mounts::NODEV).at(at)?;
    let place = mounts::place(dev.as_fd(), Path::new("shm"), Kind::Directory, owner).at(at)?;
    mounts::attach(&shm, place.as_fd()).at(at)?;
    mounts::place(dev.as_fd(), Path::new("pts"), Kind::Directory, owner).at(at)?;
    Ok(())
}

/// Terminals of the sandbox's own.
pub(super) fn terminals(root: BorrowedFd<'_>) -> Attempt<()> {
    let at = "mount /dev/pts";
    let options = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")];
    let pts = mounts::filesystem("devpts", &options, NOSUID | NOEXEC).at(at)?;
    let place = mounts::open_beneath(root, Path::new("dev/pts")).at(at)?;
    mounts::attach(&pts, place.as_fd()).at(at)
}
