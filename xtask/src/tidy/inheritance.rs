//! What every package takes from the workspace: lints, so that `unsafe` stays in one crate, and
//! the versions of dependencies, so that each is written down once.

use super::Problem;
use super::manifest::{self, Declaration, Entry};
use super::packages::{Dependency, Workspace};
use super::tree::Tree;

/// The one place where `unsafe` is allowed, which therefore sets its own lints.
const UNSAFE_FOLDER: &str = "crates/sandbox";

pub(super) fn check(workspace: &Workspace, tree: &Tree) -> Vec<Problem> {
    let mut problems: Vec<Problem> = check_workspace_lints(tree).into_iter().collect();
    for package in &workspace.packages {
        let path = package.manifest_path();
        let Some(text) = tree.text(&path) else {
            let message = "Cargo builds this package but git ignores its manifest: un-ignore it, or take it out of the workspace.";
            problems.push(Problem::new(path, 1, message));
            continue;
        };
        let entries = manifest::read(text);
        if package.folder != UNSAFE_FOLDER && !inherits_lints(&entries) {
            let message = format!(
                "The package does not inherit the lints, which keep `unsafe` in {UNSAFE_FOLDER}: add `[lints]` with `workspace = true`."
            );
            problems.push(Problem::new(path.as_str(), 1, message));
        }
        for dependency in &package.dependencies {
            for line in own_versions(&entries, dependency) {
                let key = &dependency.key;
                let message = format!(
                    "The version of {key} is not the workspace's: put it under [workspace.dependencies] in the root Cargo.toml and write `{key}.workspace = true` here."
                );
                problems.push(Problem::new(path.as_str(), line, message));
            }
        }
    }
    problems
}

fn check_workspace_lints(tree: &Tree) -> Option<Problem> {
    let entries = manifest::read(tree.text("Cargo.toml").unwrap_or_default());
    let lint = ["workspace", "lints", "rust", "unsafe_code"];
    let with_level = [&lint[..], &["level"]].concat();
    let forbidden = entries
        .iter()
        .any(|entry| entry.is(&lint, "forbid") || entry.is(&with_level, "forbid"));
    if forbidden {
        return None;
    }
    let line = entries
        .iter()
        .find(|entry| entry.path.starts_with(&lint.map(str::to_owned)))
        .map_or(1, |entry| entry.line);
    let message = "The workspace does not forbid `unsafe`: set `unsafe_code = \"forbid\"` under [workspace.lints.rust].";
    Some(Problem::new("Cargo.toml", line, message))
}

fn inherits_lints(entries: &[Entry]) -> bool {
    entries
        .iter()
        .any(|entry| entry.is(&["lints", "workspace"], "true"))
}

/// The lines on which a manifest gives a dependency a version of its own. A declaration that cannot
/// be found counts, on the first line, so that no way of writing it slips through.
fn own_versions(entries: &[Entry], dependency: &Dependency) -> Vec<usize> {
    if dependency.from_path {
        return Vec::new();
    }
    let declared = manifest::declarations(entries, dependency.kind.table(), &dependency.key);
    if declared.is_empty() {
        return vec![1];
    }
    let own = declared
        .iter()
        .filter(|declaration: &&Declaration| !declaration.inherited);
    own.map(|declaration| declaration.line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::packages::{Kind, Package};
    use super::*;
    use std::path::PathBuf;

    const FORBIDDING: &str = "[workspace.lints.rust]\nunsafe_code = \"forbid\"\n";

    fn workspace(folder: &str, dependency: &str) -> Workspace {
        let dependency = Dependency {
            package: dependency.to_owned(),
            key: dependency.to_owned(),
            kind: Kind::Normal,
            from_path: false,
        };
        Workspace {
            root: PathBuf::new(),
            packages: vec![Package {
                name: "checked".to_owned(),
                folder: folder.to_owned(),
                dependencies: vec![dependency],
            }],
        }
    }

    fn lines(folder: &str, manifest: &str) -> Vec<usize> {
        let path = format!("{folder}/Cargo.toml");
        let tree = Tree::example(&[("Cargo.toml", FORBIDDING), (&path, manifest)]);
        let problems = check(&workspace(folder, "serde"), &tree);
        problems.into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn inheriting_everything_is_fine() {
        let inherited = "lints.workspace = true\n[dependencies]\nserde = { workspace = true, features = [\"rc\"] }\n";
        assert_eq!(lines("crates/model", inherited), [0; 0]);
    }

    #[test]
    fn an_own_version_is_reported_where_it_is() {
        let own = "[lints]\nworkspace = true\n[dependencies.serde]\nversion = \"1\"\n";
        assert_eq!(lines("crates/model", own), [4]);
    }

    #[test]
    fn only_the_sandbox_sets_its_own_lints() {
        let without_lints = "[dependencies]\nserde.workspace = true\n";
        assert_eq!(lines("crates/sandbox", without_lints), [0; 0]);
        assert_eq!(lines("crates/model", without_lints), [1]);
    }

    #[test]
    fn the_workspace_must_forbid_not_just_deny() {
        let denying = FORBIDDING.replace("forbid", "deny");
        let tree = Tree::example(&[("Cargo.toml", &denying)]);
        assert_eq!(
            check_workspace_lints(&tree).map(|problem| problem.line),
            Some(2)
        );
        let explained =
            "[workspace.lints.rust]\nunsafe_code = { level = \"forbid\", priority = 1 }\n";
        let tree = Tree::example(&[("Cargo.toml", explained)]);
        assert_eq!(check_workspace_lints(&tree), None);
    }
}
