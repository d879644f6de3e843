//! Name resolution inside: `resolv.conf` and `hosts` are often links into `/run`, which a sandbox
//! has of its own. What such a link leads to is copied.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::Launch;
use crate::mounts::{self, Kind};

const FILES: &[&str] = &["/etc/resolv.conf", "/etc/hosts"];
const MAX_SIZE: u64 = 256 * 1024;

pub(super) fn provide(launch: &Launch<'_>, root: BorrowedFd<'_>) -> io::Result<()> {
    for file in FILES {
        let Some(target) = outside_target(Path::new(file)) else {
            continue;
        };
        let taken = |bind: &crate::Bind| target.starts_with(&bind.inside);
        if launch.spec.binds.iter().any(taken) {
            continue;
        }
        let mut content = Vec::new();
        match File::open(file) {
            Ok(opened) => opened.take(MAX_SIZE).read_to_end(&mut content)?,
            // A link to nowhere on the host is one inside as well.
            Err(_) => continue,
        };
        let place = mounts::place(root, &target, Kind::File, launch.owner())?;
        // Opened for writing through its descriptor: the place was reached without links.
        use std::os::fd::AsRawFd;
        fs::write(
            format!("/proc/self/fd/{}", place.as_fd().as_raw_fd()),
            content,
        )?;
    }
    Ok(())
}

/// Where a link below `/etc` leads, if that is in `/run`.
fn outside_target(file: &Path) -> Option<PathBuf> {
    let link = fs::read_link(file).ok()?;
    let joined = file.parent()?.join(link);
    let parent = fs::canonicalize(joined.parent()?).ok()?;
    let target = parent.join(joined.file_name()?);
    target.starts_with("/run").then_some(target)
}
