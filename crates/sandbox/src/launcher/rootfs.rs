//! The root filesystem of a sandbox: a small tmpfs with an allowlist of the host's directories and
//! the binds of the specification. The launcher builds it if it is root; otherwise it is built in the
//! sandbox's own namespaces.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::overlay::Content::{Local, Public, Settings};
use super::{
    Directories, Launch, StepContext, StepResult, devices, kept_owner, mount_point,
    name_resolution, overlay, protect,
};
use crate::launch::MOUNT_POINT;
use crate::mounts::{self, NODEV, NOSUID, RDONLY, TargetKind};
use crate::report::{DirectoryAccess, IdMapping};
use crate::spec::{Bind, Spec};

/// The new root, relative to the scratch.
pub(super) const NEW_ROOT: &str = "new";

const SHARED: &[(&str, overlay::Content)] = &[
    ("/usr", Public),
    ("/usr/local", Local),
    ("/etc", Settings),
    ("/opt", Local),
    ("/var/lib/dpkg", Public),
    ("/var/lib/apt", Public),
    ("/var/lib/rpm", Public),
    ("/var/lib/pacman", Public),
    ("/var/cache/apt", Public),
    ("/var/cache/debconf", Settings),
];

/// Top-level entries that are links into `/usr` on most systems and directories on some.
pub(super) const TOP_LEVEL: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Package stores, which are never changed in place and too large for an overlay.
pub(super) const STORES: &[&str] = &["/nix/store", "/gnu/store"];

/// Mounts the tmpfs on which the root filesystem is built, and enters it.
pub(super) fn scratch(launch: &Launch<'_>) -> StepResult<OwnedFd> {
    let step = "mount a scratch filesystem";
    let target = mounts::open_host(&launch.spec.state_dir.join(MOUNT_POINT)).step(step)?;
    let mount = mounts::tmpfs("0755", "4m", launch.owner(), NOSUID | NODEV).step(step)?;
    mounts::attach(&mount, target.as_fd()).step(step)?;
    // Through the mount's own descriptor: the path still leads to the directory below it.
    rustix::process::fchdir(&mount).step(step)?;
    Ok(mount)
}

/// Builds the new root below the scratch, which must be the current directory.
pub(super) fn build(launch: &Launch<'_>, scratch: &OwnedFd) -> StepResult<Directories> {
    rustix::process::fchdir(scratch).step("enter the scratch filesystem")?;
    overlay::prepare(launch).step("open the layers directory")?;
    let root = new_root(launch).step("mount the root filesystem")?;
    let root = root.as_fd();
    let mut directories = Directories::new();

    overlay::mount_var(launch, root).step("mount /var")?;
    overlay::move_local_layer().step("mount /usr/local")?;
    for (dir, content) in shared() {
        // Only with shifted ids does root inside own the host's files in `/usr`.
        let is_separate = dir != Path::new("/usr/local") || launch.userns.is_some();
        if !is_separate {
            continue;
        }
        let access = overlay::mount_shared(launch, root, &dir, content)?;
        // Without shifted ids, root could read everything in them; copies contain them already.
        let is_readable = launch.ids == IdMapping::Identity && content != Public;
        if !is_readable && (content != Settings || launch.userns.is_none()) {
            mount_submounts(root, &dir, &access);
        }
        directories.push((dir, access));
    }
    for store in STORES {
        let store = Path::new(store);
        if store.is_dir() {
            bind(launch, root, &read_only(store)).step(format!("mount {}", store.display()))?;
        }
    }
    top_level_links(launch, root).step("link the top-level directories")?;
    super::inject_fault("in build")?;
    devices::build(launch, root)?;
    for (dir, mode, share) in [
        ("/tmp", "1777", mounts::TMP_SHARE),
        ("/run", "0755", mounts::RUN_SHARE),
    ] {
        if !launch.spec.binds_to(dir) {
            let size = mounts::memory_share(launch.spec, share);
            let mount = mounts::tmpfs(mode, &size, launch.owner(), NOSUID | NODEV)
                .step(format!("mount {dir}"))?;
            mount_at(launch, root, &mount, dir).step(format!("mount {dir}"))?;
        }
    }
    name_resolution::provide(launch, root).step("provide the files for name resolution")?;
    for dir in ["/root", "/home", "/proc", "/sys", "/mnt", "/srv"] {
        mounts::open_target(root, Path::new(dir), TargetKind::Directory, launch.owner())
            .step(format!("make {dir}"))?;
    }
    for bound in in_order(&launch.spec.binds) {
        bind(launch, root, bound).step(bind_step(bound))?;
    }
    let init = Bind {
        host: launch.spec.init.binary.clone(),
        inside: launch.spec.init.inside.clone(),
        read_only: true,
        owner: None,
    };
    bind(launch, root, &init).step("bind the program of PID 1")?;
    protect::protect(root, &launch.spec.protected, launch.owner())?;
    Ok(directories)
}

fn new_root(launch: &Launch<'_>) -> io::Result<OwnedFd> {
    fs::create_dir(NEW_ROOT)?;
    let mount = mounts::tmpfs("0755", "4m", launch.owner(), NOSUID | NODEV)?;
    mounts::attach(&mount, mounts::open_host(Path::new(NEW_ROOT))?.as_fd())?;
    Ok(mount)
}

/// The directories of the host to share that exist and are not links.
pub(super) fn shared() -> Vec<(PathBuf, overlay::Content)> {
    let is_real = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    let listed = SHARED
        .iter()
        .map(|(dir, content)| (PathBuf::from(dir), *content));
    let top = TOP_LEVEL
        .iter()
        .map(|name| (Path::new("/").join(name), Public));
    listed.chain(top).filter(|(dir, _)| is_real(dir)).collect()
}

fn top_level_links(launch: &Launch<'_>, root: BorrowedFd<'_>) -> io::Result<()> {
    for name in TOP_LEVEL {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            rustix::fs::symlinkat(&target, root, *name)?;
            mounts::chown_entry(root, name.as_ref(), launch.owner())?;
        }
    }
    Ok(())
}

/// Mounts the filesystems below a shared directory, which an overlay does not include.
fn mount_submounts(root: BorrowedFd<'_>, dir: &Path, access: &DirectoryAccess) {
    if *access != DirectoryAccess::CopyOnWrite {
        return;
    }
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for path in table.lines().filter_map(|line| line.split(' ').nth(4)) {
        let path = Path::new(path);
        if path == dir || !path.starts_with(dir) {
            continue;
        }
        // A filesystem that cannot be mounted stays invisible.
        let _ = mount_submount(root, path);
    }
}

fn mount_submount(root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let target = mounts::open_beneath(root, path.strip_prefix("/").unwrap_or(path))?;
    let source = mounts::open_host(path)?;
    if TargetKind::from_fd(target.as_fd())? != TargetKind::from_fd(source.as_fd())? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mount = mounts::copy(source.as_fd(), false)?;
    mounts::restrict(&mount, RDONLY | NOSUID | NODEV, false)?;
    mounts::attach(&mount, target.as_fd())
}

fn read_only(dir: &Path) -> Bind {
    Bind {
        host: dir.to_owned(),
        inside: dir.to_owned(),
        read_only: true,
        owner: None,
    }
}

/// Parents before the binds below them.
pub(super) fn in_order(binds: &[Bind]) -> Vec<&Bind> {
    let mut ordered: Vec<&Bind> = binds.iter().collect();
    ordered.sort_by_key(|bind| bind.inside.components().count());
    ordered
}

fn bind(launch: &Launch<'_>, root: BorrowedFd<'_>, bind: &Bind) -> io::Result<()> {
    let source = open_source(launch.spec, bind)?;
    let kind = TargetKind::from_fd(source.as_fd())?;
    // In a user namespace of its own, a process cannot leave out the filesystems below a directory.
    let may_have_mounts = bind.read_only || bind.owner.is_some();
    let recursive = may_have_mounts && matches!(launch.ids, IdMapping::Single { .. });
    let mount = mounts::copy(source.as_fd(), recursive)?;
    if let Some(owner) = bind.owner {
        kept_owner::show_as_roots(launch, &mount, &source, owner)?;
        let read_only = if bind.read_only { RDONLY } else { 0 };
        mounts::restrict(&mount, read_only | NOSUID | NODEV, recursive)?;
    } else if bind.read_only {
        // Files of the host's root appear as root's; without support for that, as the overflow user's.
        let owner = rustix::fs::fstat(&source)?.st_uid;
        if let Some(userns) = &launch.userns
            && super::ids::unshifted(owner).is_none()
        {
            let _ = mounts::map_ids(&mount, userns.as_fd());
        }
        mounts::restrict(&mount, RDONLY | NOSUID | NODEV, recursive)?;
    } else {
        mounts::restrict(&mount, NOSUID | NODEV, false)?;
    }
    let mut target = mount_point::open_target(launch, root, &bind.inside, kind)?;
    if bind.read_only {
        // Directories that exist only for this mount; renamed, another could take its place.
        let above: Vec<&Path> = bind.inside.ancestors().skip(1).collect();
        for dir in above.into_iter().rev().filter(|dir| !dir.exists()) {
            protect::hold_directory(root, dir)?;
        }
        target = mount_point::open_target(launch, root, &bind.inside, kind)?;
    }
    mounts::attach(&mount, target.as_fd())
}

/// The step of a launch that makes a bind.
pub(super) fn bind_step(bind: &Bind) -> String {
    let inside = bind.inside.display();
    match bind.owner {
        None => format!("bind {inside}"),
        Some((uid, _)) => format!(
            "mount {} at {inside} so that its files stay those of user {uid} (as root that needs a \
             filesystem with id-mapped mounts, such as ext4, xfs, btrfs or tmpfs of a recent kernel; without \
             root the directory must belong to the server's user; no part of its path may be a link)",
            bind.host.display()
        ),
    }
}

/// Opens the source of a bind. In a directory that the sandbox may write to, symbolic links are not
/// followed, because the sandbox may have made them.
pub(super) fn open_source(spec: &Spec, bind: &Bind) -> io::Result<OwnedFd> {
    let host = &bind.host;
    if bind.owner.is_some() {
        // A sandbox of another directory above it may have made links.
        let root = mounts::open_host(Path::new("/"))?;
        return mounts::open_beneath(root.as_fd(), host.strip_prefix("/").unwrap_or(host));
    }
    let writable = spec
        .binds
        .iter()
        .filter(|other| !other.read_only && other.host != *host)
        .filter_map(|other| Some((other, host.strip_prefix(&other.host).ok()?)))
        .min_by_key(|(other, _)| other.host.components().count());
    match writable {
        Some((base, relative)) => {
            mounts::open_beneath(mounts::open_host(&base.host)?.as_fd(), relative)
        }
        None => mounts::open_host(host),
    }
}

fn mount_at(
    launch: &Launch<'_>,
    root: BorrowedFd<'_>,
    mount: &OwnedFd,
    inside: &str,
) -> io::Result<()> {
    let target = mounts::open_target(
        root,
        Path::new(inside),
        TargetKind::Directory,
        launch.owner(),
    )?;
    mounts::attach(mount, target.as_fd())
}

/// Makes the sandbox's root the owner of the writable binds, unless it is already. Those of a person are
/// left alone.
pub(super) fn chown_binds(launch: &Launch<'_>) -> StepResult<()> {
    let owner = launch.owner();
    let binds = launch.spec.binds.iter();
    for bind in binds.filter(|bind| !bind.read_only && bind.owner.is_none()) {
        let step = format!("change the owner of {}", bind.host.display());
        let source = open_source(launch.spec, bind).step(&*step)?;
        if rustix::fs::fstat(&source).step(&*step)?.st_uid == owner.0 {
            continue;
        }
        crate::chown::chown_tree(&bind.host, owner)
            .map_err(io::Error::other)
            .step(step)?;
    }
    Ok(())
}
