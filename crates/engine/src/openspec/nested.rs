//! Directories that hold changes instead of being one.

use super::project::Project;
use super::{METADATA, TASKS, by_units, outputs};
use crate::files::{Entry, Kind, Lost, Tree};

/// Files that stand only at the top of a change.
const MARKERS: [&str; 4] = [METADATA, "proposal.md", TASKS, "design.md"];
const DEEPEST: usize = 3;

/// The changes below a directory that is none itself; none if it is one, or empty. `entries` are what
/// is in the directory.
pub(super) fn below(
    project: &Project<'_>,
    directory: &str,
    name: &str,
    entries: &[Entry],
) -> Result<Option<Vec<String>>, Lost> {
    if name.starts_with('.') || name == "archive" {
        return Ok(None);
    }
    let has_file = |entry: &Entry| !entry.name.starts_with('.') && entry.kind != Kind::Directory;
    if is_change(project, directory, entries)? || entries.iter().any(has_file) {
        return Ok(None);
    }
    let mut found = Vec::new();
    collect(project, directory, name, 1, entries, &mut found)?;
    found.sort_by(|a, b| by_units(a, b));
    Ok((!found.is_empty()).then_some(found))
}

fn collect(
    project: &Project<'_>,
    directory: &str,
    name: &str,
    depth: usize,
    among: &[Entry],
    found: &mut Vec<String>,
) -> Result<(), Lost> {
    if depth > DEEPEST {
        return Ok(());
    }
    for entry in among {
        if entry.kind != Kind::Directory || entry.name.starts_with('.') {
            continue;
        }
        let name = format!("{name}/{}", entry.name);
        let directory = format!("{directory}/{}", entry.name);
        let entries = entries(project.tree, &directory)?;
        if is_change(project, &directory, &entries)? {
            found.push(name);
        } else {
            collect(project, &directory, &name, depth + 1, &entries, found)?;
        }
    }
    Ok(())
}

/// What is in a directory; nothing if that cannot be said.
fn entries(tree: &Tree, directory: &str) -> Result<Vec<Entry>, Lost> {
    match tree.list(directory) {
        Err(Lost::TooMuch(why)) => Err(Lost::TooMuch(why)),
        other => Ok(other.unwrap_or_default()),
    }
}

/// Whether a directory has what only a change has.
fn is_change(project: &Project<'_>, directory: &str, entries: &[Entry]) -> Result<bool, Lost> {
    let tree = project.tree;
    let is_file = |entry: &Entry| match entry.kind {
        Kind::File => true,
        Kind::Link => tree
            .find(&format!("{directory}/{}", entry.name))
            .is_ok_and(|found| found.kind == Kind::File),
        _ => false,
    };
    if entries
        .iter()
        .any(|entry| MARKERS.contains(&entry.name.as_str()) && is_file(entry))
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
        match outputs::of(tree, directory, &artifact.generates) {
            Ok(files) if files.is_empty() => {}
            Ok(_) => return Ok(true),
            Err(outputs::Unclear::Lost(Lost::TooMuch(why))) => return Err(Lost::TooMuch(why)),
            Err(_) => return Ok(false),
        }
    }
    Ok(false)
}

/// Whether anything but directories is below one; a link counts for itself.
fn has_any_file(tree: &Tree, directory: &str) -> Result<bool, Lost> {
    for entry in entries(tree, directory)? {
        if entry.name.starts_with('.') {
            continue;
        }
        let counts = match entry.kind {
            Kind::File | Kind::Link => true,
            Kind::Directory => has_any_file(tree, &format!("{directory}/{}", entry.name))?,
            Kind::Other => false,
        };
        if counts {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What is said about such a directory.
pub(super) fn describe(name: &str, nested: &[String]) -> String {
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
