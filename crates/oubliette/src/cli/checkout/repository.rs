//! The git repository that a command was started in.

use std::path::{Path, PathBuf};

use super::git::{Git, last_lines};
use super::scratch::Scratch;
use crate::failure::Failure;
use crate::home::Home;

#[derive(Debug)]
pub(super) struct Repository {
    /// The top directory of the working tree.
    pub(super) root: PathBuf,
    pub(super) git_dir: PathBuf,
    pub(super) git: Git,
    /// An empty repository of a directory that is in none. It is removed with this value.
    temporary: Option<Scratch>,
    /// Where directories for snapshots are made.
    pub(super) home: Home,
}

/// What HEAD is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// None before the first commit.
    pub(super) commit: Option<String>,
    /// None if HEAD is detached.
    pub(super) branch: Option<String>,
}

impl Repository {
    /// The repository that a directory is in; None if it is in none, or if git is not installed.
    pub(super) fn find(directory: &Path, home: &Home) -> Result<Option<Self>, Failure> {
        let git = Git::new(directory);
        let Ok(found) = git.command(["rev-parse", "--show-toplevel"]).output() else {
            return Ok(None);
        };
        if !found.status.success() {
            let why = String::from_utf8_lossy(&found.stderr).into_owned();
            let is_outside = [
                "not a git repository",
                "must be run in a work tree",
                "cannot use bare repository",
            ]
            .iter()
            .any(|text| why.contains(text));
            return if is_outside {
                Ok(None)
            } else {
                Err(Failure::new(last_lines(&found.stderr)))
            };
        }
        let root = git.path(["rev-parse", "--show-toplevel"])?;
        let git = Git::new(&root);
        let repository = Self {
            git_dir: git.path(["rev-parse", "--absolute-git-dir"])?,
            root,
            git,
            temporary: None,
            home: home.clone(),
        };
        let format = repository.git.run(["rev-parse", "--show-object-format"])?;
        if format.stdout.starts_with(b"sha256") {
            return Err(Failure::new(
                "this repository has object names of SHA-256, which cannot be sent; use --empty, and copy \
                 files with `oubliette cp`",
            ));
        }
        Ok(Some(repository))
    }

    /// A directory that is in no repository: everything in it is uncommitted.
    pub(super) fn without_history(directory: &Path, home: &Home) -> Result<Self, Failure> {
        let root = std::fs::canonicalize(directory).map_err(|error| {
            Failure::with_cause(format!("cannot use {}", directory.display()), &error)
        })?;
        let temporary = Scratch::new(home)?;
        let git_dir = temporary.path().join("git");
        let git = Git::new(&root);
        git.output([
            "init".as_ref(),
            "-q".as_ref(),
            "--bare".as_ref(),
            "--template=".as_ref(),
            git_dir.as_os_str(),
        ])?;
        let git = git
            .with_variable("GIT_DIR", &git_dir)
            .with_variable("GIT_WORK_TREE", &root);
        git.output(["config", "core.bare", "false"])?;
        git.output(["symbolic-ref", "HEAD", "refs/heads/main"])?;
        Ok(Self {
            root,
            git_dir,
            git,
            temporary: Some(temporary),
            home: home.clone(),
        })
    }

    /// The data directories of Oubliette in the working tree: the one in use, and the default one. Agents get neither
    /// keys nor the files of other projects.
    pub(super) fn data_directories(&self) -> Result<Vec<PathBuf>, Failure> {
        let default = std::env::home_dir().map(|home| home.join(".oubliette"));
        let all = [Some(self.home.path().to_owned()), default];
        let mut found = Vec::new();
        for directory in all.into_iter().flatten() {
            let Ok(directory) = std::fs::canonicalize(directory) else {
                continue;
            };
            let Ok(inside) = directory.strip_prefix(&self.root) else {
                continue;
            };
            if inside.as_os_str().is_empty() {
                return Err(Failure::new(format!(
                    "{} is the data directory of Oubliette, which agents do not get; choose another directory",
                    directory.display()
                )));
            }
            if !found.iter().any(|known| known == inside) {
                found.push(inside.to_owned());
            }
        }
        Ok(found)
    }

    /// Whether the directory is in no repository.
    pub(super) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    pub(super) fn head(&self) -> Result<Head, Failure> {
        let commit = self
            .git
            .run(["rev-parse", "-q", "--verify", "HEAD^{commit}"])?;
        let branch = self.git.run(["symbolic-ref", "-q", "HEAD"])?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
        let commit = commit.status.success().then(|| text(commit.stdout));
        let branch = branch.status.success().then(|| text(branch.stdout));
        let branch = branch.and_then(|name| Some(name.strip_prefix("refs/heads/")?.to_owned()));
        Ok(Head { commit, branch })
    }

    /// What the user should know about a copy of this repository.
    pub(super) fn notes(&self) -> Vec<String> {
        let under_way = [
            ("rebase-merge", "a rebase"),
            ("rebase-apply", "a rebase"),
            ("MERGE_HEAD", "a merge"),
            ("CHERRY_PICK_HEAD", "a cherry-pick"),
            ("REVERT_HEAD", "a revert"),
            ("BISECT_LOG", "a bisection"),
        ];
        let mut notes = Vec::new();
        let exists = |name: &str| self.git_dir.join(name).exists();
        if let Some((_, what)) = under_way.iter().find(|(name, _)| exists(name)) {
            notes.push(format!(
                "{what} is under way here: the copy has the files as they are now, without its state"
            ));
        }
        let attributes = std::fs::read_to_string(self.root.join(".gitattributes"));
        if attributes.is_ok_and(|text| text.contains("filter=lfs")) {
            notes.push("files of Git LFS that are not modified are sent as pointers".to_owned());
        }
        notes
    }

    /// The path of a file in the repository's own directory.
    pub(super) fn git_path(&self, name: &str) -> Result<PathBuf, Failure> {
        self.git.path(["rev-parse", "--git-path", name])
    }
}
