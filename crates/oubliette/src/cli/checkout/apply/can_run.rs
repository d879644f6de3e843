//! Which of the files that an apply writes a program of the user may run, or take commands from, without being told
//! to: the user should look at them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::super::git::Git;
use super::MAX_LISTED_PATHS;
use crate::failure::Failure;

/// Names of such files, in any directory.
const NAMES: [&str; 9] = [
    ".gitattributes",
    ".gitmodules",
    ".gitconfig",
    ".envrc",
    ".pre-commit-config.yaml",
    ".lefthook.yml",
    "lefthook.yml",
    ".mcp.json",
    ".npmrc",
];
/// Directories of such files.
const DIRECTORIES: [&str; 9] = [
    ".husky",
    ".githooks",
    ".vscode",
    ".idea",
    ".devcontainer",
    ".zed",
    ".claude",
    ".codex",
    ".gemini",
];

/// The paths of the files, and of directories that git would take for repositories.
pub(super) fn find(git: &Git, root: &Path, written: &[&Path]) -> Result<Vec<String>, Failure> {
    let configured = configured(git, root)?;
    let mut found = BTreeSet::new();
    for path in written {
        let is_named = path.file_name().is_some_and(|name| is_one_of(name, &NAMES));
        let is_below = path
            .parent()
            .is_some_and(|parent| parent.iter().any(|name| is_one_of(name, &DIRECTORIES)));
        if is_named || is_below || configured.iter().any(|place| path.starts_with(place)) {
            found.insert((*path).to_owned());
        }
    }
    found.extend(repositories(root, written));
    let mut shown: Vec<String> = found
        .iter()
        .take(MAX_LISTED_PATHS)
        .map(|path| path.display().to_string())
        .collect();
    if found.len() > MAX_LISTED_PATHS {
        shown.push("…".to_owned());
    }
    Ok(shown)
}

fn is_one_of(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Files and directories of the working tree that the settings of git name: those of hooks, and included settings.
fn configured(git: &Git, root: &Path) -> Result<Vec<PathBuf>, Failure> {
    use std::os::unix::ffi::OsStrExt;
    let mut places = Vec::new();
    let hooks = git.run(["config", "-z", "--type=path", "--get-all", "core.hooksPath"])?;
    places.extend(hooks.stdout.split(|byte| *byte == 0).map(<[u8]>::to_owned));
    let listed = git.run(["config", "-z", "--list", "--show-origin", "--name-only"])?;
    for field in listed.stdout.split(|byte| *byte == 0) {
        places.extend(field.strip_prefix(b"file:").map(<[u8]>::to_owned));
    }
    let places: BTreeSet<Vec<u8>> = places
        .into_iter()
        .filter(|place| !place.is_empty())
        .collect();
    let below = places.iter().filter_map(|place| {
        let place = resolve(&root.join(OsStr::from_bytes(place)));
        let below = place.strip_prefix(root).ok()?;
        Some(below.to_owned())
    });
    Ok(below.collect())
}

/// The path without `.` and `..`; it need not exist.
fn resolve(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                resolved.pop();
            }
            part => resolved.push(part),
        }
    }
    resolved
}

/// Directories that have become a repository: git in them uses their settings.
fn repositories(root: &Path, written: &[&Path]) -> BTreeSet<PathBuf> {
    let heads = written.iter().filter(|path| {
        path.file_name()
            .is_some_and(|name| name.eq_ignore_ascii_case("HEAD"))
    });
    let mut found = BTreeSet::new();
    for directory in heads.filter_map(|path| path.parent()) {
        let has = |name: &str| {
            let place = directory.join(name);
            root.join(&place).exists() || written.iter().any(|path| path.starts_with(&place))
        };
        if has("objects") || has("refs") || has("config") {
            found.insert(directory.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_programs_run_by_themselves_are_found() {
        let root = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(root.path()).unwrap();
        let git = Git::new(&root);
        git.output(["init", "-q"]).unwrap();
        git.output(["config", "core.hooksPath", "tools/../hooks"])
            .unwrap();
        git.output(["config", "include.path", "../settings/git"])
            .unwrap();
        std::fs::create_dir(root.join("settings")).unwrap();
        std::fs::write(root.join("settings/git"), "[a]\n\tb = c\n").unwrap();
        let written: Vec<&Path> = [
            "hooks/pre-commit",
            "settings/git",
            "settings/other",
            "sub/.gitattributes",
            ".vscode/tasks.json",
            "ev/HEAD",
            "ev/config",
            "src/HEAD",
            "src/main.rs",
        ]
        .iter()
        .map(Path::new)
        .collect();
        let found = find(&git, &root, &written).unwrap();
        let expected = [
            ".vscode/tasks.json",
            "ev",
            "hooks/pre-commit",
            "settings/git",
            "sub/.gitattributes",
        ];
        assert_eq!(found, expected);
    }
}
