//! What has to be done to a directory to make it that of an earlier tree.

use std::io;

use crate::{EntryKind, Hash, ObjectStore, TreeEntry};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreAction {
    Remove,
    RemoveDirectory,
    CreateDirectory,
    WriteFile {
        content: Hash,
        mode: u16,
    },
    WriteLink {
        target: Hash,
    },
    /// The tree has a file here that was too large to be kept: it stays as it is.
    NotKept,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreStep {
    pub path: Vec<u8>,
    pub action: RestoreAction,
}

/// The steps from the tree of a directory as it is now to another tree, in order. What one of the trees
/// does not know is left alone.
pub fn restore_steps(store: &ObjectStore, now: Hash, wanted: Hash) -> io::Result<Vec<RestoreStep>> {
    let (mut removals, mut directory_removals) = (Vec::new(), Vec::new());
    let mut additions = Vec::new();
    let mut pending = vec![(Vec::new(), Some(now), Some(wanted))];
    while let Some((path, now, wanted)) = pending.pop() {
        if now == wanted {
            continue;
        }
        let read =
            |hash: Option<Hash>| hash.map_or(Ok(Default::default()), |it| store.read_tree(it));
        let (now, wanted) = (read(now)?.entries, read(wanted)?.entries);
        for (old, new) in pairs(&now, &wanted) {
            let is_unknown =
                |entry: Option<&TreeEntry>| entry.is_some_and(|it| it.kind == EntryKind::Unknown);
            let Some(name) = old.or(new).map(|entry| &entry.name) else {
                continue;
            };
            if old == new || is_unknown(old) || is_unknown(new) {
                continue;
            }
            let mut below = path.clone();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(name);
            let directory = |entry: Option<&TreeEntry>| {
                let entry = entry.filter(|entry| entry.kind == EntryKind::Directory);
                entry.map(|entry| entry.hash)
            };
            let (old_directory, new_directory) = (directory(old), directory(new));
            let step = |action| RestoreStep {
                path: below.clone(),
                action,
            };
            match (old_directory, new_directory) {
                (Some(_), None) => directory_removals.push(step(RestoreAction::RemoveDirectory)),
                (None, Some(_)) => additions.push(step(RestoreAction::CreateDirectory)),
                _ => {}
            }
            let old_file = old.filter(|_| old_directory.is_none());
            match new.filter(|_| new_directory.is_none()) {
                None if old_file.is_some() => removals.push(step(RestoreAction::Remove)),
                None => {}
                Some(new) => additions.push(step(match new.kind {
                    EntryKind::File => RestoreAction::WriteFile {
                        content: new.hash,
                        mode: new.mode,
                    },
                    EntryKind::Link => RestoreAction::WriteLink { target: new.hash },
                    _ => RestoreAction::NotKept,
                })),
            }
            if old_directory.is_some() || new_directory.is_some() {
                pending.push((below, old_directory, new_directory));
            }
        }
    }
    // A directory is empty only when those below it are gone.
    directory_removals.sort_by(|a, b| b.path.cmp(&a.path));
    // A directory comes before what is in it.
    additions.sort_by(|a, b| a.path.cmp(&b.path));
    removals.extend(directory_removals);
    removals.extend(additions);
    Ok(removals)
}

/// The entries of two sorted lists, by name.
fn pairs<'a>(
    old: &'a [TreeEntry],
    new: &'a [TreeEntry],
) -> impl Iterator<Item = (Option<&'a TreeEntry>, Option<&'a TreeEntry>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
        use std::cmp::Ordering;
        let order = match (old.peek(), new.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.name.cmp(&new.name),
        };
        Some(match order {
            Ordering::Less => (old.next(), None),
            Ordering::Greater => (None, new.next()),
            Ordering::Equal => (old.next(), new.next()),
        })
    })
}
