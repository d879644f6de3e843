//! Keeps a file with paths of this machine out of the repository that it is in.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::terminal::output::note;

/// Adds a file to `.git/info/exclude`, unless git ignores it already. Says so, and if git tracks it.
pub(super) fn keep_out_of_git(file: &Path) {
    let Some(directory) = file.parent() else {
        return;
    };
    let Some(top) = git(directory, &["rev-parse", "--show-toplevel"]) else {
        return;
    };
    let shown = file.display();
    let path = file.to_string_lossy();
    if git(directory, &["ls-files", "--error-unmatch", "--", &path]).is_some() {
        note!("Git tracks {shown}, which names programs of this machine now. It has no key.");
        return;
    }
    if git(directory, &["check-ignore", "--quiet", "--", &path]).is_some() {
        return;
    }
    let exclude = git(directory, &["rev-parse", "--git-path", "info/exclude"]);
    let exclude = exclude.map(|exclude| directory.join(exclude));
    let (Some(exclude), Ok(file)) = (exclude, std::fs::canonicalize(file)) else {
        return;
    };
    let Ok(below) = file.strip_prefix(PathBuf::from(top)) else {
        return;
    };
    match append(&exclude, below) {
        Ok(()) => note!("Added it to {}, so that git ignores it.", exclude.display()),
        Err(error) => eprintln!(
            "warning: cannot write {}: {error}; keep {shown} out of version control",
            exclude.display()
        ),
    }
}

fn append(exclude: &Path, file: &Path) -> std::io::Result<()> {
    if let Some(directory) = exclude.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let before = std::fs::read_to_string(exclude).unwrap_or_default();
    let end = if before.is_empty() || before.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let mut file_out = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(exclude)?;
    writeln!(file_out, "{end}/{}", pattern(&file.to_string_lossy()))
}

/// A path as a pattern of git that matches only that path.
fn pattern(path: &str) -> String {
    let mut pattern = String::new();
    for c in path.chars() {
        if "*?[\\".contains(c) || (c == ' ' && path.ends_with(' ')) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// The output of git; none if it fails or is not there.
fn git(directory: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output
        .status
        .success()
        .then(|| text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn a_pattern_matches_only_its_path() {
        assert_eq!(pattern(".mcp.json"), ".mcp.json");
        assert_eq!(pattern("a*[b]?\\"), "a\\*\\[b]\\?\\\\");
    }
}
