//! Changes as a patch that `git apply` takes.

use std::io;
use std::time::{Duration, Instant};

use oubliette_model::{path_to_text, quote_path};
use sha1::{Digest, Sha1};

use crate::git_binary::binary_patch;
use crate::lines;
use crate::{Change, EntryKind, ListingEntry, ObjectStore};

/// Git looks for a zero byte in this many bytes to tell that a file is binary.
const BINARY_CHECK_BYTES: usize = 8000;
const NO_OBJECT: &str = "0000000000000000000000000000000000000000";
/// More files, and more bytes, are not counted: that would delay the end of a turn.
const MAX_COUNTED_FILES: usize = 5000;
const MAX_COUNTED_BYTES: u64 = 64 << 20;
const MAX_COUNTING_TIME: Duration = Duration::from_secs(2);

/// The patch of one change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patch {
    pub text: String,
    pub added: u64,
    pub removed: u64,
    /// Whether a side is not text, or was not kept.
    pub is_binary: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounts {
    pub added: u64,
    pub removed: u64,
}

/// One side of a change, with its content.
struct Side {
    mode: &'static str,
    content: Vec<u8>,
}

impl Side {
    fn read(store: &ObjectStore, entry: &ListingEntry) -> io::Result<Self> {
        Ok(Self {
            mode: git_mode(entry),
            content: store.read(entry.hash)?,
        })
    }

    fn text(&self) -> Option<&str> {
        let start = &self.content[..self.content.len().min(BINARY_CHECK_BYTES)];
        let is_binary = start.contains(&0);
        std::str::from_utf8(&self.content)
            .ok()
            .filter(|_| !is_binary)
    }

    /// What git calls the content.
    fn object_id(&self) -> String {
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {}\0", self.content.len()));
        hasher.update(&self.content);
        let id: [u8; 20] = hasher.finalize().into();
        id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn git_mode(entry: &ListingEntry) -> &'static str {
    match entry.kind {
        EntryKind::Link => "120000",
        _ if entry.is_executable() => "100755",
        _ => "100644",
    }
}

fn is_link(entry: &ListingEntry) -> bool {
    entry.kind == EntryKind::Link
}

/// The patch of a change. A file that was not kept has only a comment in it.
pub fn patch(store: &ObjectStore, change: &Change) -> io::Result<Patch> {
    let sides = [&change.old, &change.new];
    let mut known = sides.into_iter().flatten();
    if known.any(|entry| entry.kind == EntryKind::LargeFile) {
        let path = path_to_text(&change.path).replace(['\n', '\r'], " ");
        return Ok(Patch {
            text: format!("# {path} is larger than 10 MB; its content was not kept\n"),
            is_binary: true,
            ..Patch::default()
        });
    }
    let old_path = change.renamed_from.as_ref().unwrap_or(&change.path);
    if let (Some(old), Some(new)) = (&change.old, &change.new)
        && is_link(old) != is_link(new)
    {
        // Git describes a file that became a link, or a link that became a file, in two parts.
        let old = section(store, old_path, &change.path, Some(old), None)?;
        let new = section(store, old_path, &change.path, None, Some(new))?;
        return Ok(Patch {
            text: old.text + &new.text,
            added: old.added + new.added,
            removed: old.removed + new.removed,
            is_binary: old.is_binary || new.is_binary,
        });
    }
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    section(store, old_path, &change.path, old, new)
}

fn section(
    store: &ObjectStore,
    old_path: &[u8],
    new_path: &[u8],
    old: Option<&ListingEntry>,
    new: Option<&ListingEntry>,
) -> io::Result<Patch> {
    let read = |entry: Option<&ListingEntry>| entry.map(|it| Side::read(store, it)).transpose();
    let (old, new) = (read(old)?, read(new)?);
    let (a, b) = (path_in_patch("a/", old_path), path_in_patch("b/", new_path));
    let mut text = format!("diff --git {a} {b}\n");
    match (&old, &new) {
        (None, Some(new)) => text.push_str(&format!("new file mode {}\n", new.mode)),
        (Some(old), None) => text.push_str(&format!("deleted file mode {}\n", old.mode)),
        (Some(old), Some(new)) if old.mode != new.mode => {
            text.push_str(&format!("old mode {}\nnew mode {}\n", old.mode, new.mode));
        }
        _ => {}
    }
    if old_path != new_path {
        let (from, to) = (path_in_patch("", old_path), path_in_patch("", new_path));
        text.push_str(&format!(
            "similarity index 100%\nrename from {from}\nrename to {to}\n"
        ));
    }
    let content = |side: &Option<Side>| side.as_ref().map_or(Vec::new(), |it| it.content.clone());
    let (old_content, new_content) = (content(&old), content(&new));
    let mut patch = Patch::default();
    let exists = |side: &Option<Side>| side.as_ref().map(Side::object_id);
    if old_content == new_content && old.is_some() && new.is_some() {
        patch.text = text;
        return Ok(patch);
    }
    let id = |side: &Option<Side>| exists(side).unwrap_or_else(|| NO_OBJECT.to_owned());
    text.push_str(&format!("index {}..{}", id(&old), id(&new)));
    if let (Some(old), Some(new)) = (&old, &new)
        && old.mode == new.mode
    {
        text.push_str(&format!(" {}", new.mode));
    }
    text.push('\n');
    let as_text = |side: &Option<Side>| match side {
        Some(side) => side.text().map(str::to_owned),
        None => Some(String::new()),
    };
    match (as_text(&old), as_text(&new)) {
        (Some(before), Some(after)) => {
            let diff = lines::diff(&before, &after);
            if !diff.hunks.is_empty() {
                // A tab ends a name with a space.
                let end = |name: &str| if name.contains(' ') { "\t" } else { "" };
                let from = old.as_ref().map_or("/dev/null", |_| &a);
                let to = new.as_ref().map_or("/dev/null", |_| &b);
                text.push_str(&format!("--- {from}{}\n+++ {to}{}\n", end(from), end(to)));
                text.push_str(&diff.hunks);
            }
            patch.added = diff.added;
            patch.removed = diff.removed;
        }
        _ => {
            patch.is_binary = true;
            text.push_str(&binary_patch(&old_content, &new_content));
        }
    }
    patch.text = text;
    Ok(patch)
}

/// Counts the added and removed lines of text files; `None` if there are too many to count quickly.
pub fn count_lines(store: &ObjectStore, changes: &[Change]) -> io::Result<Option<LineCounts>> {
    if changes.len() > MAX_COUNTED_FILES {
        return Ok(None);
    }
    let deadline = Instant::now() + MAX_COUNTING_TIME;
    let mut counts = LineCounts::default();
    let mut bytes = 0;
    for change in changes {
        let sides = [&change.old, &change.new].into_iter().flatten();
        bytes += sides.clone().map(|entry| entry.size).sum::<u64>();
        if bytes > MAX_COUNTED_BYTES || Instant::now() > deadline {
            return Ok(None);
        }
        let is_kept = |entry: &&ListingEntry| entry.kind != EntryKind::LargeFile;
        if change.renamed_from.is_some() || !sides.clone().all(|entry| is_kept(&entry)) {
            continue;
        }
        let read = |entry: &Option<ListingEntry>| -> io::Result<Option<Side>> {
            entry.as_ref().map(|it| Side::read(store, it)).transpose()
        };
        let (old, new) = (read(&change.old)?, read(&change.new)?);
        let text = |side: &'_ Option<Side>| match side {
            Some(side) => side.text().map(str::to_owned),
            None => Some(String::new()),
        };
        if let (Some(old), Some(new)) = (text(&old), text(&new)) {
            let (added, removed) = lines::count(&old, &new);
            counts.added += added;
            counts.removed += removed;
        }
    }
    Ok(Some(counts))
}

/// A path as git writes it in a patch.
fn path_in_patch(prefix: &str, path: &[u8]) -> String {
    let path = [prefix.as_bytes(), path].concat();
    let is_plain = |text: &str| {
        !text
            .chars()
            .any(|c| c.is_control() || matches!(c, '"' | '\\'))
    };
    match String::from_utf8(path) {
        Ok(text) if is_plain(&text) => text,
        Ok(text) => quote_path(text.as_bytes()),
        Err(error) => quote_path(error.as_bytes()),
    }
}
