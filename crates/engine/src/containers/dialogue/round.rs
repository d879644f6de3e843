//! One round of a dialogue: input in, output out, on one connection to the supervisor.

use std::time::Duration;

use oubliette_wire::{
    CloseStdin, ExitStatus, Exited, ProcessFaultKind, ResizeTerminal, SignalProcess, StreamKind,
    supervisor_methods,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::Partner;
use super::talk::Step;
use super::voice::Voice;
use crate::EngineError;
use crate::containers::link::{Link, LinkError};

/// Input that a command does not take is not waited for any longer once it has said something.
const SWALLOW: Duration = Duration::from_millis(100);
/// What is there already needs a moment to arrive, also in a call that does not wait.
const MOMENT: Duration = Duration::from_millis(50);
/// And so does input.
const LONG_MOMENT: Duration = Duration::from_secs(2);

/// Why a round of a step came to nothing.
pub(super) enum Halt {
    /// Try again on the next connection.
    Lost,
    /// The supervisor does not know the command.
    Gone,
    Failed(EngineError),
}

impl From<LinkError> for Halt {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Lost | LinkError::Unsaid => Self::Lost,
            LinkError::Told {
                kind: ProcessFaultKind::NoSuchProcess,
                ..
            } => Self::Gone,
            LinkError::Told { why, .. } => Self::Failed(EngineError::Failed(why)),
        }
    }
}

/// What one call has heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) stdin: Option<u64>,
    pub(super) stdout: Option<Voice>,
    pub(super) stderr: Option<Voice>,
    pub(super) ended: Option<ExitStatus>,
}

impl Partner<'_> {
    /// Brings and takes on one connection.
    pub(super) async fn round(
        &self,
        link: &Link,
        step: &mut Step,
        begun: Instant,
    ) -> Result<Heard, Halt> {
        if let Some(signal) = step.signal {
            let to = SignalProcess {
                process_id: self.process_id.clone(),
                signal,
                tree: true,
            };
            link.ask(supervisor_methods::SIGNAL, &to).await?;
            step.signal = None;
        }
        if let Some(size) = step.size {
            let resize = ResizeTerminal {
                process_id: self.process_id.clone(),
                size,
            };
            link.ask(supervisor_methods::RESIZE, &resize).await?;
            step.size = None;
        }
        let ear = |kind, from: Option<u64>| async move {
            match from {
                Some(from) => Voice::open(self, link, kind, from).await.map(Some),
                None => Ok(None),
            }
        };
        let (mut stdout, mut stderr) = tokio::try_join!(
            ear(StreamKind::Stdout, step.offsets.stdout),
            ear(StreamKind::Stderr, step.offsets.stderr),
        )?;
        let mut feeding = std::pin::pin!(self.feed(link, step));
        let mut stdin = None;
        let ended = {
            let mut hearing = std::pin::pin!(self.hear(link, &mut stdout, &mut stderr));
            let listens = step.offsets.stdout.is_some() || step.offsets.stderr.is_some();
            let mut ended = None;
            loop {
                tokio::select! {
                    // Input first: whoever only brings some waits for nothing else.
                    biased;
                    fed = &mut feeding, if stdin.is_none() => {
                        stdin = Some(fed?);
                        if !listens {
                            break;
                        }
                    }
                    heard = &mut hearing, if listens => {
                        ended = heard?;
                        if stdin.is_none()
                            && let Ok(fed) = tokio::time::timeout(SWALLOW, &mut feeding).await
                        {
                            stdin = Some(fed?);
                        }
                        break;
                    }
                    () = tokio::time::sleep_until(begun + step.wait.max(MOMENT)), if stdin.is_some() => break,
                    () = tokio::time::sleep_until(begun + step.wait.max(LONG_MOMENT)) => break,
                }
            }
            ended
        };
        Ok(Heard {
            stdin: stdin.flatten(),
            stdout,
            stderr,
            ended,
        })
    }

    /// Waits until a stream has something, or the command has ended and everything it said was
    /// taken before; how it ended.
    async fn hear(
        &self,
        link: &Link,
        stdout: &mut Option<Voice>,
        stderr: &mut Option<Voice>,
    ) -> Result<Option<ExitStatus>, Halt> {
        let mut exited = None;
        loop {
            if let Some(exited) = &exited {
                let exited: &Exited = exited;
                let lacks = |voice: &&Option<Voice>, end: u64| {
                    voice.as_ref().is_some_and(|voice| voice.offset() < end)
                };
                let ends = [(&*stdout, exited.stdout_end), (&*stderr, exited.stderr_end)];
                let mut lacking = ends
                    .iter()
                    .filter(|(voice, end)| lacks(voice, *end))
                    .peekable();
                if lacking.peek().is_none() {
                    return Ok(Some(exited.ended));
                }
                // Its connection broke before its end.
                if lacking.any(|(voice, _)| voice.as_ref().is_some_and(Voice::is_silent)) {
                    return Err(Halt::Lost);
                }
            }
            tokio::select! {
                heard = Voice::hear(stdout) => heard?,
                heard = Voice::hear(stderr) => heard?,
                ended = link.exited(&self.process_id), if exited.is_none() => {
                    exited = Some(ended?);
                    continue;
                }
            }
            if Voice::has_news(stdout) || Voice::has_news(stderr) {
                // What both have to say now is told in one answer.
                tokio::join!(Voice::rest(stdout), Voice::rest(stderr));
                return Ok(None);
            }
        }
    }

    /// Brings input to the command; the offset after it, or none if there was nothing to bring.
    async fn feed(&self, link: &Link, step: &Step) -> Result<Option<u64>, Halt> {
        let from = step.offsets.stdin.unwrap_or_default();
        let end = from + step.input.len() as u64;
        if !step.input.is_empty() {
            let mut incoming = self
                .containers()
                .open_stream(link, &self.process_id, StreamKind::Stdin, from)
                .await?;
            if incoming.from < from {
                return Err(Halt::Failed(EngineError::invalid(format!(
                    "`offsets.stdin` is {from}, and only {} bytes came before; send what is missing",
                    incoming.from
                ))));
            }
            // Bytes that the supervisor has already are skipped by it.
            let bringing = async {
                incoming.stream.write_all(&step.input).await?;
                incoming.stream.shutdown().await?;
                // It leaves when it has handed over everything.
                incoming.stream.read(&mut [0; 1]).await
            };
            bringing.await.map_err(|_| Halt::Lost)?;
        }
        if step.close_stdin {
            let close = CloseStdin {
                process_id: self.process_id.clone(),
                at: end,
            };
            link.ask(supervisor_methods::CLOSE_STDIN, &close).await?;
        }
        Ok((!step.input.is_empty()).then_some(end))
    }
}
