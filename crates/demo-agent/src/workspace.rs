//! The description of a workspace: file names, counts, the git branch and the heading of a README.
//! Everything is bounded, because a workspace can contain anything.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const MAX_COUNTED_ENTRIES: usize = 10_000;
const MAX_LISTED_ENTRIES: usize = 8;
/// How much of a file is read to find its first line.
const MAX_READ_BYTES: u64 = 4096;
const MAX_HEADING_CHARS: usize = 120;

/// A few sentences about a directory.
pub(crate) fn describe(directory: &Path) -> String {
    let path = directory.display();
    let (folders, files) = match list_entries(directory) {
        Ok(found) => found,
        Err(error) => return format!("I cannot read {path}: {error}."),
    };
    let mut sentences = vec![match (folders.len(), files.len()) {
        (0, 0) => format!("{path} is empty."),
        (folder_count, file_count) => {
            let names: Vec<String> = folders
                .iter()
                .map(|name| format!("{name}/"))
                .chain(files.iter().cloned())
                .collect();
            let more = match names.len().saturating_sub(MAX_LISTED_ENTRIES) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named = names[..names.len().min(MAX_LISTED_ENTRIES)].join(", ");
            format!(
                "In {path} I see {} and {}: {named}{more}.",
                count(folder_count, "folder"),
                count(file_count, "file"),
            )
        }
    }];
    if let Some(branch) = branch(directory) {
        sentences.push(format!("It is a git repository on {branch}."));
    }
    let readme = files
        .iter()
        .find(|name| name.to_ascii_lowercase().starts_with("readme"));
    if let Some((name, heading)) = readme.and_then(|name| Some((name, heading(directory, name)?))) {
        sentences.push(format!("{name} begins with \"{heading}\"."));
    }
    sentences.join(" ")
}

pub(crate) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// The names of the folders and files that are not hidden, sorted.
fn list_entries(directory: &Path) -> std::io::Result<(Vec<String>, Vec<String>)> {
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(directory)?.take(MAX_COUNTED_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => folders.push(name),
            _ => files.push(name),
        }
    }
    folders.sort();
    files.sort();
    Ok((folders, files))
}

fn branch(directory: &Path) -> Option<String> {
    let head = first_line(&directory.join(".git/HEAD"))?;
    Some(match head.strip_prefix("ref: refs/heads/") {
        Some(branch) => format!("branch {branch}"),
        None => format!("commit {}", head.get(..12)?),
    })
}

fn heading(directory: &Path, name: &str) -> Option<String> {
    let line = first_line(&directory.join(name))?;
    let words = line.trim_start_matches(['#', '=', ' ']).trim();
    let short: String = words.chars().take(MAX_HEADING_CHARS).collect();
    (!short.is_empty()).then_some(short)
}

/// The first line that is not blank, if the path is a regular file.
fn first_line(path: &Path) -> Option<String> {
    // Opening a pipe would block until it has a writer.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let file = fs::File::open(path).ok()?;
    BufReader::new(file.take(MAX_READ_BYTES))
        .lines()
        .map_while(Result::ok)
        .find(|line| !line.trim().is_empty())
        .map(|line| line.trim().to_owned())
}
