//! `cargo xtask tidy`: rules of this repository that neither the compiler, clippy nor cargo-deny
//! checks. It only reads, and it lists every problem.

mod dead_paths;
mod layers;
mod sources;
mod words;

use std::fmt;
use std::path::Path;
use std::process::Command;

use crate::root;

/// A violated rule, with the place to fix.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Problem {
    path: String,
    line: usize,
    message: String,
}

impl Problem {
    fn new(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A text file of the repository: tracked, or new and not ignored.
struct SourceFile {
    /// From the root, with slashes.
    path: String,
    text: String,
}

/// Checks the repository that this crate is part of.
pub(crate) fn run() -> Result<(), String> {
    let root = root();
    let paths = list_paths(&root)?;
    let files: Vec<SourceFile> = paths
        .iter()
        .filter_map(|path| {
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            let path = path.clone();
            Some(SourceFile { path, text })
        })
        .collect();
    let mut problems = layers::check(&layers::read_packages(&root)?, &root);
    for file in &files {
        problems.extend(sources::check(file));
        problems.extend(words::check(file));
        problems.extend(dead_paths::check(file, &paths));
    }
    problems.sort();
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        println!("tidy: {} files, no problems", files.len());
        return Ok(());
    }
    Err(format!("tidy: {} problems", problems.len()))
}

fn list_paths(root: &Path) -> Result<Vec<String>, String> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "-co", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start `git ls-files`: {error}"))?;
    if !listing.status.success() {
        let stderr = String::from_utf8_lossy(&listing.stderr);
        return Err(format!("`git ls-files` failed: {stderr}"));
    }
    let names = String::from_utf8_lossy(&listing.stdout);
    let names = names.split('\0').filter(|name| !name.is_empty());
    // A file deleted in the working tree is still listed until the deletion is staged.
    Ok(names
        .filter(|name| root.join(name).exists())
        .map(str::to_owned)
        .collect())
}
