//! Processes that are not ours: bounded in time, and gone afterwards with all they started.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// How a process ended, and its output.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end and the end of everything that holds its output.
///
/// # Panics
/// If that takes longer than `limit`.
pub async fn run(command: &mut Command, limit: Duration) -> Ended {
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let group = ProcessGroup::new(child.id().unwrap());
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let whole = async { tokio::join!(read(stdout), read(stderr), child.wait()) };
    let Ok((stdout, stderr, status)) = tokio::time::timeout(limit, whole).await else {
        panic!("{command:?} did not end within {limit:?}");
    };
    group.forget();
    Ended {
        status: status.unwrap(),
        stdout,
        stderr,
    }
}

async fn read(mut from: impl AsyncRead + Unpin) -> String {
    let mut text = Vec::new();
    from.read_to_end(&mut text).await.unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// A process group that is killed unless it ended by itself.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn new(leader: u32) -> Self {
        Self(Pid::from_raw(leader.cast_signed()))
    }

    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
