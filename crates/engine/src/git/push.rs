//! Pushes a bundle that a container has made. The repository that git runs in is new, has no hooks and no
//! configuration, and is removed afterwards; the container never sees the credential. Until the push itself no
//! git command opens a transport: what a container gives instead of a bundle cannot name a repository of the host.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use oubliette_model::{BranchName, RemoteUrl};
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::askpass::GitAccess;
use super::bundle;
use super::{Git, RunLimits, run};
use crate::{Call, Credential, EngineError, Result};

/// The branch of the bundle in the repository.
const BRANCH: &str = "refs/heads/push";

/// A directory for one push. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct PushDirectory {
    path: PathBuf,
    _permit: OwnedSemaphorePermit,
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
    /// A directory for a push, when its turn has come.
    pub(crate) async fn push_directory(&self, call: &Call) -> Result<PushDirectory> {
        let permit = tokio::select! {
            permit = self.pushes.clone().acquire_owned() => permit.map_err(EngineError::fault)?,
            () = call.cancelled() => return Err(EngineError::Cancelled),
        };
        let path = self.scratch.join(Uuid::new_v4().to_string());
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(PushDirectory {
            path,
            _permit: permit,
        })
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
        let (pack, commit) = bundle::open(&directory.bundle())?;
        let mut index = self.command(&local);
        index
            .arg("-C")
            .arg(&repository)
            .args(["index-pack", "--stdin", "--strict"])
            .stdin(pack);
        run(index, "checking the commits", &repository, limits, "", call).await?;
        // Fails if the commit was not in the pack.
        let mut check = self.command(&local);
        check
            .arg("-C")
            .arg(&repository)
            .args(["update-ref", BRANCH, &commit]);
        run(check, "checking the commits", &repository, limits, "", call).await?;
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
