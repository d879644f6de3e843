//! Connections to the gate, which may be away for a moment: replaced, or started again by the server.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use super::program::wait_until_gone;
use crate::lines::{LineReader, write_line};
use crate::protocol::{MAX_LINE_BYTES, RefusalKind, Reply, Request, Way};

/// For a gate to be there.
const GATE_TIMEOUT: Duration = Duration::from_secs(60);
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(10);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// For a decision, which may be asked for, and a connection; the gate's own timeouts are shorter together.
const REPLY_TIMEOUT: Duration = Duration::from_secs(240);

#[derive(Debug)]
pub(super) struct GateSocket {
    path: PathBuf,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) kind: RefusalKind,
    pub(super) reason: String,
}

impl GateSocket {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// A connection to a host for a program, with what has arrived of its bytes; none if the program is gone before.
    pub(super) async fn open(
        &self,
        program: &TcpStream,
        (host, port): (&str, u16),
        way: Way,
    ) -> Option<Result<(UnixStream, Vec<u8>), Refusal>> {
        tokio::select! {
            opened = self.open_for(host.to_owned(), port, way) => Some(opened),
            // A question that no program waits for must not stay open.
            () = wait_until_gone(program) => None,
        }
    }

    async fn open_for(
        &self,
        host: String,
        port: u16,
        way: Way,
    ) -> Result<(UnixStream, Vec<u8>), Refusal> {
        match self.ask(&Request::Open { host, port, way }).await? {
            (Reply::Opened, stream, rest) => Ok((stream, rest)),
            (Reply::Refused { kind, reason }, ..) => Err(Refusal { kind, reason }),
            (Reply::Found { .. }, ..) => Err(failed("the gate sent an unexpected reply")),
        }
    }

    /// A connection to the gateway to models.
    pub(super) async fn open_gateway(&self) -> Result<(UnixStream, Vec<u8>), Refusal> {
        match self.ask(&Request::Gateway).await? {
            (Reply::Opened, stream, rest) => Ok((stream, rest)),
            (Reply::Refused { kind, reason }, ..) => Err(Refusal { kind, reason }),
            (Reply::Found { .. }, ..) => Err(failed("the gate sent an unexpected reply")),
        }
    }

    /// Whether a name may have an address, and which ports rules name for it.
    pub(super) async fn look_up(&self, name: &str) -> Result<Vec<u16>, Refusal> {
        let name = name.to_owned();
        match self.ask(&Request::Lookup { name }).await? {
            (Reply::Found { ports }, ..) => Ok(ports),
            (Reply::Refused { kind, reason }, ..) => Err(Refusal { kind, reason }),
            (Reply::Opened, ..) => Err(failed("the gate sent an unexpected reply")),
        }
    }

    /// Asks again if the gate ends before it replies: no byte of a program was sent yet.
    async fn ask(&self, request: &Request) -> Result<(Reply, UnixStream, Vec<u8>), Refusal> {
        // Begins when the gate is gone: before, it may have waited for an answer of a person.
        let mut deadline = None;
        let mut interval = MIN_RETRY_INTERVAL;
        loop {
            let asked = timeout(REPLY_TIMEOUT, self.ask_once(request)).await;
            match asked {
                Ok(Ok(reply)) => return Ok(reply),
                Err(_) => return Err(failed("the gate does not reply")),
                Ok(Err(_)) => {
                    let until = *deadline.get_or_insert_with(|| Instant::now() + GATE_TIMEOUT);
                    if Instant::now() >= until {
                        let reason = "the gate is away; it is back when the server runs again";
                        return Err(failed(reason));
                    }
                    sleep(interval).await;
                    interval = (interval * 2).min(MAX_RETRY_INTERVAL);
                }
            }
        }
    }

    async fn ask_once(&self, request: &Request) -> io::Result<(Reply, UnixStream, Vec<u8>)> {
        let mut stream = UnixStream::connect(&self.path).await?;
        // A gate that refuses for its limits may have closed its end, and its reply can still be read.
        let written = write_line(&mut stream, request).await;
        let mut replies = LineReader::new(stream, MAX_LINE_BYTES);
        match replies.next().await? {
            Some(reply) => {
                let (stream, rest) = replies.into_parts();
                Ok((reply, stream, rest))
            }
            None => Err(written.err().unwrap_or(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

fn failed(reason: &str) -> Refusal {
    Refusal {
        kind: RefusalKind::Failed,
        reason: reason.to_owned(),
    }
}
