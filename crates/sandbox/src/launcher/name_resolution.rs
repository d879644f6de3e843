//! Name resolution inside: `resolv.conf` and `hosts` are often links into `/run`, of which a sandbox
//! has its own. The targets of such links are copied. A sandbox whose names are resolved inside gets a
//! `resolv.conf` of its own.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::{Launch, mount_point};
use crate::mounts::{self, TargetKind};
use crate::spec::{NetworkNamespace, Spec};

const RESOLVER_FILE: &str = "/etc/resolv.conf";
const FILES: &[&str] = &[RESOLVER_FILE, "/etc/hosts"];
/// In `/run`, mounted over the host's file.
const OWN_FILE_NAME: &str = "resolv.conf";
const OWN_RESOLVER: &str = "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n";
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Writes the copies into the new root.
pub(super) fn provide(launch: &Launch<'_>, root: BorrowedFd<'_>) -> io::Result<()> {
    for (target, content) in contents(launch.spec)? {
        if !target.starts_with("/run") {
            mount_over(launch, root, &target, &content)?;
            continue;
        }
        let file = mounts::open_target(root, &target, TargetKind::File, launch.owner())?;
        // Opened for writing through the descriptor, which was reached without links.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::write(path, content)?;
    }
    Ok(())
}

/// Mounts a file over one of the host's, which the copy-on-write layer then does not get a copy of: the next
/// start may have another network.
fn mount_over(
    launch: &Launch<'_>,
    root: BorrowedFd<'_>,
    target: &Path,
    content: &[u8],
) -> io::Result<()> {
    let name = Path::new("/run").join(OWN_FILE_NAME);
    let file = mounts::open_target(root, &name, TargetKind::File, launch.owner())?;
    fs::write(format!("/proc/self/fd/{}", file.as_raw_fd()), content)?;
    let mount = mounts::copy(file.as_fd(), false)?;
    let target = mount_point::open_target(launch, root, target, TargetKind::File)?;
    mounts::attach(&mount, target.as_fd())
}

/// Writes the copies into a directory of the host, for binds: the target inside and the source.
pub(super) fn copies(spec: &Spec, dir: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut copies = Vec::new();
    for (index, (target, content)) in contents(spec)?.into_iter().enumerate() {
        let source = dir.join(format!("hosts-{index}"));
        fs::write(&source, content)?;
        copies.push((target, source));
    }
    Ok(copies)
}

/// The files that are needed besides the host's `/etc`, by their paths inside.
fn contents(spec: &Spec) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for file in FILES {
        if *file == RESOLVER_FILE && spec.network == NetworkNamespace::Policy {
            let target = outside_target(Path::new(file))
                .or_else(|| fs::canonicalize(file).ok())
                .unwrap_or_else(|| PathBuf::from(file));
            found.push((target, OWN_RESOLVER.as_bytes().to_vec()));
            continue;
        }
        let Some(target) = outside_target(Path::new(file)) else {
            continue;
        };
        if spec
            .binds
            .iter()
            .any(|bind| target.starts_with(&bind.inside))
        {
            continue;
        }
        // A link that is broken on the host is also broken inside.
        if let Ok(opened) = File::open(file) {
            let mut content = Vec::new();
            opened.take(MAX_FILE_BYTES).read_to_end(&mut content)?;
            found.push((target, content));
        }
    }
    Ok(found)
}

/// The target of a link below `/etc`, if it is in `/run`.
fn outside_target(file: &Path) -> Option<PathBuf> {
    let link = fs::read_link(file).ok()?;
    let joined = file.parent()?.join(link);
    let parent = fs::canonicalize(joined.parent()?).ok()?;
    let target = parent.join(joined.file_name()?);
    target.starts_with("/run").then_some(target)
}
