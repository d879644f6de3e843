//! The hook that names the session in commits, for repositories that were made without it: before there was
//! one, or by the agent itself.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

const HOOK: &str = "hooks/prepare-commit-msg";
/// Says that the hook was offered, so that one that a user has removed does not come back.
const MARKER: &str = "oubliette/commit-hook";

/// Adds the hook to the repository of a directory, unless it has one of that name, or had ours. Everything
/// runs as the agent's user: a link leads nowhere that the agent could not go.
pub(super) fn add(directory: &Path, content: &str) -> io::Result<()> {
    let git = directory.join(".git");
    // A worktree or submodule has its hooks elsewhere.
    let is_repository = git.symlink_metadata().is_ok_and(|found| found.is_dir());
    let (hook, marker) = (git.join(HOOK), git.join(MARKER));
    if content.is_empty() || !is_repository || marker.symlink_metadata().is_ok() {
        return Ok(());
    }
    if hook.symlink_metadata().is_err() {
        make_parent(&hook)?;
        let draft = git.join(format!(
            "hooks/.oubliette-{}",
            uuid::Uuid::new_v4().simple()
        ));
        // A link never replaces what has the name by now, and the hook is never half of one.
        let made = write(&draft, content, 0o755).and_then(|()| fs::hard_link(&draft, &hook));
        let _ = fs::remove_file(&draft);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    make_parent(&marker)?;
    write(&marker, "", 0o644)
}

fn write(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(path);
    file?.write_all(content.as_bytes())
}

fn make_parent(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o755);
    path.parent().map_or(Ok(()), |path| builder.create(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_hook_is_added_once_and_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| directory.path().join(path);
        // No repository, and one whose hooks are elsewhere.
        add(directory.path(), "ours").unwrap();
        fs::write(at(".git"), "gitdir: elsewhere").unwrap();
        add(directory.path(), "ours").unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        fs::remove_file(at(".git")).unwrap();

        fs::create_dir(at(".git")).unwrap();
        add(directory.path(), "ours").unwrap();
        let hook = at(".git/hooks/prepare-commit-msg");
        assert_eq!(fs::read_to_string(&hook).unwrap(), "ours");
        let mode = fs::metadata(&hook).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111);
        assert_eq!(fs::read_dir(at(".git/hooks")).unwrap().count(), 1);
        // One that was removed or replaced stays so.
        fs::remove_file(&hook).unwrap();
        add(directory.path(), "ours").unwrap();
        assert!(!hook.exists());

        fs::remove_dir_all(at(".git")).unwrap();
        fs::create_dir_all(at(".git/hooks")).unwrap();
        fs::write(&hook, "theirs").unwrap();
        add(directory.path(), "ours").unwrap();
        assert_eq!(fs::read_to_string(&hook).unwrap(), "theirs");
    }
}
