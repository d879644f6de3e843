//! What no backup has, said for each project: above all software that was installed in containers.

use std::path::Path;

use oubliette_store::sqlite::ContainerOwner;
use oubliette_trees::disk_usage;

use crate::home::Home;
use crate::terminal::output::note;
use crate::terminal::printable;

/// How many projects are named; the rest is counted.
const MAX_NAMED: usize = 20;
/// Files that the sandbox itself keeps in a layer take less.
const MIN_INSTALLED_BYTES: u64 = 1 << 20;

/// What commands keep in the data directory for this machine.
const LOCAL_FILES: [&str; 2] = [
    "keys of MCP clients that start `oubliette mcp stdio` (`oubliette mcp setup` makes new ones)",
    "which sessions worked on which directories here (`oubliette diff`, `apply` and `fetch`), and the one used last",
];

/// A project with files in its containers that are not among its own files.
#[derive(Debug, PartialEq, Eq)]
struct Installed {
    project: String,
    /// None if another program keeps them, for example the Docker engine.
    bytes: Option<u64>,
}

/// Says what a backup does not have. `owners` are the containers of the backup's database.
pub(super) fn print(home: &Home, owners: &[ContainerOwner], with_files: bool) {
    note!("Not in it:");
    if !with_files {
        note!("  the files of the projects, because of --without-files");
    }
    let installed = find_installed(&home.path().join("layers"), owners);
    if !installed.is_empty() {
        note!(
            "  software installed in containers, and everything else outside of /workspace, /workspaces and \
             /root:"
        );
    }
    for Installed { project, bytes } in installed.iter().take(MAX_NAMED) {
        let project = printable(project);
        match bytes {
            Some(bytes) => note!("    project {project}: {} MB", bytes >> 20),
            None => note!("    project {project}: kept by the container engine"),
        }
    }
    if installed.len() > MAX_NAMED {
        note!("    and {} more projects", installed.len() - MAX_NAMED);
    }
    if !installed.is_empty() {
        note!(
            "    Install it again after a restore, or build an image with it: [container_types] in \
             oubliette.toml."
        );
    }
    note!("  installed agents (`oubliette agent install`)");
    note!("  stored credentials (`oubliette credential add`)");
    for line in LOCAL_FILES {
        note!("  {line}");
    }
}

/// Says what a restored data directory lacks.
pub(super) fn print_after_restore(has_containers: bool) {
    if has_containers {
        eprintln!(
            "Software that was installed in containers is not in a backup: install it again where projects \
             need it."
        );
    }
    eprintln!(
        "Installed agents, stored credentials and keys of MCP clients are not in a backup either: `oubliette agent \
         install`, `oubliette credential add`, `oubliette mcp setup`."
    );
}

/// The projects whose containers have files of their own, each once.
fn find_installed(layers: &Path, owners: &[ContainerOwner]) -> Vec<Installed> {
    let mut found: Vec<Installed> = Vec::new();
    for owner in owners {
        let layer = layers.join(&owner.container_id);
        let bytes = if layer.is_dir() {
            let bytes = disk_usage(&layer).map(|usage| usage.bytes).unwrap_or(0);
            if bytes < MIN_INSTALLED_BYTES {
                continue;
            }
            Some(bytes)
        } else {
            None
        };
        let earlier = found
            .iter_mut()
            .find(|other| other.project == owner.project);
        match earlier {
            Some(earlier) => {
                let both = earlier.bytes.zip(bytes);
                earlier.bytes = both.map(|(one, other)| one.saturating_add(other));
            }
            None => found.push(Installed {
                project: owner.project.clone(),
                bytes,
            }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn projects_are_named_once_with_what_their_containers_have() {
        let layers = tempfile::tempdir().unwrap();
        for (id, bytes) in [("a1", 3 << 20), ("a2", 2 << 20), ("empty", 100)] {
            fs::create_dir_all(layers.path().join(id).join("usr")).unwrap();
            fs::write(layers.path().join(id).join("usr/x"), vec![7; bytes]).unwrap();
        }
        let owner = |project: &str, id: &str| ContainerOwner {
            project: project.to_owned(),
            container_id: id.to_owned(),
        };
        let owners = [
            owner("app", "a1"),
            owner("app", "a2"),
            owner("unused", "empty"),
            owner("docker", "elsewhere"),
        ];
        let found = find_installed(layers.path(), &owners);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].project, "app");
        assert!(found[0].bytes.is_some_and(|bytes| bytes >= 5 << 20));
        let docker = Installed {
            project: "docker".to_owned(),
            bytes: None,
        };
        assert_eq!(found[1], docker);
    }
}
