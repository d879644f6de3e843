//! Sends input and receives output over one connection to the supervisor.

use std::time::Duration;

use oubliette_wire::{ExitStatus, Exited, StreamKind};
use tokio::time::Instant;

use super::output::OutputStream;
use super::params::InteractiveCall;
use crate::EngineError;
use crate::containers::process::{Process, ProcessError};

/// How long a call with new output still waits for the command to take its input.
const INPUT_TAKEN_TIMEOUT: Duration = Duration::from_millis(100);
/// Calls wait at least this long for output, because output that exists needs time to arrive.
const MIN_OUTPUT_WAIT: Duration = Duration::from_millis(50);
/// The same for the command to take input.
const MIN_INPUT_WAIT: Duration = Duration::from_secs(2);

/// How long a call with much output waits for more.
const BULK_TIMEOUT: Duration = Duration::from_millis(10);

/// What one call has received.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The offset after the input, if the command took it.
    pub(super) stdin: Option<u64>,
    pub(super) stdout: Option<OutputStream>,
    pub(super) stderr: Option<OutputStream>,
    pub(super) ended: Option<ExitStatus>,
}

/// Sends what the call has for the command, and waits for new output until the call times out.
pub(super) async fn exchange(
    process: &Process,
    request: &mut InteractiveCall,
    started: Instant,
) -> Result<Received, ProcessError> {
    if let Some(signal) = request.signal {
        process.signal(signal).await?;
        request.signal = None;
    }
    if let Some(size) = request.terminal_size {
        process.resize(size).await?;
        request.terminal_size = None;
    }
    let offsets = request.offsets;
    let max_bytes = request.max_output_bytes();
    let (mut stdout, mut stderr) = tokio::try_join!(
        OutputStream::open(process, StreamKind::Stdout, offsets.stdout, max_bytes),
        OutputStream::open(process, StreamKind::Stderr, offsets.stderr, max_bytes),
    )?;
    let wants_output = stdout.is_some() || stderr.is_some();
    let output_deadline = started + request.wait.max(MIN_OUTPUT_WAIT);
    let input_deadline = started + request.wait.max(MIN_INPUT_WAIT);
    let mut sending = std::pin::pin!(send_input(process, request));
    let mut stdin = None;
    let mut ended = None;
    {
        let mut receiving = std::pin::pin!(receive_output(process, &mut stdout, &mut stderr));
        loop {
            tokio::select! {
                // Input first: a call that only sends input waits for nothing else.
                biased;
                sent = &mut sending, if stdin.is_none() => {
                    stdin = Some(sent?);
                    if !wants_output {
                        break;
                    }
                }
                received = &mut receiving, if wants_output => {
                    ended = received?;
                    if stdin.is_none()
                        && let Ok(sent) = tokio::time::timeout(INPUT_TAKEN_TIMEOUT, &mut sending).await
                    {
                        stdin = Some(sent?);
                    }
                    break;
                }
                () = tokio::time::sleep_until(output_deadline), if stdin.is_some() => break,
                () = tokio::time::sleep_until(input_deadline) => break,
            }
        }
    }
    Ok(Received {
        stdin: stdin.flatten(),
        stdout,
        stderr,
        ended,
    })
}

/// Waits until a stream has new output; returns how the command ended if it has and all of its output
/// was received by earlier calls.
async fn receive_output(
    process: &Process,
    stdout: &mut Option<OutputStream>,
    stderr: &mut Option<OutputStream>,
) -> Result<Option<ExitStatus>, ProcessError> {
    let mut exited: Option<Exited> = None;
    loop {
        if let Some(exited) = &exited {
            let mut incomplete = [&*stdout, &*stderr]
                .into_iter()
                .flatten()
                .map(OutputStream::reader)
                .filter(|reader| !reader.is_complete(exited))
                .peekable();
            if incomplete.peek().is_none() {
                return Ok(Some(exited.ended));
            }
            if incomplete.any(|reader| reader.is_closed()) {
                return Err(ProcessError::ConnectionLost);
            }
        }
        tokio::select! {
            read = OutputStream::read(stdout) => read?,
            read = OutputStream::read(stderr) => read?,
            ended = process.exited(), if exited.is_none() => {
                exited = Some(ended?);
                continue;
            }
        }
        if OutputStream::has_bytes(stdout) || OutputStream::has_bytes(stderr) {
            // One call returns what both streams have.
            tokio::join!(
                OutputStream::read_available(stdout),
                OutputStream::read_available(stderr)
            );
            // A round trip takes longer than the rest of what one call can return.
            let _ = tokio::time::timeout(BULK_TIMEOUT, OutputStream::fill(stdout)).await;
            return Ok(None);
        }
    }
}

/// Sends input to the command; returns the offset after it, or None if there was no input.
async fn send_input(
    process: &Process,
    request: &InteractiveCall,
) -> Result<Option<u64>, ProcessError> {
    let from = request.offsets.stdin.unwrap_or_default();
    let end = from + request.input.len() as u64;
    if !request.input.is_empty() {
        let mut stdin = process.open_stdin(from).await?;
        if stdin.offset() < from {
            return Err(ProcessError::Failed(EngineError::invalid(format!(
                "`offsets.stdin` is {from}, but the command has received only {} bytes; send the \
                 missing bytes first",
                stdin.offset()
            ))));
        }
        stdin.finish(&request.input).await?;
        stdin.wait_until_taken().await?;
    }
    if request.close_stdin {
        process.close_stdin_confirmed(end).await?;
    }
    Ok((!request.input.is_empty()).then_some(end))
}
