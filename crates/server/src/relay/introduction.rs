//! The first thing that somebody at a door says that makes sense. Until then everything gets an
//! answer and nothing else: what is not JSON, what is too long, what nobody knows, wrong keys.

use std::time::Duration;

use oubliette_engine::Stream;
use oubliette_runtime::ContainerId;
use oubliette_wire::{
    LineTooLong, Lines, Message, Request, RpcError, StreamOpened, Supervise, codes,
    supervisor_methods,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    Stream(StreamOpened),
    /// Anybody else: an agent's client, with the first thing it asked.
    Client(Vec<u8>),
}

/// Hears who is there, and what came after it; none if nobody says so in time.
pub(super) async fn hear(
    relay: &Relay,
    container: &ContainerId,
    hall: &Hall,
    stream: &mut dyn Stream,
) -> Option<(Introduced, Vec<u8>)> {
    let listening = listen(relay, container, hall, stream);
    tokio::time::timeout(PATIENCE, listening).await.ok()?
}

async fn listen(
    relay: &Relay,
    container: &ContainerId,
    hall: &Hall,
    stream: &mut dyn Stream,
) -> Option<(Introduced, Vec<u8>)> {
    let mut lines = Lines::default();
    let mut chunk = vec![0; 8 << 10];
    let mut long = None;
    loop {
        while let Some(line) = lines.next_line() {
            let answer = match line {
                Ok(line) => match introduce(relay, container, line).await {
                    Ok(introduced) => return Some((introduced, lines.into_rest())),
                    Err((id, error)) => id.map(|id| Message::reply(id, Err(error))),
                },
                Err(LineTooLong) => {
                    let error = RpcError::new(codes::PARSE_ERROR, "a line may have at most 16 MiB");
                    Some(Message::reply(Value::Null, Err(error)))
                }
            };
            if let Some(answer) = answer {
                stream.write_all(&answer.to_line()).await.ok()?;
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

/// Who says this. What no supervisor says is for an agent's client, which answers all there is.
async fn introduce(
    relay: &Relay,
    container: &ContainerId,
    mut line: Vec<u8>,
) -> Result<Introduced, (Option<Value>, RpcError)> {
    let message = Request::parse(&line).ok().flatten();
    let method = message.as_ref().map(|message| message.method.as_str());
    let (Some(message), Some(supervisor_methods::SUPERVISE | supervisor_methods::STREAM)) =
        (&message, method)
    else {
        line.push(b'\n');
        return Ok(Introduced::Client(line));
    };
    let refused = |error: RpcError| (message.id.clone(), error);
    if method == Some(supervisor_methods::STREAM) {
        return message.params().map(Introduced::Stream).map_err(refused);
    }
    let hello = message.params::<Supervise>().map_err(refused)?;
    match relay.engine.knows(container, &hello).await {
        Ok(true) => Ok(Introduced::Supervisor(hello)),
        Ok(false) => {
            let what = "invalid or expired API key";
            Err(refused(relay.unauthenticated(container, what).await))
        }
        Err(error) => {
            tracing::error!(%container, %error, "a key could not be checked");
            let why = "the store does not answer; try again";
            Err(refused(RpcError::new(codes::FAILED, why)))
        }
    }
}
