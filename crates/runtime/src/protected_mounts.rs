//! Protected paths for runtimes that only know mounts of a path of the host: the path is mounted
//! read-only onto itself, and every directory above it onto itself, because a mount point cannot be
//! renamed.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use crate::{ContainerSpec, Mount, ProtectedPath, Result, RuntimeError};

/// The same specification with mounts in place of protected paths. Directories that do not exist are
/// made; no process of the container may run meanwhile.
pub(crate) fn resolve(spec: &ContainerSpec) -> Result<ContainerSpec> {
    let mut resolved = spec.clone();
    let mut held = BTreeSet::new();
    for protected in std::mem::take(&mut resolved.protected) {
        for mount in mounts(spec, &protected)? {
            // A second mount would cover what is protected below the first.
            if held.insert(mount.inside.clone()) {
                resolved.mounts.push(mount);
            }
        }
    }
    Ok(resolved)
}

fn mounts(spec: &ContainerSpec, protected: &ProtectedPath) -> Result<Vec<Mount>> {
    let ProtectedPath { within, path } = protected;
    let writable = spec.mounts.iter().filter(|mount| !mount.read_only);
    let base = writable
        .filter(|mount| within.starts_with(&mount.inside))
        .max_by_key(|mount| mount.inside.components().count());
    let Some(base) = base else {
        return Ok(Vec::new());
    };
    let top = within.strip_prefix(&base.inside).unwrap_or(Path::new(""));
    let (mut host, mut inside) = (base.host.join(top), within.clone());
    if !host.is_dir() {
        return Ok(Vec::new());
    }
    let held = |host: &Path, inside: &Path, read_only| Mount {
        host: host.to_owned(),
        inside: inside.to_owned(),
        read_only,
        owner: base.owner,
    };
    let mut mounts = Vec::new();
    if inside != base.inside {
        mounts.push(held(&host, &inside, false));
    }
    let count = path.components().count();
    for (index, name) in path.components().enumerate() {
        host.push(name);
        inside.push(name);
        let is_last = index + 1 == count;
        make_directory(&host, is_last, base.owner).map_err(|error| {
            RuntimeError::Failed(format!(
                "the protected path {} cannot be protected: {error}; every part of it but the last must \
                 be a directory, and none a symbolic link",
                inside.display()
            ))
        })?;
        mounts.push(held(&host, &inside, is_last));
    }
    Ok(mounts)
}

/// Makes a directory if nothing is there, and gives it to `owner`; refuses links, and files on the way to the
/// path.
fn make_directory(host: &Path, is_last: bool, owner: Option<(u32, u32)>) -> io::Result<()> {
    match std::fs::symlink_metadata(host) {
        Ok(found) if found.is_symlink() => Err(io::Error::other("it is behind a symbolic link")),
        Ok(found) if !found.is_dir() && !is_last => Err(io::ErrorKind::NotADirectory.into()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir(host)?;
            match owner {
                Some((uid, gid)) => std::os::unix::fs::lchown(host, Some(uid), Some(gid)),
                None => Ok(()),
            }
        }
        Err(error) => Err(error),
    }
}
