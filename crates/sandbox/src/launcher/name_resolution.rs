//! Name resolution inside: `resolv.conf` and `hosts` are often links into `/run`, of which a sandbox
//! has its own. The targets of such links are copied.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::Launch;
use crate::mounts::{self, TargetKind};
use crate::spec::Spec;

const FILES: &[&str] = &["/etc/resolv.conf", "/etc/hosts"];
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Writes the copies into the new root.
pub(super) fn provide(launch: &Launch<'_>, root: BorrowedFd<'_>) -> io::Result<()> {
    for (target, content) in contents(launch.spec)? {
        let file = mounts::open_target(root, &target, TargetKind::File, launch.owner())?;
        // Opened for writing through the descriptor, which was reached without links.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::write(path, content)?;
    }
    Ok(())
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
