//! The files of the repository as git sees them: tracked, or new and not ignored. A path that only
//! exists on one machine is therefore not in the tree.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// One file, with its text unless it is binary or a link to a directory.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: Option<String>,
}

/// Every file, and every path (files and the folders above them) for lookups.
pub(super) struct Tree {
    pub(super) files: Vec<File>,
    paths: BTreeSet<String>,
}

impl Tree {
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let listing = Command::new("git")
            .args(["ls-files", "-z", "-co", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("`git ls-files` could not be started: {error}. Tidy needs git to know which files belong to the repository."))?;
        if !listing.status.success() {
            let reason = String::from_utf8_lossy(&listing.stderr);
            return Err(format!(
                "`git ls-files` failed in {}: {}",
                root.display(),
                reason.trim()
            ));
        }
        let listed = String::from_utf8_lossy(&listing.stdout);
        let names: BTreeSet<&str> = listed.split_terminator('\0').collect();

        let mut files = Vec::with_capacity(names.len());
        for name in names {
            let text = match fs::read(root.join(name)) {
                Ok(bytes) => String::from_utf8(bytes)
                    .ok()
                    .filter(|text| !text.contains('\0')),
                // Deleted, but git has not been told.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) if error.kind() == ErrorKind::IsADirectory => None,
                Err(error) => return Err(format!("{name} could not be read: {error}")),
            };
            files.push(File {
                path: name.to_owned(),
                text,
            });
        }
        Ok(Self::of(files))
    }

    pub(super) fn of(files: Vec<File>) -> Self {
        let mut paths = BTreeSet::new();
        for file in &files {
            let mut path = file.path.as_str();
            while paths.insert(path.to_owned()) {
                match path.rsplit_once('/') {
                    Some((folder, _)) => path = folder,
                    None => break,
                }
            }
        }
        Self { files, paths }
    }

    /// Whether there is a file or folder of that name; the empty path is the root.
    pub(super) fn has(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files
            .iter()
            .find(|file| file.path == path)?
            .text
            .as_deref()
    }

    /// Path and text of every file that is not binary.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter_map(|file| Some((file.path.as_str(), file.text.as_deref()?)))
    }

    /// Path and text of every file whose name ends in `suffix`.
    pub(super) fn texts_named(&self, suffix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(path, _)| path.ends_with(suffix))
    }
}

#[cfg(test)]
impl Tree {
    /// A tree for a test: pairs of path and text.
    pub(super) fn example(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| File {
            path: (*path).to_owned(),
            text: Some((*text).to_owned()),
        });
        Self::of(files.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_above_a_file_exist_too() {
        let tree = Tree::example(&[("crates/model/src/lib.rs", "")]);
        assert!(tree.has("crates/model"));
        assert!(tree.has("crates"));
        assert!(tree.has(""));
        assert!(!tree.has("crates/mod"));
    }
}
