//! The differences between two trees.

use std::collections::HashMap;
use std::io;

use crate::compare::for_each_difference;
use crate::{EntryKind, Hash, ListingEntry, ObjectStore};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
    Renamed,
}

/// A file or link that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub path: Vec<u8>,
    pub old: Option<ListingEntry>,
    pub new: Option<ListingEntry>,
    /// The former path of a file with the same content.
    pub renamed_from: Option<Vec<u8>>,
}

impl Change {
    pub fn kind(&self) -> ChangeKind {
        match (&self.renamed_from, &self.old, &self.new) {
            (Some(_), ..) => ChangeKind::Renamed,
            (_, None, _) => ChangeKind::Added,
            (_, _, None) => ChangeKind::Deleted,
            _ => ChangeKind::Modified,
        }
    }
}

/// The differences from one tree to another, sorted by path. `.git` is left out, and so is what one of
/// the scans could not read.
pub fn changes(store: &ObjectStore, from: Hash, to: Hash) -> io::Result<Vec<Change>> {
    let mut found = Vec::new();
    for_each_difference(store, from, to, &mut |path, old, new| {
        let file = |entry: &&ListingEntry| entry.kind != EntryKind::Directory;
        let (old, new) = (old.filter(file), new.filter(file));
        if old.is_none() && new.is_none() {
            return;
        }
        let in_git = path.split(|byte| *byte == b'/').any(|name| name == b".git");
        let is_same = old
            .zip(new)
            .is_some_and(|(old, new)| old.is_same_for_git(new));
        if !in_git && !is_same {
            found.push(Change {
                path: path.to_vec(),
                old: old.cloned(),
                new: new.cloned(),
                renamed_from: None,
            });
        }
    })?;
    join_renames(&mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Makes one change of a deleted and an added file with the same content.
fn join_renames(changes: &mut Vec<Change>) {
    let is_file = |entry: &ListingEntry| entry.kind == EntryKind::File && entry.size > 0;
    let mut deleted: HashMap<Hash, Vec<usize>> = HashMap::new();
    for (index, change) in changes.iter().enumerate() {
        if let (Some(old), None) = (&change.old, &change.new)
            && is_file(old)
        {
            deleted.entry(old.hash).or_default().push(index);
        }
    }
    let mut joined = Vec::new();
    for index in 0..changes.len() {
        let change = &changes[index];
        let (None, Some(new)) = (&change.old, &change.new) else {
            continue;
        };
        if !is_file(new) {
            continue;
        }
        let Some(source) = deleted.get_mut(&new.hash).and_then(Vec::pop) else {
            continue;
        };
        let (path, old) = (changes[source].path.clone(), changes[source].old.clone());
        joined.push(source);
        let change = &mut changes[index];
        change.renamed_from = Some(path);
        change.old = old;
    }
    joined.sort_unstable();
    for index in joined.into_iter().rev() {
        changes.swap_remove(index);
    }
}
