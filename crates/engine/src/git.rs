//! Git on the host: new repositories and clones.
//!
//! Git runs with an empty environment and only our configuration, so that neither the settings of
//! the host nor the remote can name a program to run. Git must never run here in a directory that an
//! agent may have written: the configuration of a repository can name programs.

mod askpass;
mod bundle;
mod progress;
mod push;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use oubliette_model::{RemoteUrl, Transport};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use self::askpass::GitAccess;
use self::progress::GitOutput;
use crate::files::is_disk_full;
use crate::settings::ProjectRules;
use crate::{Call, Credential, EngineError, Result};

const SIZE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// At once.
const MAX_PUSHES: usize = 2;
const WORKSPACE_CLONE_TIMEOUT: Duration = Duration::from_secs(600);

/// Adds the session to the message of a commit. It is the workspace's own hook: tools that install hooks
/// replace or extend it, and `core.hooksPath` turns it off. It never prevents a commit.
pub(crate) const COMMIT_MESSAGE_HOOK: &str = r#"#!/bin/sh
# Names the Oubliette session in the commits of its agent. It can be removed.
[ -n "$OUBLIETTE_SESSION_ID" ] && grep -q '^[^#[:space:]]' "$1" || exit 0
git interpret-trailers --in-place --if-exists addIfDifferent \
    --trailer "Oubliette-Session: $OUBLIETTE_SESSION_ID" "$1"
exit 0
"#;

/// What git gets from the environment of the server: the network settings.
const INHERITED_VARIABLES: [&str; 9] = [
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
    /// Private files of running commands, for example credentials.
    scratch: PathBuf,
    rules: ProjectRules,
    /// Each push takes the space of its commits twice, outside of what projects are limited to.
    pushes: Arc<Semaphore>,
}

impl Git {
    pub(crate) fn new(data_dir: &Path, rules: ProjectRules) -> Result<Self> {
        let scratch = data_dir.join("run").join("git");
        // A server that died may have left credentials there.
        match fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        fs::create_dir_all(&scratch)?;
        Ok(Self {
            scratch,
            rules,
            pushes: Arc::new(Semaphore::new(MAX_PUSHES)),
        })
    }

    /// Creates an empty repository on branch `main`. It is a few files, so git is not needed.
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
        add_hook(workspace)
    }

    /// Fails if the configuration does not allow a clone of this address.
    pub(crate) fn check(&self, url: &RemoteUrl, credential: Option<&Credential>) -> Result<()> {
        if url.transport() == Transport::Local && !self.rules.allow_local_clone {
            return Err(EngineError::invalid(
                "cloning from the disk of the server is not allowed; use https or ssh, or set \
                 `projects.allow_local_clone = true` in oubliette.toml",
            ));
        }
        if url.transport() == Transport::Http && credential.is_some() && !url.is_loopback() {
            return Err(EngineError::invalid(
                "a credential is not sent over unencrypted http; use https",
            ));
        }
        if let Some(base) = credential.and_then(|credential| credential.base_url.as_ref())
            && base.authority() != url.host()
        {
            return Err(EngineError::invalid(format!(
                "the credential of `git_credential` is only for {base}, not for this address"
            )));
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
        let access = GitAccess::for_remote(&self.scratch, url, credential)?;
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
        let limits = RunLimits {
            max_time: Duration::from_secs(self.rules.clone_timeout_seconds),
            max_bytes: self.rules.clone_max_mb.saturating_mul(1 << 20),
        };
        let what = format!("cloning {url}");
        let remedy = "; check the address and `git_credential`";
        let outcome = run(command, &what, into, limits, remedy, call).await;
        outcome.map_err(|error| access.redact(error))?;
        add_hook(into)
    }

    /// Clones a workspace that no agent has written to, at HEAD, and creates a branch in the clone.
    pub(crate) async fn clone_to_branch(
        &self,
        source: &Path,
        into: &Path,
        branch: &str,
        call: &Call,
    ) -> Result<()> {
        let access = GitAccess::without_credential(&self.scratch)?;
        let limits = RunLimits {
            max_time: WORKSPACE_CLONE_TIMEOUT,
            max_bytes: u64::MAX,
        };
        let mut clone = self.command(&access);
        clone.args(["clone", "--progress", "--template=", "--no-hardlinks", "--"]);
        clone.arg(source).arg(into);
        run(clone, "cloning the workspace", into, limits, "", call).await?;
        let mut checkout = self.command(&access);
        checkout
            .arg("-C")
            .arg(into)
            .args(["checkout", "-q", "-b", branch]);
        run(checkout, "creating the branch", into, limits, "", call).await?;
        add_hook(into)
    }

    /// A git command without environment or configuration that could name a program.
    fn command(&self, access: &GitAccess) -> Command {
        let protocols = if self.rules.allow_local_clone || access.is_local() {
            "https:http:ssh:file"
        } else {
            "https:http:ssh"
        };
        let mut command = Command::new("git");
        command
            .env_clear()
            .envs(
                INHERITED_VARIABLES
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

/// Adds the hook to a new repository.
fn add_hook(workspace: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let hooks = workspace.join(".git/hooks");
    fs::create_dir_all(&hooks)?;
    let hook = hooks.join("prepare-commit-msg");
    fs::write(&hook, COMMIT_MESSAGE_HOOK)?;
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct RunLimits {
    max_time: Duration,
    max_bytes: u64,
}

/// Runs git until it exits, or kills its process group at a limit or when the call is cancelled. `remedy` is
/// added to the error if git fails.
async fn run(
    mut command: Command,
    what: &str,
    directory: &Path,
    limits: RunLimits,
    remedy: &str,
    call: &Call,
) -> Result<()> {
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => EngineError::Failed(
            "git is not installed on the server; install it and try again".to_owned(),
        ),
        _ => error.into(),
    })?;
    let group = ProcessGroup::new(&child);
    let mut output = GitOutput::new(child.stderr.take(), what, call);
    let deadline = tokio::time::sleep(limits.max_time);
    tokio::pin!(deadline);
    let mut checks = tokio::time::interval(SIZE_CHECK_INTERVAL);
    let status = loop {
        tokio::select! {
            status = wait(&mut child, &mut output) => break status?,
            () = &mut deadline => {
                group.kill();
                return Err(EngineError::Failed(format!(
                    "{what} took longer than {} seconds and was stopped",
                    limits.max_time.as_secs()
                )));
            }
            () = call.cancelled() => {
                group.kill();
                return Err(EngineError::Cancelled);
            }
            _ = checks.tick(), if limits.max_bytes < u64::MAX => {
                let size = measure_size(directory.to_owned()).await;
                if size > limits.max_bytes {
                    group.kill();
                    return Err(EngineError::Failed(format!(
                        "{what} was stopped: it is larger than {} MB \
                         (`projects.clone_max_mb` in oubliette.toml)",
                        limits.max_bytes >> 20
                    )));
                }
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    // Git does not say so.
    let parent = directory.parent().unwrap_or(directory);
    if is_disk_full(parent.to_owned()).await {
        return Err(EngineError::disk_full());
    }
    Err(EngineError::Failed(format!(
        "{what} failed: {}{remedy}",
        output.last_lines()
    )))
}

async fn wait(
    child: &mut Child,
    output: &mut GitOutput<'_>,
) -> io::Result<std::process::ExitStatus> {
    output.read_to_end().await?;
    child.wait().await
}

/// The process group of a command. Dropping it kills the group.
#[derive(Debug)]
struct ProcessGroup(Option<rustix::process::Pid>);

impl ProcessGroup {
    fn new(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(rustix::process::Pid::from_raw))
    }

    fn kill(&self) {
        if let Some(pid) = self.0 {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The bytes of a directory on the disk, as far as they can be counted while git works there.
async fn measure_size(directory: PathBuf) -> u64 {
    let measured =
        tokio::task::spawn_blocking(move || oubliette_trees::disk_usage(&directory)).await;
    measured.map_or(0, |usage| usage.map_or(0, |usage| usage.bytes))
}

#[cfg(test)]
mod tests;
