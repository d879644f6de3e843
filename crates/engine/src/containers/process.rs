//! A command in a container, followed to its end through any loss of the connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oubliette_runtime::ContainerId;
use oubliette_wire::{
    Ack, CloseStdin, Ended, Exited, FaultKind, OpenStream, Start, StreamKind, ToSignal, methods,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::link::{Link, LinkError};
use super::streams::Expected;
use super::{Containers, Incoming, lock};
use crate::{EngineError, Result};

/// What is kept of each stream; the rest is counted and thrown away.
pub(super) const KEPT: usize = 1 << 20;
/// What the supervisor keeps for us: all that we keep, and some more while we read.
const SPOOL: u64 = (KEPT + (256 << 10)) as u64;
/// A supervisor whose connection broke comes back within this time, or its container has ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a command that was killed may take to be gone.
const ENDING: Duration = Duration::from_secs(30);
/// Before another try on a connection that may be as bad as the last.
const PAUSE: Duration = Duration::from_millis(20);

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    pub(crate) process_id: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: String,
    pub(crate) stdin: Vec<u8>,
}

/// What came of it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Finished {
    pub(crate) ended: Option<Ended>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) truncated: bool,
    pub(crate) timed_out: bool,
    /// Whoever asked for it wants it no more.
    pub(crate) unwanted: bool,
}

/// The output of one stream, so far.
#[derive(Debug, Default)]
struct Captured<'a> {
    bytes: Vec<u8>,
    offset: u64,
    truncated: bool,
    /// The connection that was asked for together with the start.
    expected: Option<Expected<'a>>,
}

/// Why following a command stopped short.
pub(super) enum Trouble {
    /// Try again on the next connection.
    Lost,
    /// The supervisor knows no such process.
    Gone,
    Failed(EngineError),
}

impl From<LinkError> for Trouble {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Lost => Self::Lost,
            LinkError::Told {
                kind: FaultKind::NoSuchProcess,
                ..
            } => Self::Gone,
            LinkError::Told { why, .. } => Self::Failed(EngineError::Failed(why)),
        }
    }
}

/// Runs a command to its end, or ends it with everything it started when `timeout` is over or
/// `unwanted` happens. A command that was started under this name before is joined.
///
/// The supervisor keeps the command until [`forget`] is called.
pub(crate) async fn run(
    containers: &Arc<Containers>,
    container: &ContainerId,
    command: &Command,
    timeout: Duration,
    unwanted: impl Future<Output = ()>,
) -> Result<Finished> {
    let _followed = Followed::new(containers, &command.process_id);
    let mut unwanted = std::pin::pin!(unwanted);
    let deadline = Instant::now() + timeout;
    let mut link = containers.link(container, PATIENCE).await?;
    let boot = link.boot_id().to_owned();
    let (mut stdout, mut stderr) = (Captured::default(), Captured::default());
    let (mut timed_out, mut given_up) = (false, false);
    let ended = loop {
        let round = async {
            let id = &command.process_id;
            if timed_out || given_up {
                kill(&link, id).await;
                stdout.expected = None;
                stderr.expected = None;
            } else {
                // The streams come with the start, which saves a round trip.
                let streams = vec![
                    stdout.expect(containers, id, StreamKind::Stdout),
                    stderr.expect(containers, id, StreamKind::Stderr),
                ];
                if let Some(refused) = begin(&link, command, streams).await? {
                    return Ok(Round::Refused(refused));
                }
            }
            let exited = follow(containers, &link, command, &mut stdout, &mut stderr).await?;
            Ok::<_, Trouble>(Round::Ended(exited))
        };
        let outcome = tokio::select! {
            outcome = round => outcome,
            () = tokio::time::sleep_until(deadline), if !timed_out => {
                timed_out = true;
                continue;
            }
            () = &mut unwanted, if !given_up => {
                given_up = true;
                continue;
            }
            // What cannot be ended is left to the end of its container.
            () = tokio::time::sleep_until(deadline + ENDING), if timed_out => break None,
        };
        match outcome {
            Ok(Round::Ended(exited)) => break Some(exited.ended),
            Ok(Round::Refused(refused)) => return Ok(refused),
            Err(Trouble::Failed(error)) => return Err(error),
            Err(Trouble::Gone) => return Err(ended_with_container()),
            Err(Trouble::Lost) => {
                // The next round starts it again, which is the same start if it was heard.
                tokio::time::sleep(PAUSE).await;
            }
        }
        link = containers.link(container, PATIENCE).await?;
        if link.boot_id() != boot {
            return Err(ended_with_container());
        }
    };
    Ok(Finished {
        ended: ended.filter(|_| !timed_out),
        truncated: stdout.truncated || stderr.truncated,
        stdout: stdout.bytes,
        stderr: stderr.bytes,
        timed_out,
        unwanted: given_up,
    })
}

fn ended_with_container() -> EngineError {
    EngineError::Failed(
        "the container ended while the command ran; what it did until then is done".to_owned(),
    )
}

/// Lets the supervisor forget a command whose outcome is no longer needed.
pub(crate) async fn forget(containers: &Containers, container: &ContainerId, process_id: &str) {
    if let Ok(link) = containers.link(container, Duration::ZERO).await {
        link.forget(process_id).await;
    }
}

enum Round {
    Refused(Finished),
    Ended(Exited),
}

/// Says that somebody waits for a command, for as long as it lives.
struct Followed<'a> {
    containers: &'a Containers,
    process_id: &'a str,
}

impl<'a> Followed<'a> {
    fn new(containers: &'a Containers, process_id: &'a str) -> Self {
        lock(&containers.followed).insert(process_id.to_owned());
        Self {
            containers,
            process_id,
        }
    }
}

impl Drop for Followed<'_> {
    fn drop(&mut self) {
        lock(&self.containers.followed).remove(self.process_id);
    }
}

/// Starts the command; what it came to if it could not be.
async fn begin(
    link: &Link,
    command: &Command,
    streams: Vec<OpenStream>,
) -> std::result::Result<Option<Finished>, Trouble> {
    let start = Start {
        process_id: command.process_id.clone(),
        argv: command.argv.clone(),
        env: command.env.clone(),
        cwd: command.cwd.clone(),
        user: None,
        pty: None,
        spool_limit: SPOOL,
        streams,
    };
    let code = match link.ask(methods::START, &start).await {
        Ok(_) => return Ok(None),
        Err(LinkError::Lost) => return Err(Trouble::Lost),
        Err(LinkError::Told {
            kind: FaultKind::NotFound,
            why,
        }) => (127, why),
        Err(LinkError::Told {
            kind: FaultKind::Denied,
            why,
        }) => (126, why),
        Err(LinkError::Told { why, .. }) => return Err(Trouble::Failed(EngineError::Failed(why))),
    };
    Ok(Some(Finished {
        ended: Some(Ended::Code(code.0)),
        stderr: format!("{}\n", code.1).into_bytes(),
        ..Finished::default()
    }))
}

/// Feeds and reads a command until it has ended and all it wrote by then is here.
async fn follow(
    containers: &Containers,
    link: &Link,
    command: &Command,
    stdout: &mut Captured<'_>,
    stderr: &mut Captured<'_>,
) -> std::result::Result<Exited, Trouble> {
    let id = &command.process_id;
    let feeding = feed(containers, link, id, &command.stdin);
    let reading = async {
        let output = capture(containers, link, id, StreamKind::Stdout, stdout);
        let errors = capture(containers, link, id, StreamKind::Stderr, stderr);
        tokio::try_join!(output, errors)
    };
    let (exited, _) =
        tokio::try_join!(async { Ok::<_, Trouble>(link.exited(id).await?) }, async {
            let fed = async {
                feeding.await?;
                std::future::pending::<std::result::Result<(), Trouble>>().await
            };
            tokio::select! {
                read = reading => read.map(drop),
                fed = fed => fed,
            }
        },)?;
    Ok(exited)
}

pub(super) async fn open(
    containers: &Containers,
    link: &Link,
    process_id: &str,
    kind: StreamKind,
    from: u64,
) -> std::result::Result<Incoming, Trouble> {
    Ok(containers.open_stream(link, process_id, kind, from).await?)
}

/// Reads a stream until it ends, or until all that the command wrote before its own end is here.
async fn capture(
    containers: &Containers,
    link: &Link,
    process_id: &str,
    kind: StreamKind,
    captured: &mut Captured<'_>,
) -> std::result::Result<(), Trouble> {
    let mut incoming = match captured.expected.take() {
        Some(expected) => expected.arrive().await.ok_or(Trouble::Lost)?,
        None => open(containers, link, process_id, kind, captured.offset).await?,
    };
    if incoming.from > captured.offset {
        // Joined late: what came before was given to a caller that is gone.
        captured.truncated = true;
        captured.offset = incoming.from;
    }
    captured.take(&incoming.rest);
    let mut chunk = vec![0; 64 << 10];
    let mut end = None;
    while end.is_none_or(|end| captured.offset < end) {
        tokio::select! {
            read = incoming.stream.read(&mut chunk) => {
                let read = read.map_err(|_| Trouble::Lost)?;
                if read == 0 {
                    // The end of the stream, or of the connection; only the supervisor knows.
                    let exited = link.exited(process_id).await?;
                    return match captured.offset >= end_of(&exited, kind) {
                        true => Ok(()),
                        false => Err(Trouble::Lost),
                    };
                }
                captured.take(&chunk[..read]);
                if captured.truncated {
                    // What is kept is kept here; the rest need not wait for us.
                    let process_id = process_id.to_owned();
                    let ack = Ack { process_id, kind, offset: captured.offset };
                    link.tell(methods::ACK, &ack).await;
                }
            }
            exited = link.exited(process_id), if end.is_none() => {
                end = Some(end_of(&exited?, kind));
            }
        }
    }
    Ok(())
}

fn end_of(exited: &Exited, kind: StreamKind) -> u64 {
    match kind {
        StreamKind::Stderr => exited.stderr_end,
        StreamKind::Stdout | StreamKind::Stdin => exited.stdout_end,
    }
}

async fn feed(
    containers: &Containers,
    link: &Link,
    process_id: &str,
    input: &[u8],
) -> std::result::Result<(), Trouble> {
    if !input.is_empty() {
        let mut incoming = open(containers, link, process_id, StreamKind::Stdin, 0).await?;
        // Bytes that the supervisor has already are skipped by it.
        incoming
            .stream
            .write_all(input)
            .await
            .map_err(|_| Trouble::Lost)?;
        incoming
            .stream
            .shutdown()
            .await
            .map_err(|_| Trouble::Lost)?;
        let close = CloseStdin {
            process_id: process_id.to_owned(),
            at: input.len() as u64,
        };
        link.tell(methods::CLOSE_STDIN, &close).await;
        // Held open until the supervisor has read it all and leaves.
        let _ = incoming.stream.read(&mut [0; 1]).await;
        return Ok(());
    }
    let close = CloseStdin {
        process_id: process_id.to_owned(),
        at: 0,
    };
    link.tell(methods::CLOSE_STDIN, &close).await;
    Ok(())
}

pub(super) async fn kill(link: &Link, process_id: &str) {
    let signal = ToSignal {
        process_id: process_id.to_owned(),
        signal: 9,
        tree: true,
    };
    let _ = link.ask(methods::SIGNAL, &signal).await;
}

impl<'a> Captured<'a> {
    /// Asks for the rest of the stream.
    fn expect(
        &mut self,
        containers: &'a Containers,
        process_id: &str,
        kind: StreamKind,
    ) -> OpenStream {
        let expected = containers.streams.expect();
        let stream_id = expected.id.clone();
        self.expected = Some(expected);
        OpenStream {
            stream_id,
            process_id: process_id.to_owned(),
            kind,
            from: self.offset,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.offset += bytes.len() as u64;
        let room = KEPT - self.bytes.len();
        self.truncated |= bytes.len() > room;
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}
