//! What the agent sees when it looks around: names, counts, a branch, the first words of a README.
//! Everything is bounded, since a workspace can hold anything.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// How many entries of a directory are counted, and how many are named.
const MOST_COUNTED: usize = 10_000;
const MOST_NAMED: usize = 8;
/// How much of a file is read to find its first words.
const MOST_READ: u64 = 4096;
const LONGEST_HEADING: usize = 120;

/// A few sentences about a directory.
pub(crate) fn describe(directory: &Path) -> String {
    let place = directory.display();
    let (folders, files) = match list(directory) {
        Ok(found) => found,
        Err(error) => return format!("I cannot look into {place}: {error}."),
    };
    let mut sentences = vec![match (folders.len(), files.len()) {
        (0, 0) => format!("{place} is empty."),
        (folder_count, file_count) => {
            let names: Vec<String> = folders
                .iter()
                .map(|name| format!("{name}/"))
                .chain(files.iter().cloned())
                .collect();
            let more = match names.len().saturating_sub(MOST_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named = names[..names.len().min(MOST_NAMED)].join(", ");
            format!(
                "In {place} I see {} and {}: {named}{more}.",
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

pub(crate) fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

/// The folders and files that are not hidden, by name.
fn list(directory: &Path) -> std::io::Result<(Vec<String>, Vec<String>)> {
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(directory)?.take(MOST_COUNTED) {
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
    let short: String = words.chars().take(LONGEST_HEADING).collect();
    (!short.is_empty()).then_some(short)
}

/// The first line that holds anything, if the file is a plain one.
fn first_line(path: &Path) -> Option<String> {
    // A pipe would wait for a writer that never comes.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let file = fs::File::open(path).ok()?;
    BufReader::new(file.take(MOST_READ))
        .lines()
        .map_while(Result::ok)
        .find(|line| !line.trim().is_empty())
        .map(|line| line.trim().to_owned())
}
