//! The changes of a project and how far they are.

use std::cmp::Reverse;

use super::project::Project;
use super::{CHANGES, TASKS, checkbox, nested, outputs};
use crate::files::{Entry, Kind, Lost, Tree};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) name: String,
    pub(crate) completed: usize,
    pub(crate) total: usize,
    /// When one of its files was changed last, in milliseconds since 1970.
    pub(crate) modified: i64,
    /// The changes below it, if it is none itself.
    pub(crate) nested: Option<Vec<String>>,
}

impl Change {
    /// What is wrong with a directory that is not a change.
    pub(crate) fn warning(&self) -> Option<String> {
        let nested = self.nested.as_ref()?;
        Some(nested::describe(&self.name, nested))
    }
}

/// All changes, the last changed first. The error is a sentence for people.
pub(crate) fn list(tree: &Tree) -> Result<Vec<Change>, String> {
    read(tree)
        .and_then(|changes| tree.goes_on().map(|()| changes))
        .map_err(|lost| format!("`{CHANGES}` cannot be read: {lost}"))
}

fn read(tree: &Tree) -> Result<Vec<Change>, Lost> {
    let project = Project::open(tree)?;
    let Some(changes) = &project.changes else {
        return Ok(Vec::new());
    };
    let mut listed = Vec::new();
    for entry in tree.list(changes)? {
        if entry.kind == Kind::Directory && entry.name != "archive" {
            match change(&project, changes, entry.name) {
                Ok(change) => listed.push(change),
                // It was removed meanwhile.
                Err(Lost::Absent(_)) => {}
                Err(lost) => return Err(lost),
            }
        }
    }
    // What was changed at the same time stays in the order of names.
    listed.sort_by_key(|change| Reverse(change.modified));
    Ok(listed)
}

fn change(project: &Project<'_>, changes: &str, name: String) -> Result<Change, Lost> {
    let tree = project.tree;
    let directory = format!("{changes}/{name}");
    let entries = tree.list(&directory)?;
    let nested = nested::below(project, &directory, &name, &entries)?;
    let (total, completed) = progress(project, &directory)?;
    let modified = match last_modified(tree, &directory, &entries)? {
        Some(modified) => modified,
        None => tree.find(&directory)?.modified,
    };
    Ok(Change {
        name,
        completed,
        total,
        modified,
        nested,
    })
}

/// How many tasks a change has, and how many are done. What cannot be read has none: one damaged
/// change must not hide the others.
fn progress(project: &Project<'_>, directory: &str) -> Result<(usize, usize), Lost> {
    let workflow = project.workflow(directory).ok();
    let tracked = workflow
        .as_ref()
        .and_then(|workflow| workflow.schema.tracked());
    let files = match tracked.map(|one| outputs::of(project.tree, directory, &one.generates)) {
        None => Vec::new(),
        Some(Ok(files)) => files,
        Some(Err(outputs::Unclear::Lost(Lost::TooMuch(why)))) => return Err(Lost::TooMuch(why)),
        Some(Err(_)) => return Ok((0, 0)),
    };
    let files = match files.is_empty() {
        true => vec![format!("{directory}/{TASKS}")],
        false => files,
    };
    let mut sum = (0, 0);
    for file in files {
        match project.tree.read(&file) {
            Ok(text) => {
                let (total, done) = checkbox::count(&text);
                sum = (sum.0 + total, sum.1 + done);
            }
            Err(Lost::TooMuch(why)) => return Err(Lost::TooMuch(why)),
            Err(_) => {}
        }
    }
    Ok(sum)
}

/// When a file below a directory was changed last; none if there is no file.
fn last_modified(tree: &Tree, directory: &str, entries: &[Entry]) -> Result<Option<i64>, Lost> {
    let mut latest = None;
    for entry in entries {
        let path = || format!("{directory}/{}", entry.name);
        let modified = match entry.kind {
            Kind::Directory => {
                let path = path();
                match tree.list(&path) {
                    Ok(entries) => last_modified(tree, &path, &entries)?,
                    Err(Lost::TooMuch(why)) => return Err(Lost::TooMuch(why)),
                    Err(_) => None,
                }
            }
            Kind::Link => tree.find(&path()).ok().map(|found| found.modified),
            Kind::File | Kind::Other => Some(entry.modified),
        };
        latest = latest.max(modified);
    }
    Ok(latest)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use oubliette_model::{ProjectId, WorkspaceId};
    use uuid::Uuid;

    use super::*;
    use crate::files::{Bounds, Files};
    use crate::openspec::OF_ALL;

    #[tokio::test]
    async fn an_intricate_schema_over_empty_directories_is_given_up() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path()).unwrap();
        let project = ProjectId::new(Uuid::from_u128(1));
        let workspace = files.create_project(project).await.unwrap();
        let openspec = workspace.join("openspec");
        for number in 0..100 {
            fs::create_dir_all(openspec.join(format!("changes/{number}/empty"))).unwrap();
        }
        let ways = "{a,b}".repeat(8);
        let mut schema = "name: s\nversion: 1\nartifacts:\n".to_owned();
        for number in 0..1000 {
            schema += &format!(
                "  - {{id: a{number}, generates: '*/{ways}', template: t, description: d}}\n"
            );
        }
        fs::create_dir_all(openspec.join("schemas/s")).unwrap();
        fs::write(openspec.join("schemas/s/schema.yaml"), schema).unwrap();
        fs::write(openspec.join("config.yaml"), "schema: s\n").unwrap();
        let (few, short) = (
            Bounds {
                looks: 10_000,
                time: Duration::from_secs(600),
                ..OF_ALL
            },
            Bounds {
                entries: usize::MAX,
                looks: usize::MAX,
                time: Duration::from_secs(1),
                ..OF_ALL
            },
        );
        for bounds in [few, short] {
            let begun = Instant::now();
            let workspace = WorkspaceId::default_one();
            let listed = files.look(project, &workspace, bounds, list).await.unwrap();
            let why = listed.unwrap_err();
            assert!(why.contains("too intricate"), "{why}");
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
    }
}
