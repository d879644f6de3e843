//! The changes of a project with their progress.

use oubliette_model::{FileEntry, FileKind, FileTree, ReadError};
use std::cmp::Reverse;

use crate::lookup::if_readable;
use crate::outputs::{self, OutputError};
use crate::project::Project;
use crate::{CHANGES_DIR, TASKS_FILE, checkbox, nested};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub name: String,
    pub completed_tasks: usize,
    pub total_tasks: usize,
    /// The latest modification of one of its files, in milliseconds since 1970.
    pub modified_ms: i64,
    /// The changes below the directory, if it is not a change itself.
    pub nested: Option<Vec<String>>,
}

impl Change {
    /// Explains what is wrong with a directory that is not a change.
    pub fn warning(&self) -> Option<String> {
        let nested = self.nested.as_ref()?;
        Some(nested::warning(&self.name, nested))
    }
}

/// Lists all changes, the last modified first. The error is a sentence for people.
pub fn list_changes(tree: &dyn FileTree) -> Result<Vec<Change>, String> {
    read_changes(tree)
        .and_then(|changes| tree.check_limits().map(|()| changes))
        .map_err(|error| format!("`{CHANGES_DIR}` cannot be read: {error}"))
}

fn read_changes(tree: &dyn FileTree) -> Result<Vec<Change>, ReadError> {
    let project = Project::open(tree)?;
    let Some(changes_dir) = &project.changes_dir else {
        return Ok(Vec::new());
    };
    let mut changes = Vec::new();
    for entry in tree.list(changes_dir)? {
        if entry.kind == FileKind::Directory && entry.name != "archive" {
            match read_change(&project, changes_dir, entry.name) {
                Ok(change) => changes.push(change),
                // It was removed after the directory was listed.
                Err(ReadError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    // The sort is stable: changes of the same time stay sorted by name.
    changes.sort_by_key(|change| Reverse(change.modified_ms));
    Ok(changes)
}

fn read_change(
    project: &Project<'_>,
    changes_dir: &str,
    name: String,
) -> Result<Change, ReadError> {
    let tree = project.tree;
    let directory = format!("{changes_dir}/{name}");
    let entries = tree.list(&directory)?;
    let nested = nested::find_changes(project, &directory, &name, &entries)?;
    let (total_tasks, completed_tasks) = count_tasks(project, &directory)?;
    let modified_ms = match last_modified(tree, &directory, &entries)? {
        Some(modified_ms) => modified_ms,
        None => tree.find(&directory)?.modified_ms,
    };
    Ok(Change {
        name,
        completed_tasks,
        total_tasks,
        modified_ms,
        nested,
    })
}

/// The number of tasks of a change and how many are done. An unreadable file counts as having no
/// tasks, so that one damaged change does not hide the others.
fn count_tasks(project: &Project<'_>, directory: &str) -> Result<(usize, usize), ReadError> {
    let workflow = project.workflow(directory).ok();
    let tracked = workflow
        .as_ref()
        .and_then(|workflow| workflow.schema.tracked_artifact());
    let mut files = match tracked {
        None => Vec::new(),
        Some(artifact) => match outputs::files(project.tree, directory, &artifact.generates) {
            Ok(files) => files,
            Err(OutputError::Tree(error @ ReadError::LimitReached(_))) => return Err(error),
            Err(_) => return Ok((0, 0)),
        },
    };
    if files.is_empty() {
        files.push(format!("{directory}/{TASKS_FILE}"));
    }
    let mut sum = (0, 0);
    for file in files {
        if let Some(text) = if_readable(project.tree.read(&file))? {
            let (total, done) = checkbox::count_tasks(&text);
            sum = (sum.0 + total, sum.1 + done);
        }
    }
    Ok(sum)
}

/// The latest modification of a file below a directory; `None` if there is no file.
fn last_modified(
    tree: &dyn FileTree,
    directory: &str,
    entries: &[FileEntry],
) -> Result<Option<i64>, ReadError> {
    let mut latest = None;
    for entry in entries {
        let path = || format!("{directory}/{}", entry.name);
        let modified_ms = match entry.kind {
            FileKind::Directory => {
                let path = path();
                match if_readable(tree.list(&path))? {
                    Some(entries) => last_modified(tree, &path, &entries)?,
                    None => None,
                }
            }
            FileKind::Link => tree.find(&path()).ok().map(|found| found.modified_ms),
            FileKind::File | FileKind::Other => Some(entry.modified_ms),
        };
        latest = latest.max(modified_ms);
    }
    Ok(latest)
}
