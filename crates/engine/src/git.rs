//! Git on the host: new repositories and clones.
//!
//! A clone runs with an empty environment and no configuration but ours, so that neither the
//! host's settings nor the remote side can name a program to run. Git must never run here in a
//! directory that an agent could have written: a repository's own configuration can name programs.

mod askpass;
mod progress;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use oubliette_model::{RemoteUrl, Transport};
use tokio::process::{Child, Command};

use self::askpass::Access;
use self::progress::Transcript;
use crate::settings::ProjectRules;
use crate::{Call, Credential, EngineError, Result};

/// Checked this often while a clone runs: its size, for one.
const CHECK: Duration = Duration::from_millis(500);

/// What a clone may take from the server's own environment: the way to the network.
const PASSED_ON: [&str; 9] = [
    "PATH",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

#[derive(Debug)]
pub(crate) struct Git {
    /// For what a clone needs on disk while it runs; private.
    scratch: PathBuf,
    rules: ProjectRules,
}

impl Git {
    pub(crate) fn new(data_dir: &Path, rules: ProjectRules) -> Result<Self> {
        let scratch = data_dir.join("run").join("git");
        // What a server that died left there may hold credentials.
        match fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        fs::create_dir_all(&scratch)?;
        Ok(Self { scratch, rules })
    }

    /// Makes an empty repository on branch `main`. It is a handful of files, so no git is needed.
    pub(crate) fn init(&self, workspace: &Path) -> Result<()> {
        let git = workspace.join(".git");
        for directory in [
            "objects/info",
            "objects/pack",
            "refs/heads",
            "refs/tags",
            "info",
        ] {
            fs::create_dir_all(git.join(directory))?;
        }
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n")?;
        fs::write(
            git.join("config"),
            "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\
             \tlogallrefupdates = true\n",
        )?;
        Ok(())
    }

    /// Whether a clone of this address is allowed at all, before anything is done.
    pub(crate) fn check(&self, url: &RemoteUrl, credential: Option<&Credential>) -> Result<()> {
        if url.transport() == Transport::Local && !self.rules.allow_local_clone {
            return Err(EngineError::invalid(
                "cloning from the server's own disk is not allowed; use https or ssh, or set \
                 `projects.allow_local_clone = true` in oubliette.toml",
            ));
        }
        if url.transport() == Transport::Http && credential.is_some() && !url.is_loopback() {
            return Err(EngineError::invalid(
                "a credential is never sent over plain http; use https",
            ));
        }
        Ok(())
    }

    /// Clones into an empty directory.
    pub(crate) async fn clone(
        &self,
        url: &RemoteUrl,
        credential: Option<&Credential>,
        into: &Path,
        call: &Call,
    ) -> Result<()> {
        self.check(url, credential)?;
        let access = Access::prepare(&self.scratch, url, credential)?;
        let mut command = self.command(&access);
        command
            .args([
                "clone",
                "--progress",
                "--template=",
                "--no-recurse-submodules",
                "--",
            ])
            .arg(url.as_str())
            .arg(into);
        let bounds = Bounds {
            time: Duration::from_secs(self.rules.clone_timeout_seconds),
            bytes: self.rules.clone_max_mb.saturating_mul(1 << 20),
        };
        let outcome = run(command, &format!("cloning {url}"), into, bounds, call).await;
        outcome.map_err(|error| access.redact(error))
    }

    /// Clones a workspace that no agent has written to, at HEAD, onto a branch of its own.
    pub(crate) async fn branch_off(
        &self,
        source: &Path,
        into: &Path,
        branch: &str,
        call: &Call,
    ) -> Result<()> {
        let access = Access::none(&self.scratch)?;
        let bounds = Bounds {
            time: Duration::from_secs(600),
            bytes: u64::MAX,
        };
        let mut clone = self.command(&access);
        clone.args(["clone", "--progress", "--template=", "--no-hardlinks", "--"]);
        clone.arg(source).arg(into);
        run(clone, "making the workspace", into, bounds, call).await?;
        let mut checkout = self.command(&access);
        checkout
            .arg("-C")
            .arg(into)
            .args(["checkout", "-q", "-b", branch]);
        run(checkout, "making the branch", into, bounds, call).await
    }

    /// Git with nothing around it that could name a program.
    fn command(&self, access: &Access) -> Command {
        let protocols = if self.rules.allow_local_clone || access.is_local() {
            "https:http:ssh:file"
        } else {
            "https:http:ssh"
        };
        let mut command = Command::new("git");
        command
            .env_clear()
            .envs(
                PASSED_ON
                    .iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?))),
            )
            .envs([
                ("HOME", access.home().as_os_str()),
                ("GIT_CONFIG_NOSYSTEM", OsStr::new("1")),
                ("GIT_CONFIG_GLOBAL", OsStr::new("/dev/null")),
                ("GIT_TERMINAL_PROMPT", OsStr::new("0")),
                ("GIT_ALLOW_PROTOCOL", OsStr::new(protocols)),
                ("GIT_LFS_SKIP_SMUDGE", OsStr::new("1")),
                ("LC_ALL", OsStr::new("C")),
            ])
            .envs(access.variables())
            .args(["-c", "core.hooksPath=/dev/null", "-c", "core.symlinks=true"])
            .args(["-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command
    }
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    time: Duration,
    bytes: u64,
}

/// Runs git to its end, or ends it and everything it started.
async fn run(
    mut command: Command,
    what: &str,
    directory: &Path,
    bounds: Bounds,
    call: &Call,
) -> Result<()> {
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => EngineError::Failed(
            "git is not installed where the server runs; install it and try again".to_owned(),
        ),
        _ => error.into(),
    })?;
    let group = Group::of(&child);
    let mut transcript = Transcript::of(child.stderr.take(), what, call);
    let deadline = tokio::time::sleep(bounds.time);
    tokio::pin!(deadline);
    let mut checks = tokio::time::interval(CHECK);
    let status = loop {
        tokio::select! {
            status = finish(&mut child, &mut transcript) => break status?,
            () = &mut deadline => {
                group.kill();
                return Err(EngineError::Failed(format!(
                    "{what} took longer than {} seconds and was stopped",
                    bounds.time.as_secs()
                )));
            }
            () = call.cancelled() => {
                group.kill();
                return Err(EngineError::Cancelled);
            }
            _ = checks.tick(), if bounds.bytes < u64::MAX => {
                let size = size_of(directory.to_owned()).await;
                if size > bounds.bytes {
                    group.kill();
                    return Err(EngineError::Failed(format!(
                        "{what} was stopped: it is larger than {} MB \
                         (`projects.clone_max_mb` in oubliette.toml)",
                        bounds.bytes >> 20
                    )));
                }
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    Err(EngineError::Failed(format!(
        "{what} failed: {}; check the address and `git_credential`",
        transcript.last_words()
    )))
}

async fn finish(
    child: &mut Child,
    transcript: &mut Transcript<'_>,
) -> io::Result<std::process::ExitStatus> {
    transcript.follow().await?;
    child.wait().await
}

/// The process group of a command. Dropping it ends the group, whatever ends the wait for it.
#[derive(Debug)]
struct Group(Option<rustix::process::Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(rustix::process::Pid::from_raw))
    }

    fn kill(&self) {
        if let Some(pid) = self.0 {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How many bytes a tree takes, as far as it can be read while it is being written.
async fn size_of(directory: PathBuf) -> u64 {
    fn walk(directory: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(directory) else {
            return 0;
        };
        entries
            .flatten()
            .map(|entry| match entry.metadata() {
                Ok(meta) if meta.is_dir() => walk(&entry.path()),
                Ok(meta) => meta.len(),
                Err(_) => 0,
            })
            .sum()
    }
    tokio::task::spawn_blocking(move || walk(&directory))
        .await
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
