//! Shell commands: a process group of their own, output bounded, gone when nobody waits for them.

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
const MOST_OUTPUT: usize = 1024 * 1024;
/// How long output is read after the shell has ended, for what its children still hold open.
const LINGER: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) output: String,
    pub(crate) truncated: bool,
    pub(crate) status: ExitStatus,
}

impl Outcome {
    /// The output, and how it ended unless well.
    pub(crate) fn text(&self) -> String {
        let mut text = self.output.trim_end().to_owned();
        if self.truncated {
            text.push_str("\n(more output was left out)");
        }
        let ending = match (self.status.code(), self.status.signal()) {
            (Some(0), _) => return text,
            (Some(code), _) => format!("(exit code {code})"),
            (None, signal) => format!("(killed by signal {})", signal.unwrap_or_default()),
        };
        if !text.is_empty() {
            text.push('\n');
        }
        text + &ending
    }
}

/// Runs a command to the end of its shell. Dropping the future kills the whole group.
pub(crate) async fn run(command: &str, directory: &Path) -> io::Result<Outcome> {
    // One pipe for both streams, so that what was written first comes first.
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
    let group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let mut output = pipe::Receiver::from_owned_fd(reader.into())?;
    let mut kept = Kept::default();
    let mut buffer = vec![0; 16 * 1024];
    let status = loop {
        tokio::select! {
            biased;
            read = output.read(&mut buffer) => match read? {
                0 => break child.wait().await?,
                read => kept.add(&buffer[..read]),
            },
            ended = child.wait() => {
                let rest = drain(&mut output, &mut buffer, &mut kept);
                // No end within this time: something in the background holds the pipe.
                if let Ok(drained) = tokio::time::timeout(LINGER, rest).await {
                    drained?;
                }
                break ended?;
            }
        }
    };
    // What the command left in the background on purpose goes on.
    group.forget();
    Ok(Outcome {
        output: String::from_utf8_lossy(&kept.bytes).into_owned(),
        truncated: kept.truncated,
        status,
    })
}

async fn drain(output: &mut pipe::Receiver, buffer: &mut [u8], kept: &mut Kept) -> io::Result<()> {
    loop {
        match output.read(buffer).await? {
            0 => return Ok(()),
            read => kept.add(&buffer[..read]),
        }
    }
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    truncated: bool,
}

impl Kept {
    fn add(&mut self, bytes: &[u8]) {
        let room = MOST_OUTPUT - self.bytes.len();
        self.truncated |= bytes.len() > room;
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// A process group that is killed unless it ended.
struct Group(Option<Pid>);

impl Group {
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
