//! Runs the command with a timeout and bounded output.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Join, ReadBuf};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::commands::Invocation;
use crate::plain_lines::PlainLines;
use crate::{Progress, Result, RuntimeError};

/// More than any listing; the rest is dropped.
const MAX_OUTPUT_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Cli {
    program: PathBuf,
}

/// The output of a command, and whether it succeeded.
#[derive(Debug)]
pub(super) struct CommandOutput {
    pub(super) success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Cli {
    pub(super) fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
        }
    }

    /// Runs a command to its end; `progress` gets each line it prints.
    pub(super) async fn run(
        &self,
        invocation: &Invocation,
        timeout: Duration,
        progress: Progress<'_>,
    ) -> Result<CommandOutput> {
        let mut command = Command::new(&self.program);
        command
            .args(&invocation.arguments)
            .envs(
                invocation
                    .variables
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| {
            RuntimeError::Unavailable(format!(
                "`{}` cannot be run: {error}.",
                self.program.display()
            ))
        })?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let running = async {
            let (stdout, stderr, status) = tokio::join!(
                read_output(stdout, progress),
                read_output(stderr, progress),
                child.wait()
            );
            Ok(CommandOutput {
                success: status?.success(),
                stdout: stdout?,
                stderr: stderr?,
            })
        };
        tokio::time::timeout(timeout, running).await.map_err(|_| {
            RuntimeError::Unavailable(format!(
                "`{}` did not finish in {} seconds.",
                self.program.display(),
                timeout.as_secs()
            ))
        })?
    }

    /// Starts a command and connects to its input and output; dropping the result ends it.
    pub(super) fn attach(&self, invocation: &Invocation) -> Result<AttachedCommand> {
        let mut command = Command::new(&self.program);
        command
            .args(&invocation.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let unavailable = |why: String| {
            RuntimeError::Unavailable(format!(
                "`{}` cannot be run: {why}.",
                self.program.display()
            ))
        };
        let mut child = command
            .spawn()
            .map_err(|error| unavailable(error.to_string()))?;
        match (child.stdout.take(), child.stdin.take()) {
            (Some(output), Some(input)) => Ok(AttachedCommand {
                streams: tokio::io::join(output, input),
                _child: child,
            }),
            _ => Err(unavailable("it has no input or output".to_owned())),
        }
    }

    /// Runs a command that must succeed, and returns its output.
    pub(super) async fn run_checked(
        &self,
        invocation: &Invocation,
        timeout: Duration,
    ) -> Result<String> {
        self.run(invocation, timeout, &|_| {}).await?.into_stdout()
    }
}

/// A running command and its input and output.
#[derive(Debug)]
pub(super) struct AttachedCommand {
    streams: Join<ChildStdout, ChildStdin>,
    _child: Child,
}

impl AsyncRead for AttachedCommand {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.streams).poll_read(context, buffer)
    }
}

impl AsyncWrite for AttachedCommand {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.streams).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.streams).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.streams).poll_shutdown(context)
    }
}

impl CommandOutput {
    /// The output, or the error that the command printed.
    pub(super) fn into_stdout(self) -> Result<String> {
        if self.success {
            return Ok(self.stdout);
        }
        let mut plain = PlainLines::default();
        let mut lines = plain.push(&self.stderr);
        lines.extend(plain.finish());
        let message = lines
            .iter()
            .rev()
            .find(|line| line.contains("Error:"))
            .or(lines.last())
            .map_or("`container` failed without a message", |line| line.trim());
        Err(RuntimeError::Failed(message.to_owned()))
    }
}

async fn read_output(
    stream: Option<impl AsyncRead + Unpin>,
    progress: Progress<'_>,
) -> io::Result<String> {
    let Some(mut stream) = stream else {
        return Ok(String::new());
    };
    let (mut bytes, mut plain) = (Vec::new(), PlainLines::default());
    let mut chunk = vec![0; 8 << 10];
    loop {
        let read = stream.read(&mut chunk).await?;
        if read == 0 {
            break;
        }
        for line in plain.push(&String::from_utf8_lossy(&chunk[..read])) {
            progress(&line);
        }
        let remaining = MAX_OUTPUT_BYTES.saturating_sub(bytes.len());
        bytes.extend_from_slice(&chunk[..read.min(remaining)]);
    }
    if let Some(line) = plain.finish() {
        progress(&line);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
