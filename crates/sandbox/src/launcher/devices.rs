//! The devices of a sandbox: only the few that every program expects.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::{Launch, StepContext, StepResult};
use crate::mounts::{self, NOEXEC, NOSUID, RDONLY, TargetKind};

const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
const LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Mounts everything below `/dev` but the terminals, which need the sandbox's own namespaces.
pub(super) fn build(launch: &Launch<'_>, root: BorrowedFd<'_>) -> StepResult<()> {
    let owner = launch.owner();
    let step = "mount /dev";
    let dev = mounts::tmpfs("0755", "1m", owner, NOSUID | NOEXEC).step(step)?;
    let target =
        mounts::open_target(root, Path::new("/dev"), TargetKind::Directory, owner).step(step)?;
    mounts::attach(&dev, target.as_fd()).step(step)?;
    for name in DEVICES {
        let step = format!("bind /dev/{name}");
        let device = mounts::open_host(&Path::new("/dev").join(name)).step(&*step)?;
        let mount = mounts::copy(device.as_fd(), false).step(&*step)?;
        // A read-only mount still allows writing to the device, but not changing its mode.
        mounts::restrict(&mount, RDONLY | NOSUID | NOEXEC, false).step(&*step)?;
        let target = mounts::open_target(dev.as_fd(), Path::new(name), TargetKind::File, owner)
            .step(&*step)?;
        mounts::attach(&mount, target.as_fd()).step(step)?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(*target, &dev, *name).step(step)?;
        mounts::chown_entry(dev.as_fd(), name.as_ref(), owner).step(step)?;
    }
    let size = mounts::memory_share(launch.spec, mounts::SHM_SHARE);
    let shm = mounts::tmpfs("1777", &size, owner, NOSUID | NOEXEC | mounts::NODEV).step(step)?;
    let target = mounts::open_target(dev.as_fd(), Path::new("shm"), TargetKind::Directory, owner)
        .step(step)?;
    mounts::attach(&shm, target.as_fd()).step(step)?;
    mounts::open_target(dev.as_fd(), Path::new("pts"), TargetKind::Directory, owner).step(step)?;
    Ok(())
}

/// Mounts a `devpts` of the sandbox's own.
pub(super) fn terminals(root: BorrowedFd<'_>) -> StepResult<()> {
    let step = "mount /dev/pts";
    let options = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")];
    let pts = mounts::filesystem("devpts", &options, NOSUID | NOEXEC).step(step)?;
    let target = mounts::open_beneath(root, Path::new("dev/pts")).step(step)?;
    mounts::attach(&pts, target.as_fd()).step(step)
}
