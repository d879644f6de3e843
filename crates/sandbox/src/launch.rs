//! Starts a sandbox: runs the launcher with the specification, waits for its reply until the timeout,
//! and cleans up after a failure.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::record::lock;
use crate::remove::clear_leftovers;
use crate::running::{RunningSandbox, find_running};
use crate::{Error, Result, Spec, handover, port_rules};

/// A launch takes a fraction of a second also on a busy machine.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_REPLY_BYTES: u64 = 64 * 1024;

/// The file in the state directory with the output of PID 1.
pub(crate) const LOG: &str = "init.log";
/// The directory in the state directory on which a launch mounts; always empty for the host.
pub(crate) const MOUNT_POINT: &str = "root";
/// The first argument of a launcher.
pub(crate) const LAUNCH_ARGUMENT: &str = "sandbox-launch";

/// The first argument of a launcher that protects paths of a running sandbox.
pub(crate) const PROTECT_ARGUMENT: &str = "sandbox-protect";

/// What the launcher writes to its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LauncherReply {
    Up,
    Failed(StepFailure),
}

/// A step of the launch that failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StepFailure {
    pub(crate) step: String,
    pub(crate) errno: i32,
}

/// Starts a sandbox and returns when its PID 1 has been executed. `launcher` is a binary whose
/// `main` begins with [`crate::launcher_main`]. A failed launch leaves only the directories.
pub fn launch(spec: &Spec, launcher: &Path) -> Result<RunningSandbox> {
    spec.validate()?;
    make_directories(spec)?;
    let lock = lock(&spec.state_dir)
        .map_err(|source| Error::io("failed to lock the sandbox's state", source))?;
    let _lock = lock.ok_or(Error::Locked)?;
    if let Some(running) = find_running(&spec.state_dir) {
        return Err(Error::AlreadyRunning { pid: running.pid() });
    }
    clear_leftovers(&spec.state_dir)?;
    let mut child = start(spec, launcher)?;
    let result = read_reply(&mut child).and_then(|()| {
        find_running(&spec.state_dir).ok_or_else(|| {
            Error::Launcher(format!(
                "PID 1 exited immediately{}",
                log_excerpt(&spec.state_dir)
            ))
        })
    });
    if result.is_err() {
        // It may have exited already; its children die with it.
        let _ = child.kill();
    }
    child
        .wait()
        .map_err(|source| Error::io("failed to wait for the sandbox launcher", source))?;
    if result.is_err() {
        clear_leftovers(&spec.state_dir)?;
    }
    result
}

fn make_directories(spec: &Spec) -> Result<()> {
    for dir in [
        &spec.state_dir,
        &spec.layers_dir,
        &spec.state_dir.join(MOUNT_POINT),
    ] {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|source| Error::io(format!("failed to make {}", dir.display()), source))?;
    }
    Ok(())
}

fn start(spec: &Spec, launcher: &Path) -> Result<Child> {
    let log_path = spec.state_dir.join(LOG);
    let log = File::create(&log_path)
        .map_err(|source| Error::io(format!("failed to make {}", log_path.display()), source))?;
    let files = hand_over(spec)
        .map_err(|source| Error::io("failed to pass the specification to the launcher", source))?;
    Command::new(launcher)
        .arg(LAUNCH_ARGUMENT)
        .env_clear()
        .current_dir("/")
        .stdin(files)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|source| Error::io(format!("failed to start {}", launcher.display()), source))
}

fn hand_over(spec: &Spec) -> std::io::Result<OwnedFd> {
    // A file in memory rather than a pipe: writing never blocks.
    let spec_file = write_to_memory(spec)?;
    let port_rules = port_rules::for_spec(spec)?;
    handover::send(spec_file.as_fd(), port_rules.as_ref().map(AsFd::as_fd))
}

fn write_to_memory(spec: &Spec) -> std::io::Result<File> {
    let fd: OwnedFd = rustix::fs::memfd_create("spec", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(&serde_json::to_vec(spec)?)?;
    file.rewind()?;
    Ok(file)
}

pub(crate) fn read_reply(child: &mut Child) -> Result<()> {
    let Some(mut stdout) = child.stdout.take() else {
        return Err(Error::Launcher("no output".to_owned()));
    };
    let until = Instant::now() + LAUNCH_TIMEOUT;
    let mut reply = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Timeout(LAUNCH_TIMEOUT.as_secs()));
        }
        let timeout = Timespec::try_from(left).ok();
        let ready = poll(&mut [PollFd::new(&stdout, PollFlags::IN)], timeout.as_ref());
        if !matches!(ready, Ok(count) if count > 0) {
            continue;
        }
        let mut chunk = [0; 4096];
        let len = stdout
            .read(&mut chunk)
            .map_err(|source| Error::io("failed to read the launcher's reply", source))?;
        reply.extend_from_slice(&chunk[..len]);
        if len == 0 || reply.len() as u64 > MAX_REPLY_BYTES {
            break;
        }
    }
    match serde_json::from_slice(&reply) {
        Ok(LauncherReply::Up) => Ok(()),
        Ok(LauncherReply::Failed(failure)) => Err(Error::Step {
            step: failure.step,
            source: std::io::Error::from_raw_os_error(failure.errno),
        }),
        Err(_) => Err(Error::Launcher(
            String::from_utf8_lossy(&reply[..reply.len().min(200)]).into_owned(),
        )),
    }
}

/// The beginning of PID 1's log, for an error message.
fn log_excerpt(state_dir: &Path) -> String {
    let mut text = String::new();
    if let Ok(file) = File::open(state_dir.join(LOG)) {
        // Without a readable log the message is only shorter.
        let _ = file.take(500).read_to_string(&mut text);
    }
    match text.trim() {
        "" => String::new(),
        text => format!(": {text}"),
    }
}
