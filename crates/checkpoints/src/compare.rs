//! Walks two trees at once.

use std::cmp::Ordering;
use std::io;

use crate::{EntryKind, Hash, ListingEntry, ObjectStore};

/// Calls `differs` for each entry that is not the same in both trees, directories too. What one of the scans
/// could not read is left out.
pub(crate) fn for_each_difference(
    store: &ObjectStore,
    from: Hash,
    to: Hash,
    differs: &mut impl FnMut(&[u8], Option<&ListingEntry>, Option<&ListingEntry>),
) -> io::Result<()> {
    let mut pending = vec![(Vec::new(), Some(from), Some(to))];
    while let Some((path, from, to)) = pending.pop() {
        if from == to {
            continue;
        }
        let read =
            |hash: Option<Hash>| hash.map_or(Ok(Default::default()), |it| store.read_listing(it));
        let (old, new) = (read(from)?.entries, read(to)?.entries);
        for (old, new) in pairs(&old, &new) {
            let is_unknown = |entry: Option<&ListingEntry>| {
                entry.is_some_and(|it| it.kind == EntryKind::Unknown)
            };
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
            differs(&below, old, new);
            let (old, new) = (directory(old), directory(new));
            if old.is_some() || new.is_some() {
                pending.push((below, old, new));
            }
        }
    }
    Ok(())
}

/// The listing of an entry that is a directory.
pub(crate) fn directory(entry: Option<&ListingEntry>) -> Option<Hash> {
    let directory = entry.filter(|entry| entry.kind == EntryKind::Directory);
    directory.map(|entry| entry.hash)
}

/// The entries of two sorted lists, by name.
fn pairs<'a>(
    old: &'a [ListingEntry],
    new: &'a [ListingEntry],
) -> impl Iterator<Item = (Option<&'a ListingEntry>, Option<&'a ListingEntry>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
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
