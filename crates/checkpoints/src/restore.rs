//! What has to be done to a directory to make it that of an earlier tree.

use std::io;

use crate::compare::{directory, for_each_difference};
use crate::{EntryKind, Hash, ObjectStore};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreAction {
    Remove,
    RemoveDirectory,
    CreateDirectory,
    WriteFile { content: Hash, mode: u16 },
    WriteLink { target: Hash },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreStep {
    pub path: Vec<u8>,
    pub action: RestoreAction,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestorePlan {
    /// In order.
    pub steps: Vec<RestoreStep>,
    /// Files of the tree that were too large to be kept: they stay as they are.
    pub not_kept: Vec<Vec<u8>>,
}

/// The way from the tree of a directory as it is now to another tree. What one of the trees does not know is
/// left alone.
pub fn restore_plan(store: &ObjectStore, now: Hash, wanted: Hash) -> io::Result<RestorePlan> {
    let (mut removals, mut directory_removals) = (Vec::new(), Vec::new());
    let (mut additions, mut not_kept) = (Vec::new(), Vec::new());
    for_each_difference(store, now, wanted, &mut |path, old, new| {
        let step = |action| RestoreStep {
            path: path.to_vec(),
            action,
        };
        let (old_directory, new_directory) = (directory(old), directory(new));
        match (old_directory, new_directory) {
            (Some(_), None) => directory_removals.push(step(RestoreAction::RemoveDirectory)),
            (None, Some(_)) => additions.push(step(RestoreAction::CreateDirectory)),
            _ => {}
        }
        let old_file = old.filter(|_| old_directory.is_none());
        match new.filter(|_| new_directory.is_none()) {
            None if old_file.is_some() => removals.push(step(RestoreAction::Remove)),
            None => {}
            Some(new) => match new.kind {
                EntryKind::File => additions.push(step(RestoreAction::WriteFile {
                    content: new.hash,
                    mode: new.mode,
                })),
                EntryKind::Link => {
                    additions.push(step(RestoreAction::WriteLink { target: new.hash }));
                }
                EntryKind::Directory | EntryKind::LargeFile | EntryKind::Unknown => {
                    not_kept.push(path.to_vec());
                }
            },
        }
    })?;
    // A directory is empty only when those below it are gone.
    directory_removals.sort_by(|a, b| b.path.cmp(&a.path));
    // A directory comes before what is in it.
    additions.sort_by(|a, b| a.path.cmp(&b.path));
    not_kept.sort();
    removals.extend(directory_removals);
    removals.extend(additions);
    Ok(RestorePlan {
        steps: removals,
        not_kept,
    })
}
