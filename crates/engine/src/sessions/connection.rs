//! The connection to a live agent: lines of its output with their offsets, bytes for its input, and the
//! last of its error output.

use std::collections::VecDeque;
use std::time::Duration;

use oubliette_wire::{ExitStatus, Exited, LineReader, StreamKind};
use tokio::time::Instant;

use super::redactor::Redactor;
use crate::containers::process::{InputWriter, OutputReader, Process, ProcessError};

/// How much of an agent's output the supervisor keeps until it is committed: the longest line that is
/// read, and more.
pub(super) const MAX_AGENT_SPOOL_BYTES: u64 = 24 << 20;
const STDOUT_READ_BYTES: usize = 16 << 10;
const STDERR_READ_BYTES: usize = 1 << 10;
const MAX_RECENT_STDERR_BYTES: usize = 4 << 10;
/// How long an agent that has closed its output may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// What happened on a connection.
#[derive(Debug, PartialEq)]
pub(super) enum ProcessEvent {
    /// There may be new lines.
    Output,
    /// There is nothing to handle.
    Nothing,
    /// The agent has exited, and all of its output was read.
    Exited,
    /// The agent has closed its output and keeps running.
    StdoutClosed,
    ConnectionLost,
}

/// The streams of a live agent over one connection to its supervisor.
#[derive(Debug)]
pub(super) struct AgentConnection {
    pub(super) process: Process,
    pub(super) lines: LineReader,
    stdin: InputWriter,
    stdout: OutputReader,
    stderr: OutputReader,
    unsent: VecDeque<u8>,
    exited: Option<Exited>,
    recent_stderr: VecDeque<u8>,
    stdout_closed_at: Option<Instant>,
    buffer: Vec<u8>,
    stderr_buffer: Vec<u8>,
}

impl AgentConnection {
    /// Opens the input from `stdin` on and the output from `stdout` on, which may be inside a line that
    /// is too long.
    pub(super) async fn open(
        process: Process,
        stdin: u64,
        stdout: u64,
        inside_long_line: bool,
    ) -> Result<Self, ProcessError> {
        let (stdin, stdout, stderr) = tokio::try_join!(
            process.open_stdin(stdin),
            process.open_output(StreamKind::Stdout, stdout),
            process.open_output(StreamKind::Stderr, 0),
        )?;
        let inside_long_line = inside_long_line && !stdout.is_missing_bytes();
        Ok(Self {
            lines: LineReader::resume(stdout.offset(), inside_long_line),
            process,
            stdin,
            stdout,
            stderr,
            unsent: VecDeque::new(),
            exited: None,
            recent_stderr: VecDeque::new(),
            stdout_closed_at: None,
            buffer: Vec::new(),
            stderr_buffer: Vec::new(),
        })
    }

    /// The offset from which output is read, if output before it is missing.
    pub(super) fn missing_until(&self) -> Option<u64> {
        let is_missing = self.stdout.is_missing_bytes();
        is_missing.then(|| self.stdout.offset())
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.unsent.extend(bytes);
    }

    /// The last of the agent's error output, redacted.
    pub(super) fn recent_stderr(&self, redactor: &Redactor) -> String {
        let bytes: Vec<u8> = self.recent_stderr.iter().copied().collect();
        let is_cut = self.stderr.offset() > bytes.len() as u64;
        let text = if is_cut {
            redactor.redact_tail(&bytes)
        } else {
            redactor.redact_text(String::from_utf8_lossy(&bytes).into_owned())
        };
        let is_shown = |c: &char| *c == '\n' || !c.is_control();
        text.chars().filter(is_shown).collect()
    }

    pub(super) fn ended(&self) -> Option<ExitStatus> {
        self.exited.as_ref().map(|exited| exited.ended)
    }

    /// Whether the agent has exited and all of its output was read.
    fn is_complete(&self) -> bool {
        let Some(exited) = &self.exited else {
            return false;
        };
        let stdout = self.stdout.is_closed() || self.stdout.is_complete(exited);
        stdout && (self.stderr.is_closed() || self.stderr.is_complete(exited))
    }

    /// Waits for the next event. Cancel safe.
    pub(super) async fn next_event(&mut self) -> ProcessEvent {
        if self.is_complete() {
            return ProcessEvent::Exited;
        }
        let Self {
            process,
            stdin,
            stdout,
            stderr,
            unsent,
            exited,
            stdout_closed_at,
            buffer,
            stderr_buffer,
            ..
        } = self;
        let exit_deadline = stdout_closed_at.unwrap_or_else(Instant::now) + EXIT_TIMEOUT;
        tokio::select! {
            read = stdout.read(buffer, STDOUT_READ_BYTES), if !stdout.is_closed() => match read {
                Ok(0) => {
                    // The end of the output or of the connection: the supervisor reports which.
                    *stdout_closed_at = Some(Instant::now());
                    ProcessEvent::Nothing
                }
                Ok(_) => {
                    self.lines.push(buffer);
                    buffer.clear();
                    ProcessEvent::Output
                }
                Err(_) => ProcessEvent::ConnectionLost,
            },
            read = stderr.read(stderr_buffer, STDERR_READ_BYTES), if !stderr.is_closed() => {
                if read.is_ok_and(|read| read > 0) {
                    self.handle_stderr().await;
                }
                ProcessEvent::Nothing
            }
            written = stdin.write(unsent.as_slices().0), if !unsent.is_empty() => match written {
                Ok(written) => {
                    unsent.drain(..written);
                    ProcessEvent::Nothing
                }
                Err(_) => ProcessEvent::ConnectionLost,
            },
            ended = process.exited(), if exited.is_none() => match ended {
                Ok(ended) => {
                    *exited = Some(ended);
                    ProcessEvent::Nothing
                }
                Err(_) => ProcessEvent::ConnectionLost,
            },
            () = tokio::time::sleep_until(exit_deadline),
                if stdout_closed_at.is_some() && exited.is_none() => ProcessEvent::StdoutClosed,
            () = process.link().closed() => ProcessEvent::ConnectionLost,
        }
    }

    async fn handle_stderr(&mut self) {
        self.recent_stderr.extend(self.stderr_buffer.drain(..));
        let excess = self
            .recent_stderr
            .len()
            .saturating_sub(MAX_RECENT_STDERR_BYTES);
        self.recent_stderr.drain(..excess);
        // The last part is not acknowledged, so that a later connection can read it again.
        let read_before = self
            .stderr
            .offset()
            .saturating_sub(MAX_RECENT_STDERR_BYTES as u64);
        self.process
            .acknowledge(StreamKind::Stderr, read_before)
            .await;
    }
}
