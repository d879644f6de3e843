//! Name resolution inside: `resolv.conf` and `hosts` are often links into `/run`, which a sandbox
//! has of its own. What such a link leads to is copied.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::Launch;
use crate::mounts::{self, TargetKind};
use crate::spec::Spec;

const FILES: &[&str] = &["/etc/resolv.conf", "/etc/hosts"];
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Puts the copies into the new root.
pub(super) fn provide(launch: &Launch<'_>, root: BorrowedFd<'_>) -> io::Result<()> {
    for (target, content) in contents(launch.spec)? {
        let place = mounts::open_target(root, &target, TargetKind::File, launch.owner())?;
        // Opened for writing through its descriptor: the place was reached without links.
        let path = format!("/proc/self/fd/{}", place.as_raw_fd());
        fs::write(path, content)?;
    }
    Ok(())
}

/// Puts the copies into a directory of the host, to be bound: target inside, and source.
pub(super) fn copies(spec: &Spec, dir: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut copies = Vec::new();
    for (index, (target, content)) in contents(spec)?.into_iter().enumerate() {
        let source = dir.join(format!("hosts-{index}"));
        fs::write(&source, content)?;
        copies.push((target, source));
    }
    Ok(copies)
}

/// What has to be there besides the host's `/etc`, by its path inside.
fn contents(spec: &Spec) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for file in FILES {
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
        // A link to nowhere on the host is one inside as well.
        if let Ok(opened) = File::open(file) {
            let mut content = Vec::new();
            opened.take(MAX_FILE_BYTES).read_to_end(&mut content)?;
            found.push((target, content));
        }
    }
    Ok(found)
}

/// Where a link below `/etc` leads, if that is in `/run`.
fn outside_target(file: &Path) -> Option<PathBuf> {
    let link = fs::read_link(file).ok()?;
    let joined = file.parent()?.join(link);
    let parent = fs::canonicalize(joined.parent()?).ok()?;
    let target = parent.join(joined.file_name()?);
    target.starts_with("/run").then_some(target)
}
