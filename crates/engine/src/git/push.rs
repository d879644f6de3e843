//! Pushes a bundle that a container has made. The repository that git runs in is new, has no hooks and no
//! configuration, and is removed afterwards; the container never sees the credential.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oubliette_model::{BranchName, RemoteUrl};
use uuid::Uuid;

use super::askpass::GitAccess;
use super::{Git, RunLimits, run};
use crate::{Call, Credential, EngineError, Result};

/// The branch of the bundle in the repository.
const BRANCH: &str = "refs/heads/push";

/// A directory for one push. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct PushDirectory {
    path: PathBuf,
}

impl PushDirectory {
    /// Where the bundle is to be written.
    pub(crate) fn bundle(&self) -> PathBuf {
        self.path.join("bundle")
    }

    fn repository(&self) -> PathBuf {
        self.path.join("repository")
    }
}

impl Drop for PushDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, "could not remove the files of a push");
        }
    }
}

impl Git {
    pub(crate) fn push_directory(&self) -> Result<PushDirectory> {
        let path = self.scratch.join(Uuid::new_v4().to_string());
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(PushDirectory { path })
    }

    /// Pushes HEAD of the bundle to a branch; returns its commit.
    pub(crate) async fn push(
        &self,
        directory: &PushDirectory,
        url: &RemoteUrl,
        credential: Option<&Credential>,
        branch: &BranchName,
        call: &Call,
    ) -> Result<String> {
        self.check(url, credential)?;
        let repository = directory.repository();
        let limits = RunLimits {
            max_time: Duration::from_secs(self.rules.clone_timeout_seconds),
            max_bytes: self.rules.clone_max_mb.saturating_mul(1 << 20),
        };
        let local = GitAccess::without_credential(&self.scratch)?;
        let mut init = self.command(&local);
        init.args(["init", "-q", "--bare", "--template="])
            .arg(&repository);
        run(init, "preparing the push", &repository, limits, "", call).await?;
        let mut fetch = self.command(&local);
        fetch
            .arg("-C")
            .arg(&repository)
            .args([
                "-c",
                "transfer.fsckObjects=true",
                "fetch",
                "-q",
                "--no-tags",
                "--",
            ])
            .arg(directory.bundle())
            .arg(format!("HEAD:{BRANCH}"));
        run(fetch, "checking the commits", &repository, limits, "", call).await?;
        let commit = read_commit(&repository)?;
        let access = GitAccess::for_remote(&self.scratch, url, credential)?;
        let mut push = self.command(&access);
        push.arg("-C")
            .arg(&repository)
            .args([
                "push",
                "--progress",
                "--no-verify",
                "--recurse-submodules=no",
                "--",
            ])
            .arg(url.as_str())
            .arg(format!("{BRANCH}:refs/heads/{branch}"));
        let pushed = run(
            push,
            &format!("pushing to {url}"),
            &repository,
            limits,
            "; check `remote_url` and the credential",
            call,
        )
        .await;
        pushed.map_err(|error| access.redact(error))?;
        Ok(commit)
    }
}

fn read_commit(repository: &Path) -> Result<String> {
    let text = fs::read_to_string(repository.join(BRANCH))?;
    let commit = text.trim();
    if commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(commit.to_owned());
    }
    Err(EngineError::fault("git wrote no commit"))
}
