//! The first thing that somebody at a door says that makes sense. Until then everything gets an
//! answer and nothing else: what is not JSON, what is too long, what nobody knows, wrong keys.

use std::time::{Duration, Instant};

use oubliette_model::quoted;
use oubliette_runtime::ContainerId;
use oubliette_store::{AuditEntry, Outcome};
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
                Ok(false) => Err(refuse(relay, container).await),
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
        other => Err(RpcError::new(
            codes::METHOD,
            format!("there is no method {}", quoted(other)),
        )),
    }
}

/// Counts a wrong key. Past a handful they are no longer written down, each by each.
async fn refuse(relay: &Relay, container: &ContainerId) -> RpcError {
    let counted = relay.failures.count(container.clone(), Instant::now());
    if let Err(wait) = counted {
        let why = format!(
            "too many wrong keys from this container; wait {} s and use a valid one",
            wait.as_secs().max(1)
        );
        return RpcError::new(codes::UNAUTHENTICATED, why);
    }
    tracing::warn!(%container, "a supervisor showed a wrong key");
    let known = relay.engine.store().container(container.as_str()).await;
    let entry = AuditEntry {
        at: relay.engine.now(),
        token_id: None,
        operation: "authenticate".to_owned(),
        project_id: known.ok().flatten().map(|known| known.project_id),
        outcome: Outcome::Unauthenticated,
        address: Some(format!("container {container}")),
    };
    relay.engine.audit_log().note(entry).await;
    RpcError::new(codes::UNAUTHENTICATED, "invalid or expired API key")
}
