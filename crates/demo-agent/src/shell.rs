//! Shell commands: each has its own process group and bounded output, and is killed when its future is
//! dropped.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Command;

/// How much output is kept; the rest is read and dropped.
const MAX_OUTPUT_BYTES: usize = 1024 * 1024;
/// How long output is read after the shell has exited, if its children hold the pipe open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct ShellOutcome {
    pub(crate) output: String,
    pub(crate) truncated: bool,
    pub(crate) status: ExitStatus,
}

impl ShellOutcome {
    /// The output, and the exit status unless it is 0.
    pub(crate) fn text(&self) -> String {
        let mut text = self.output.trim_end().to_owned();
        if self.truncated {
            text.push_str("\n(more output was left out)");
        }
        let status = match (self.status.code(), self.status.signal()) {
            (Some(0), _) => return text,
            (Some(code), _) => format!("(exit code {code})"),
            (None, signal) => format!("(killed by signal {})", signal.unwrap_or_default()),
        };
        if !text.is_empty() {
            text.push('\n');
        }
        text + &status
    }
}

/// Runs a command until its shell exits. Dropping the future kills the process group.
pub(crate) async fn run(command: &str, directory: &Path) -> io::Result<ShellOutcome> {
    // One pipe for both streams keeps the order of their output.
    let (reader, writer) = io::pipe()?;
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .current_dir(directory)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    let group = KillOnDrop(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let mut output = pipe::Receiver::from_owned_fd(reader.into())?;
    let mut captured = BoundedOutput::default();
    let mut buffer = vec![0; 16 * 1024];
    let status = loop {
        tokio::select! {
            biased;
            read = output.read(&mut buffer) => match read? {
                0 => break child.wait().await?,
                read => captured.add(&buffer[..read]),
            },
            ended = child.wait() => {
                let rest = drain(&mut output, &mut buffer, &mut captured);
                // After the timeout, a background process still holds the pipe.
                if let Ok(drained) = tokio::time::timeout(DRAIN_TIMEOUT, rest).await {
                    drained?;
                }
                break ended?;
            }
        }
    };
    // Background processes of the command keep running.
    group.disarm();
    Ok(ShellOutcome {
        output: String::from_utf8_lossy(&captured.bytes).into_owned(),
        truncated: captured.truncated,
        status,
    })
}

async fn drain(
    output: &mut pipe::Receiver,
    buffer: &mut [u8],
    captured: &mut BoundedOutput,
) -> io::Result<()> {
    loop {
        match output.read(buffer).await? {
            0 => return Ok(()),
            read => captured.add(&buffer[..read]),
        }
    }
}

#[derive(Debug, Default)]
struct BoundedOutput {
    bytes: Vec<u8>,
    truncated: bool,
}

impl BoundedOutput {
    fn add(&mut self, bytes: &[u8]) {
        let free = MAX_OUTPUT_BYTES - self.bytes.len();
        self.truncated |= bytes.len() > free;
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(free)]);
    }
}

/// Kills a process group, unless it is disarmed.
struct KillOnDrop(Option<Pid>);

impl KillOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
