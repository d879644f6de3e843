//! A command in a container, followed to its end through any loss of the connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oubliette_runtime::ContainerId;
use oubliette_wire::{
    ExitStatus, Exited, OpenStream, ProcessFaultKind, SignalProcess, Start, Started, StreamKind,
    supervisor_methods,
};
use tokio::time::Instant;

use super::flow::{Captured, KEPT, capture, feed};
use super::link::{Link, LinkError};
use super::{Containers, ended_meanwhile, lock};
use crate::EngineError;

/// What the supervisor keeps for us: all that we keep, and some more while we read.
const SPOOL: u64 = (KEPT + (256 << 10)) as u64;
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
    pub(crate) ended: Option<ExitStatus>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) truncated: bool,
    pub(crate) timed_out: bool,
    /// Whoever asked for it wants it no more.
    pub(crate) unwanted: bool,
}

/// Why a command came to nothing.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The container ended before the command reached it.
    Unsaid,
    /// The supervisor did not start it.
    Refused(EngineError),
    Other(EngineError),
}

impl From<Failed> for EngineError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unsaid => Self::Failed(
                "the container was stopped before the command could begin; try again".to_owned(),
            ),
            Failed::Refused(error) | Failed::Other(error) => error,
        }
    }
}

/// Why following a command stopped short.
pub(super) enum Trouble {
    /// Try again on the next connection.
    Lost,
    /// The supervisor knows no such process.
    Gone,
    Failed(Failed),
}

impl From<LinkError> for Trouble {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Lost | LinkError::Unsaid => Self::Lost,
            LinkError::Told {
                kind: ProcessFaultKind::NoSuchProcess,
                ..
            } => Self::Gone,
            LinkError::Told { why, .. } => Self::Failed(Failed::Other(EngineError::Failed(why))),
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
    mut link: Arc<Link>,
    command: &Command,
    timeout: Duration,
    unwanted: impl Future<Output = ()>,
) -> Result<Finished, Failed> {
    let _followed = Followed::new(containers, &command.process_id);
    let mut unwanted = std::pin::pin!(unwanted);
    let deadline = Instant::now() + timeout;
    let boot = link.boot_id().to_owned();
    let (mut stdout, mut stderr) = (Captured::default(), Captured::default());
    let (mut timed_out, mut given_up, mut is_said) = (false, false, false);
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
                    stdout.expect(containers, &link, id, StreamKind::Stdout),
                    stderr.expect(containers, &link, id, StreamKind::Stderr),
                ];
                match begin(&link, command, streams, &mut is_said).await? {
                    Begun::Refused(refused) => return Ok(Round::Refused(refused)),
                    Begun::WithStreams => {}
                    // They are asked for one by one.
                    Begun::Alone => {
                        stdout.expected = None;
                        stderr.expected = None;
                    }
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
            Err(Trouble::Failed(failed)) => return Err(failed),
            Err(Trouble::Gone) => return Err(Failed::Other(ended_meanwhile())),
            Err(Trouble::Lost) => {
                // The next round starts it again, which is the same start if it was heard.
                tokio::time::sleep(PAUSE).await;
            }
        }
        let gone = |error| match is_said {
            true => Failed::Other(error),
            false => Failed::Unsaid,
        };
        link = containers.relink(container, &link).await.map_err(gone)?;
        if link.boot_id() != boot {
            return Err(gone(ended_meanwhile()));
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

/// What came of a start.
enum Begun {
    WithStreams,
    /// By a supervisor that opens no streams unasked.
    Alone,
    Refused(Finished),
}

/// Starts the command; what it came to if it could not be.
async fn begin(
    link: &Link,
    command: &Command,
    streams: Vec<OpenStream>,
    is_said: &mut bool,
) -> Result<Begun, Trouble> {
    let wanted = streams.len();
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
    let code = match link.ask(supervisor_methods::START, &start).await {
        Ok(started) => {
            *is_said = true;
            let started = serde_json::from_value::<Started>(started);
            return Ok(
                match started.is_ok_and(|started| started.streams == wanted) {
                    true => Begun::WithStreams,
                    false => Begun::Alone,
                },
            );
        }
        Err(LinkError::Lost) => {
            *is_said = true;
            return Err(Trouble::Lost);
        }
        Err(
            LinkError::Unsaid
            | LinkError::Told {
                kind: ProcessFaultKind::Stopping,
                ..
            },
        ) => return Err(Trouble::Lost),
        Err(LinkError::Told {
            kind: ProcessFaultKind::NotFound,
            why,
        }) => (127, why),
        Err(LinkError::Told {
            kind: ProcessFaultKind::Denied,
            why,
        }) => (126, why),
        Err(LinkError::Told { why, .. }) => {
            return Err(Trouble::Failed(Failed::Refused(EngineError::Failed(why))));
        }
    };
    Ok(Begun::Refused(Finished {
        ended: Some(ExitStatus::Code(code.0)),
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
) -> Result<Exited, Trouble> {
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
                std::future::pending::<Result<(), Trouble>>().await
            };
            tokio::select! {
                read = reading => read.map(drop),
                fed = fed => fed,
            }
        },)?;
    Ok(exited)
}

pub(super) async fn kill(link: &Link, process_id: &str) {
    let signal = SignalProcess {
        process_id: process_id.to_owned(),
        signal: 9,
        tree: true,
    };
    let _ = link.ask(supervisor_methods::SIGNAL, &signal).await;
}
