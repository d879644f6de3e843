//! The first thing that somebody at a door says that makes sense. Until then everything gets an
//! answer and nothing else: what is not JSON, what is too long, what nobody knows, wrong keys.

use std::time::Duration;

use oubliette_runtime::ContainerId;
use oubliette_wire::{LineTooLong, Lines, Message, Opened, RpcError, Supervise, codes, methods};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::Relay;
use super::hall::Hall;

/// Whoever connects says who it is within this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// A line of more bytes is a long one, of which only few are read at once.
const LONG: usize = 64 << 10;

/// Who is at the door.
#[derive(Debug)]
pub(super) enum Introduced {
    Supervisor(Supervise),
    Stream(Opened),
    /// Anybody else: an agent's client, with the first thing it asked.
    Client(Vec<u8>),
}

/// Hears who is there, and what came after it; none if nobody says so in time.
pub(super) async fn hear(
    relay: &Relay,
    container: &ContainerId,
    hall: &Hall,
    stream: &mut UnixStream,
) -> Option<(Introduced, Vec<u8>)> {
    let listening = listen(relay, container, hall, stream);
    tokio::time::timeout(PATIENCE, listening).await.ok()?
}

async fn listen(
    relay: &Relay,
    container: &ContainerId,
    hall: &Hall,
    stream: &mut UnixStream,
) -> Option<(Introduced, Vec<u8>)> {
    let mut lines = Lines::default();
    let mut chunk = vec![0; 8 << 10];
    let mut long = None;
    loop {
        while let Some(line) = lines.next_line() {
            let answer = match read(line) {
                Ok(message) => match introduce(relay, container, &message).await {
                    Ok(introduced) => return Some((introduced, lines.into_rest())),
                    Err(error) => message.id.map(|id| Message::reply(id, Err(error))),
                },
                Err(answer) => Some(*answer),
            };
            if let Some(answer) = answer {
                stream.write_all(&answer.line()).await.ok()?;
            }
        }
        if lines.waiting() <= LONG {
            long = None;
        } else if long.is_none() {
            long = Some(hall.long_lines.acquire().await.ok()?);
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => lines.push(&chunk[..read]),
        }
    }
}

/// A request or a notification, or the answer to what is neither.
fn read(line: Result<Vec<u8>, LineTooLong>) -> Result<Message, Box<Message>> {
    match line {
        Ok(line) => Message::parse(&line),
        Err(LineTooLong) => {
            let error = RpcError::new(codes::PARSE, "a line may have at most 16 MiB");
            Err(Box::new(Message::reply(Value::Null, Err(error))))
        }
    }
}

async fn introduce(
    relay: &Relay,
    container: &ContainerId,
    message: &Message,
) -> Result<Introduced, RpcError> {
    match message.method.as_deref().unwrap_or_default() {
        methods::SUPERVISE => {
            let hello = message.params::<Supervise>()?;
            match relay.engine.knows(container, &hello).await {
                Ok(true) => Ok(Introduced::Supervisor(hello)),
                Ok(false) => {
                    let what = "invalid or expired API key";
                    Err(relay.unauthenticated(container, what).await)
                }
                Err(error) => {
                    tracing::error!(%container, %error, "a key could not be checked");
                    Err(RpcError::new(
                        codes::FAILED,
                        "the store does not answer; try again",
                    ))
                }
            }
        }
        methods::STREAM => Ok(Introduced::Stream(message.params()?)),
        _ => Ok(Introduced::Client(message.line())),
    }
}
