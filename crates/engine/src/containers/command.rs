//! Runs a command in a container to its end, through any loss of the connection.

use std::sync::Arc;
use std::time::Duration;

use oubliette_runtime::ContainerId;
use oubliette_wire::{ExitStatus, Exited, StreamKind};
use tokio::time::Instant;
use uuid::Uuid;

use super::exec::default_environment;
use super::process::{PendingStream, Process, ProcessError, ProcessSpec, RETRY_INTERVAL};
use super::{ContainerState, Containers, SupervisorLink, UNNAMED_PREFIX};
use crate::{EngineError, Result};

/// How much of each output stream is returned; the rest is counted and dropped.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// What the supervisor keeps: everything that is returned, and some more while the server reads.
pub(super) const MAX_COMMAND_SPOOL_BYTES: u64 = (MAX_OUTPUT_BYTES + (256 << 10)) as u64;
const READ_BYTES: usize = 64 << 10;
/// How long a command that was killed may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of commands that the server runs for itself.
const INTERNAL_COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// A command with all of its input.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) process: ProcessSpec,
    pub(super) stdin: Vec<u8>,
}

/// How a command ended, with its output.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Finished {
    pub(super) ended: Option<ExitStatus>,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) truncated: bool,
    pub(super) timed_out: bool,
    /// The caller cancelled it.
    pub(super) cancelled: bool,
    /// How many processes of the container its memory limit killed meanwhile.
    pub(super) memory_kills: u64,
    /// Why the server stopped the container, if it did, and the command with it.
    pub(super) stop_reason: Option<String>,
}

impl Finished {
    /// What a shell reports for a program that it cannot run.
    fn not_started(code: i32, message: &str) -> Self {
        Self {
            ended: Some(ExitStatus::Code(code)),
            stderr: format!("{message}\n").into_bytes(),
            ..Self::default()
        }
    }
}

/// The end of a command that the server ran for itself, with its trimmed output.
#[derive(Debug)]
pub(crate) enum CommandResult {
    Succeeded(String),
    Failed(String),
}

impl CommandResult {
    fn from_output(has_succeeded: bool, stdout: &[u8], stderr: &[u8]) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if has_succeeded {
            Self::Succeeded(text(stdout))
        } else {
            Self::Failed(text(stderr))
        }
    }
}

/// A process of the server itself. The next server kills it.
pub(super) fn server_process(argv: Vec<String>) -> ProcessSpec {
    ProcessSpec {
        process_id: format!("{UNNAMED_PREFIX}{}", Uuid::new_v4()),
        argv,
        env: default_environment(),
        cwd: "/".to_owned(),
        terminal: None,
        max_spool_bytes: MAX_COMMAND_SPOOL_BYTES,
        isolated: false,
    }
}

impl Containers<'_> {
    /// Runs a command for the server itself, for example to write a file.
    pub(crate) async fn run_command(
        self,
        container: &ContainerId,
        link: Arc<SupervisorLink>,
        argv: Vec<String>,
        stdin: Vec<u8>,
    ) -> Result<CommandResult> {
        let process = server_process(argv);
        let command = Command { process, stdin };
        let state = self.state();
        let _in_use = state.mark_in_use(container);
        let _awaited = AwaitedGuard::new(state, &command.process.process_id);
        let never = std::future::pending();
        let finished = run(state, link, &command, INTERNAL_COMMAND_TIMEOUT, never).await?;
        state
            .forget_process(container, &command.process.process_id)
            .await;
        let has_succeeded = finished.ended == Some(ExitStatus::Code(0));
        let (stdout, stderr) = (&finished.stdout, &finished.stderr);
        Ok(CommandResult::from_output(has_succeeded, stdout, stderr))
    }
}

/// Runs a command to its end, or kills it with everything it started after `timeout` or when
/// `cancelled` returns. A command that was started under the same process id is joined.
///
/// The supervisor keeps the command until the caller forgets it. The caller holds an [`AwaitedGuard`] of
/// an unnamed command until then. The error is [`ProcessError::NotSent`] or [`ProcessError::Rejected`] only if the command was never started.
pub(super) async fn run(
    state: &Arc<ContainerState>,
    link: Arc<SupervisorLink>,
    command: &Command,
    timeout: Duration,
    cancelled: impl Future<Output = ()>,
) -> Result<Finished, ProcessError> {
    let spec = &command.process;
    let memory_kills = state.watch_memory_kills(&link).await;
    let container = link.container().clone();
    let mut process = Process::new(state, link, &*spec.process_id);
    let mut cancelled = std::pin::pin!(cancelled);
    let deadline = Instant::now() + timeout;
    let (mut stdout, mut stderr) = (CapturedOutput::default(), CapturedOutput::default());
    let (mut timed_out, mut is_cancelled, mut is_sent) = (false, false, false);
    let ended = loop {
        let attempt = async {
            let mut streams = Vec::new();
            if timed_out || is_cancelled {
                process.kill().await;
            } else {
                let wanted = [
                    (StreamKind::Stdout, stdout.offset),
                    (StreamKind::Stderr, stderr.offset),
                ];
                // After a lost reply this finds the command that was started.
                let started = process.start_with_streams(spec, &wanted).await;
                is_sent |= !matches!(started, Err(ProcessError::NotSent));
                streams = started?;
            }
            // Boxed: futures of sessions hold this one.
            let writing = Box::pin(write_input(&process, &command.stdin));
            let followed = follow(&process, writing, streams, &mut stdout, &mut stderr);
            followed.await.map_err(error_after_start)
        };
        let outcome = tokio::select! {
            outcome = attempt => outcome,
            () = tokio::time::sleep_until(deadline), if !timed_out => {
                timed_out = true;
                continue;
            }
            () = &mut cancelled, if !is_cancelled => {
                is_cancelled = true;
                continue;
            }
            // A process that cannot be killed ends with its container.
            () = tokio::time::sleep_until(deadline + KILL_TIMEOUT), if timed_out => break None,
        };
        match outcome {
            Ok(exited) => break Some(exited.ended),
            Err(ProcessError::ProgramNotFound(message)) => {
                return Ok(Finished::not_started(127, &message));
            }
            Err(ProcessError::ProgramNotExecutable(message)) => {
                return Ok(Finished::not_started(126, &message));
            }
            Err(error) if error.is_connection_lost() => tokio::time::sleep(RETRY_INTERVAL).await,
            Err(error) => return Err(error),
        }
        if let Err(error) = process.reconnect().await {
            return Err(if is_sent {
                error_after_start(error)
            } else {
                ProcessError::NotSent
            });
        }
    };
    let has_failed = ended.is_some_and(|ended| ended != ExitStatus::Code(0));
    Ok(Finished {
        stop_reason: state.stop_reason(&container).filter(|_| has_failed),
        ended: ended.filter(|_| !timed_out),
        truncated: stdout.truncated || stderr.truncated,
        stdout: stdout.bytes,
        stderr: stderr.bytes,
        timed_out,
        cancelled: is_cancelled,
        memory_kills: memory_kills.count(),
    })
}

/// Keeps an error of a command that was started from looking like a refused start.
fn error_after_start(error: ProcessError) -> ProcessError {
    if error.is_connection_lost() {
        ProcessError::ConnectionLost
    } else {
        ProcessError::Failed(EngineError::from(error))
    }
}

/// Records that this server waits for an unnamed command until the guard is dropped.
#[derive(Debug)]
pub(super) struct AwaitedGuard {
    state: Arc<ContainerState>,
    process_id: String,
}

impl AwaitedGuard {
    pub(super) fn new(state: &Arc<ContainerState>, process_id: &str) -> Self {
        state.awaited_commands.lock().insert(process_id.to_owned());
        Self {
            state: state.clone(),
            process_id: process_id.to_owned(),
        }
    }

    /// None if this server already waits for the command.
    pub(super) fn try_new(state: &Arc<ContainerState>, process_id: &str) -> Option<Self> {
        let is_new = state.awaited_commands.lock().insert(process_id.to_owned());
        is_new.then(|| Self {
            state: state.clone(),
            process_id: process_id.to_owned(),
        })
    }
}

impl Drop for AwaitedGuard {
    fn drop(&mut self) {
        self.state.awaited_commands.lock().remove(&self.process_id);
    }
}

/// The output of one stream so far.
#[derive(Debug, Default)]
pub(super) struct CapturedOutput {
    bytes: Vec<u8>,
    offset: u64,
    truncated: bool,
}

impl CapturedOutput {
    fn push(&mut self, bytes: &[u8]) {
        let room = MAX_OUTPUT_BYTES - self.bytes.len();
        self.truncated |= bytes.len() > room;
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// The end of a command of the server, from what was captured.
pub(super) fn trimmed_result(
    has_succeeded: bool,
    stdout: &CapturedOutput,
    stderr: &CapturedOutput,
) -> CommandResult {
    CommandResult::from_output(has_succeeded, &stdout.bytes, &stderr.bytes)
}

/// Writes the input and reads the output until the command has exited and everything it had written
/// by then was read.
pub(super) async fn follow(
    process: &Process,
    writing: impl Future<Output = Result<(), ProcessError>>,
    streams: Vec<PendingStream>,
    stdout: &mut CapturedOutput,
    stderr: &mut CapturedOutput,
) -> Result<Exited, ProcessError> {
    let mut streams = streams.into_iter();
    let (stdout_stream, stderr_stream) = (streams.next(), streams.next());
    let reading = async {
        tokio::try_join!(
            capture(process, StreamKind::Stdout, stdout_stream, stdout),
            capture(process, StreamKind::Stderr, stderr_stream, stderr),
        )
    };
    let writing = async {
        writing.await?;
        std::future::pending().await
    };
    let streaming = async {
        tokio::select! {
            read = reading => read.map(drop),
            written = writing => written,
        }
    };
    let (exited, ()) = tokio::try_join!(process.exited(), streaming)?;
    Ok(exited)
}

/// Reads a stream until it ends, or until everything was read that the command had written when it
/// exited.
async fn capture(
    process: &Process,
    kind: StreamKind,
    pending: Option<PendingStream>,
    captured: &mut CapturedOutput,
) -> Result<(), ProcessError> {
    let opened = process.open_requested_output(kind, captured.offset, pending);
    let mut reader = opened.await?;
    // A command that was joined late: an earlier caller has received the missing bytes.
    captured.truncated |= reader.is_missing_bytes();
    captured.offset = reader.offset();
    let mut chunk = Vec::new();
    let mut exited = None;
    while exited
        .as_ref()
        .is_none_or(|exited| !reader.is_complete(exited))
    {
        tokio::select! {
            read = reader.read(&mut chunk, READ_BYTES) => {
                if read? == 0 {
                    let exited = process.exited().await?;
                    return if reader.is_complete(&exited) {
                        Ok(())
                    } else {
                        Err(ProcessError::ConnectionLost)
                    };
                }
                captured.push(&chunk);
                captured.offset = reader.offset();
                chunk.clear();
                if captured.truncated {
                    // The rest is only counted, so the supervisor need not keep it.
                    process.acknowledge(kind, captured.offset).await;
                }
            }
            ended = process.exited(), if exited.is_none() => exited = Some(ended?),
        }
    }
    Ok(())
}

async fn write_input(process: &Process, input: &[u8]) -> Result<(), ProcessError> {
    let end = input.len() as u64;
    if input.is_empty() {
        process.close_stdin(end).await;
        return Ok(());
    }
    let mut stdin = process.open_stdin(0).await?;
    stdin.finish(input).await?;
    process.close_stdin(end).await;
    // The connection stays open until the supervisor has read everything.
    let _ = stdin.wait_until_taken().await;
    Ok(())
}
