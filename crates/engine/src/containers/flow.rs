//! The bytes of a command: what it is given, and what it says, as far as it is kept.

use oubliette_wire::{AckOutput, CloseStdin, Exited, OpenStream, StreamKind, supervisor_methods};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::link::{Link, LinkError};
use super::process::Trouble;
use super::streams::Expected;
use super::{Containers, Incoming};

/// How often a stream is asked for that does not come.
const TRIES: u32 = 5;
/// What is kept of each stream; the rest is counted and thrown away.
pub(super) const KEPT: usize = 1 << 20;

/// The output of one stream, so far.
#[derive(Debug, Default)]
pub(super) struct Captured<'a> {
    pub(super) bytes: Vec<u8>,
    offset: u64,
    pub(super) truncated: bool,
    /// The connection that was asked for together with the start.
    pub(super) expected: Option<Expected<'a>>,
}

impl<'a> Captured<'a> {
    /// Asks for the rest of the stream.
    pub(super) fn expect(
        &mut self,
        containers: &'a Containers,
        link: &Link,
        process_id: &str,
        kind: StreamKind,
    ) -> OpenStream {
        let expected = containers.streams.expect(link.container());
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

impl Containers {
    /// A connection for the bytes of one stream, from an offset on.
    pub(super) async fn open_stream(
        &self,
        link: &Link,
        process_id: &str,
        kind: StreamKind,
        from: u64,
    ) -> Result<Incoming, LinkError> {
        for _ in 0..TRIES {
            let expected = self.streams.expect(link.container());
            let asked = OpenStream {
                stream_id: expected.id.clone(),
                process_id: process_id.to_owned(),
                kind,
                from,
            };
            link.ask(supervisor_methods::OPEN_STREAM, &asked).await?;
            if let Some(incoming) = arrive(link, expected).await? {
                return Ok(incoming);
            }
        }
        Err(LinkError::Lost)
    }
}

/// Waits for a stream that was asked for, as long as there is somebody who can send it. None if its
/// connection was lost on the way: then it has to be asked for again.
async fn arrive(link: &Link, expected: Expected<'_>) -> Result<Option<Incoming>, LinkError> {
    tokio::select! {
        incoming = expected.arrive() => Ok(incoming),
        () = link.lost() => Err(LinkError::Lost),
    }
}

/// Reads a stream until it ends, or until all that the command wrote before its own end is here.
pub(super) async fn capture(
    containers: &Containers,
    link: &Link,
    process_id: &str,
    kind: StreamKind,
    captured: &mut Captured<'_>,
) -> Result<(), Trouble> {
    let came = match captured.expected.take() {
        Some(expected) => arrive(link, expected).await?,
        None => None,
    };
    let mut incoming = match came {
        Some(incoming) => incoming,
        None => {
            let from = captured.offset;
            containers.open_stream(link, process_id, kind, from).await?
        }
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
                    let ack = AckOutput { process_id, kind, offset: captured.offset };
                    link.tell(supervisor_methods::ACK, &ack).await;
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

/// Gives a command its input, and its end.
pub(super) async fn feed(
    containers: &Containers,
    link: &Link,
    process_id: &str,
    input: &[u8],
) -> Result<(), Trouble> {
    let close = CloseStdin {
        process_id: process_id.to_owned(),
        at: input.len() as u64,
    };
    if input.is_empty() {
        link.tell(supervisor_methods::CLOSE_STDIN, &close).await;
        return Ok(());
    }
    let stdin = StreamKind::Stdin;
    let mut incoming = containers.open_stream(link, process_id, stdin, 0).await?;
    // Bytes that the supervisor has already are skipped by it.
    let given = async {
        incoming.stream.write_all(input).await?;
        incoming.stream.shutdown().await
    };
    given.await.map_err(|_: std::io::Error| Trouble::Lost)?;
    link.tell(supervisor_methods::CLOSE_STDIN, &close).await;
    // Held open until the supervisor has read it all and leaves.
    let _ = incoming.stream.read(&mut [0; 1]).await;
    Ok(())
}
