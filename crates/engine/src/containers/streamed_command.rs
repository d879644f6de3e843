//! Runs a command of the server whose input arrives while it runs.

use std::sync::Arc;
use std::time::Duration;

use oubliette_runtime::ContainerId;
use oubliette_wire::{ExitStatus, StreamKind};

use super::command::{
    AwaitedGuard, CapturedOutput, CommandResult, follow, server_process, trimmed_result,
};
use super::process::{Process, ProcessError, ProcessSpec, RETRY_INTERVAL};
use super::{Containers, SupervisorLink};
use crate::{EngineError, Result};

/// How long a command may take to exit after its input has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(300);
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// The input of a command, piece by piece.
pub(crate) trait CommandInput: Send {
    /// The next piece; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send;
}

/// How far the input of a command was sent.
#[derive(Debug, Default)]
struct SentInput {
    bytes: u64,
    /// Why the input could not be sent to its end.
    error: Option<EngineError>,
    has_ended: bool,
}

impl Containers<'_> {
    /// Runs a command for the server itself. If its input fails, it ends there, and the error is returned when
    /// the command has exited. The command must not take an input that ends early for a complete one.
    ///
    /// Must not be dropped before it returns: the command would wait for more input.
    pub(crate) async fn run_with_input(
        self,
        container: &ContainerId,
        link: Arc<SupervisorLink>,
        argv: Vec<String>,
        input: &mut impl CommandInput,
    ) -> Result<CommandResult> {
        let spec = server_process(argv);
        let state = self.state();
        let _in_use = state.mark_in_use(container);
        let _awaited = AwaitedGuard::new(state, &spec.process_id);
        let process = Process::new(state, link, &*spec.process_id);
        let result = follow_input(process.clone(), &spec, input).await;
        match &result {
            Ok(_) => state.forget_process(container, &spec.process_id).await,
            Err(_) => process.terminate(KILL_TIMEOUT).await,
        }
        result
    }
}

async fn follow_input(
    mut process: Process,
    spec: &ProcessSpec,
    input: &mut impl CommandInput,
) -> Result<CommandResult> {
    let wanted = [(StreamKind::Stdout, 0), (StreamKind::Stderr, 0)];
    let streams = process.start_with_streams(spec, &wanted).await?;
    let (mut stdout, mut stderr) = (CapturedOutput::default(), CapturedOutput::default());
    let mut sent = SentInput::default();
    let ended = {
        let feeding = Box::pin(feed(&process, input, &mut sent));
        follow(&process, feeding, streams, &mut stdout, &mut stderr).await
    };
    let exited = match ended {
        Ok(exited) => exited,
        // Everything was sent: another connection shows how the command ended.
        Err(error) if error.is_connection_lost() && sent.has_ended => loop {
            tokio::time::sleep(RETRY_INTERVAL).await;
            process.reconnect().await?;
            let closing = async {
                process.close_stdin(sent.bytes).await;
                Ok(())
            };
            let following = follow(&process, closing, Vec::new(), &mut stdout, &mut stderr);
            let followed = tokio::time::timeout(EXIT_TIMEOUT, following).await;
            match followed.unwrap_or(Err(ProcessError::Gone)) {
                Err(error) if error.is_connection_lost() => {}
                ended => break ended?,
            }
        },
        Err(error) => return Err(error.into()),
    };
    if let Some(error) = sent.error {
        return Err(error);
    }
    let has_succeeded = exited.ended == ExitStatus::Code(0);
    Ok(trimmed_result(has_succeeded, &stdout, &stderr))
}

/// Sends the input. Fails only if the connection is lost, or if the command does not exit in time.
async fn feed(
    process: &Process,
    input: &mut impl CommandInput,
    sent: &mut SentInput,
) -> Result<(), ProcessError> {
    let mut stdin = process.open_stdin(0).await?;
    loop {
        let bytes = match input.next().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => break,
            Err(error) => {
                sent.error = Some(error);
                break;
            }
        };
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let written = stdin.write(rest).await?;
            sent.bytes += written as u64;
            rest = &rest[written..];
        }
    }
    stdin.finish(&[]).await?;
    process.close_stdin(sent.bytes).await;
    sent.has_ended = true;
    // The connection stays open until the supervisor has read everything.
    let _ = stdin.wait_until_taken().await;
    tokio::time::sleep(EXIT_TIMEOUT).await;
    let text = "the command in the container did not end in time";
    Err(ProcessError::Failed(EngineError::Failed(text.to_owned())))
}
