//! Gives trees of files to the sandbox's root.

use std::path::Path;

use oubliette_trees::NewOwner;
use rustix::fs::{Gid, Stat, Uid};

use crate::launcher::ids::{IDS_PER_SANDBOX, unshifted};
use crate::{Error, Result};

/// Changes the owner of a file, or of a directory and everything in it, to the one of
/// [`crate::IdMapping::owner`]. Entries that already have an id of that range keep it.
pub(crate) fn chown_tree(path: &Path, owner: (u32, u32)) -> Result<()> {
    oubliette_trees::chown_tree(path, |stat| new_owner(stat, owner)).map_err(|source| {
        Error::io(
            format!("failed to change the owner of {}", path.display()),
            source,
        )
    })
}

fn new_owner(stat: &Stat, owner: (u32, u32)) -> NewOwner {
    let shift = |id: u32, base: u32| {
        let is_own = id >= base && id - base < IDS_PER_SANDBOX;
        (!is_own).then(|| base + unshifted(id).unwrap_or(0))
    };
    (
        shift(stat.st_uid, owner.0).map(Uid::from_raw),
        shift(stat.st_gid, owner.1).map(Gid::from_raw),
    )
}
