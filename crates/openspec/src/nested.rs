//! Directories under `openspec/changes` that contain changes instead of being one.

use crate::lookup::if_readable;
use crate::outputs::{self, OutputError};
use crate::project::Project;
use crate::{METADATA_FILE, TASKS_FILE, cmp_utf16};
use oubliette_model::{FileEntry, FileKind, FileTree, ReadError};

/// Files that are only found at the top of a change.
const MARKER_FILES: [&str; 4] = [METADATA_FILE, "proposal.md", TASKS_FILE, "design.md"];
const MAX_NESTING_DEPTH: usize = 3;

/// Finds the changes below a directory. `None` if the directory is a change itself, or has none.
/// `entries` are the contents of the directory.
pub(crate) fn find_changes(
    project: &Project<'_>,
    directory: &str,
    name: &str,
    entries: &[FileEntry],
) -> Result<Option<Vec<String>>, ReadError> {
    if name.starts_with('.') || name == "archive" {
        return Ok(None);
    }
    let is_visible_file =
        |entry: &FileEntry| !entry.name.starts_with('.') && entry.kind != FileKind::Directory;
    if is_change(project, directory, entries)? || entries.iter().any(is_visible_file) {
        return Ok(None);
    }
    let mut changes = Vec::new();
    collect_changes(project, directory, name, 1, entries, &mut changes)?;
    changes.sort_by(|a, b| cmp_utf16(a, b));
    Ok((!changes.is_empty()).then_some(changes))
}

fn collect_changes(
    project: &Project<'_>,
    directory: &str,
    name: &str,
    depth: usize,
    entries: &[FileEntry],
    changes: &mut Vec<String>,
) -> Result<(), ReadError> {
    if depth > MAX_NESTING_DEPTH {
        return Ok(());
    }
    for entry in entries {
        if entry.kind != FileKind::Directory || entry.name.starts_with('.') {
            continue;
        }
        let name = format!("{name}/{}", entry.name);
        let directory = format!("{directory}/{}", entry.name);
        let entries = list_or_empty(project.tree, &directory)?;
        if is_change(project, &directory, &entries)? {
            changes.push(name);
        } else {
            collect_changes(project, &directory, &name, depth + 1, &entries, changes)?;
        }
    }
    Ok(())
}

fn list_or_empty(tree: &dyn FileTree, directory: &str) -> Result<Vec<FileEntry>, ReadError> {
    Ok(if_readable(tree.list(directory))?.unwrap_or_default())
}

/// Whether a directory has what only a change has.
fn is_change(
    project: &Project<'_>,
    directory: &str,
    entries: &[FileEntry],
) -> Result<bool, ReadError> {
    let tree = project.tree;
    let is_file = |entry: &FileEntry| match entry.kind {
        FileKind::File => true,
        FileKind::Link => tree
            .find(&format!("{directory}/{}", entry.name))
            .is_ok_and(|found| found.kind == FileKind::File),
        _ => false,
    };
    if entries
        .iter()
        .any(|entry| MARKER_FILES.contains(&entry.name.as_str()) && is_file(entry))
    {
        return Ok(true);
    }
    let has_specs = entries.iter().any(|entry| entry.name == "specs");
    if has_specs && has_any_file(tree, &format!("{directory}/specs"))? {
        return Ok(true);
    }
    let Ok(workflow) = project.workflow(directory) else {
        return Ok(false);
    };
    for artifact in &workflow.schema.artifacts {
        match outputs::files(tree, directory, &artifact.generates) {
            Ok(files) if files.is_empty() => {}
            Ok(_) => return Ok(true),
            Err(OutputError::Tree(error @ ReadError::LimitReached(_))) => return Err(error),
            Err(_) => return Ok(false),
        }
    }
    Ok(false)
}

/// Whether a directory contains a visible file at any depth. A link counts as a file.
fn has_any_file(tree: &dyn FileTree, directory: &str) -> Result<bool, ReadError> {
    for entry in list_or_empty(tree, directory)? {
        if entry.name.starts_with('.') {
            continue;
        }
        let counts = match entry.kind {
            FileKind::File | FileKind::Link => true,
            FileKind::Directory => has_any_file(tree, &format!("{directory}/{}", entry.name))?,
            FileKind::Other => false,
        };
        if counts {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The command's warning about such a directory, in the command's words.
pub(crate) fn warning(name: &str, nested: &[String]) -> String {
    let list: Vec<String> = nested
        .iter()
        .map(|id| format!("openspec/changes/{id}/"))
        .collect();
    let example = nested.first().map(|id| id.replace('/', "-"));
    format!(
        "\"{name}\" is not a change: it is a folder wrapping {}. A change must be a directory \
         directly under openspec/changes/, so those nested directories are invisible to OpenSpec \
         while the folder around them is reported as a change. Nested paths are supported under \
         openspec/specs/ only. Rename each nested change to a flat name (for example \"{}\").",
        list.join(", "),
        example.unwrap_or_default()
    )
}
