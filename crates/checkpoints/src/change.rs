//! The differences between two trees.

use std::collections::HashMap;
use std::io;

use crate::{EntryKind, Hash, ObjectStore, TreeEntry};

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
    pub old: Option<TreeEntry>,
    pub new: Option<TreeEntry>,
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

/// Calls `differs` for each file and link that is not the same in both trees.
pub(crate) fn for_each_difference(
    store: &ObjectStore,
    from: Hash,
    to: Hash,
    differs: &mut impl FnMut(&[u8], Option<&TreeEntry>, Option<&TreeEntry>),
) -> io::Result<()> {
    let mut pending = vec![(Vec::new(), Some(from), Some(to))];
    while let Some((path, from, to)) = pending.pop() {
        if from == to {
            continue;
        }
        let read =
            |hash: Option<Hash>| hash.map_or(Ok(Default::default()), |it| store.read_tree(it));
        let (old, new) = (read(from)?.entries, read(to)?.entries);
        let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
        loop {
            let (left, right) = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(_), None) => (old.next(), None),
                (None, Some(_)) => (None, new.next()),
                (Some(left), Some(right)) => match left.name.cmp(&right.name) {
                    std::cmp::Ordering::Less => (old.next(), None),
                    std::cmp::Ordering::Greater => (None, new.next()),
                    std::cmp::Ordering::Equal => (old.next(), new.next()),
                },
            };
            let is_unknown = |entry: Option<&TreeEntry>| {
                entry.is_some_and(|entry| entry.kind == EntryKind::Unknown)
            };
            let Some(name) = left.or(right).map(|entry| &entry.name) else {
                continue;
            };
            if left == right || is_unknown(left) || is_unknown(right) {
                continue;
            }
            let mut below = path.clone();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(name);
            let directory = |entry: Option<&TreeEntry>| {
                entry
                    .filter(|entry| entry.kind == EntryKind::Directory)
                    .map(|entry| entry.hash)
            };
            let file = |entry: Option<&'_ TreeEntry>| {
                entry
                    .filter(|entry| entry.kind != EntryKind::Directory)
                    .cloned()
            };
            let (left_file, right_file) = (file(left), file(right));
            if left_file.is_some() || right_file.is_some() {
                differs(&below, left_file.as_ref(), right_file.as_ref());
            }
            let (left, right) = (directory(left), directory(right));
            if left.is_some() || right.is_some() {
                pending.push((below, left, right));
            }
        }
    }
    Ok(())
}

/// Makes one change of a deleted and an added file with the same content.
fn join_renames(changes: &mut Vec<Change>) {
    let is_file = |entry: &TreeEntry| entry.kind == EntryKind::File && entry.size > 0;
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
