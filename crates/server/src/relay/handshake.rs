//! The handshake: reads lines until one identifies the peer. A supervisor or stream with a wrong key gets an
//! error and may try again; any other first line makes the peer a client.

use std::time::Duration;

use oubliette_engine::Stream;
use oubliette_runtime::ContainerId;
use oubliette_wire::{
    LineReader, LineTooLong, Message, Request, RpcError, StreamOpened, Supervise, codes,
    supervisor_methods,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::Relay;
use super::client::ReceivedLine;
use super::methods::parse_params;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Few lines longer than this are read at once.
const LONG_LINE_BYTES: usize = 64 << 10;
const READ_CHUNK_BYTES: usize = 8 << 10;

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(super) enum Peer {
    Supervisor(Supervise),
    Stream(StreamOpened),
    /// An agent's client: every peer whose first line is neither of the others. It gets the response
    /// to this line from the client's protocol.
    Client(ReceivedLine),
}

/// Identifies the peer. Also returns the bytes after the line that identified it. None if the
/// connection ends or times out before.
pub(super) async fn identify(
    relay: &Relay,
    container: &ContainerId,
    long_lines: &Semaphore,
    stream: &mut dyn Stream,
) -> Option<(Peer, Vec<u8>)> {
    let reading = read_until_identified(relay, container, long_lines, stream);
    tokio::time::timeout(HANDSHAKE_TIMEOUT, reading)
        .await
        .ok()?
}

async fn read_until_identified(
    relay: &Relay,
    container: &ContainerId,
    long_lines: &Semaphore,
    stream: &mut dyn Stream,
) -> Option<(Peer, Vec<u8>)> {
    let mut lines = LineReader::default();
    let mut chunk = vec![0; READ_CHUNK_BYTES];
    let mut long_line_permit = None;
    loop {
        while let Some(line) = lines.next_line() {
            let error_reply = match line {
                Ok(line) => match handle_line(relay, container, &line).await {
                    Ok(peer) => return Some((peer, lines.into_rest())),
                    Err((id, error)) => id.map(|id| Message::reply(id, Err(error))),
                },
                Err(LineTooLong) => {
                    let error = RpcError::new(codes::PARSE_ERROR, "a line may have at most 16 MiB");
                    Some(Message::reply(Value::Null, Err(error)))
                }
            };
            if let Some(reply) = error_reply {
                stream.write_all(&reply.to_line()).await.ok()?;
            }
        }
        if lines.buffered_bytes() <= LONG_LINE_BYTES {
            long_line_permit = None;
        } else if long_line_permit.is_none() {
            long_line_permit = Some(long_lines.acquire().await.ok()?);
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => lines.push(&chunk[..read]),
        }
    }
}

/// The peer that a line identifies, or the error and the id of the request to reply to.
async fn handle_line(
    relay: &Relay,
    container: &ContainerId,
    line: &[u8],
) -> Result<Peer, (Option<Value>, RpcError)> {
    let ReceivedLine { request, bytes } = ReceivedLine::parse(line);
    let Request { id, method, params } = match request {
        Ok(Some(request))
            if [supervisor_methods::SUPERVISE, supervisor_methods::STREAM]
                .contains(&request.method.as_str()) =>
        {
            request
        }
        request => return Ok(Peer::Client(ReceivedLine { request, bytes })),
    };
    if method == supervisor_methods::STREAM {
        let opened = parse_params(params);
        return opened.map(Peer::Stream).map_err(|error| (id, error));
    }
    let hello: Supervise = match parse_params(params) {
        Ok(hello) => hello,
        Err(error) => return Err((id, error)),
    };
    match relay
        .engine
        .containers()
        .verify_key(container, &hello)
        .await
    {
        Ok(true) => Ok(Peer::Supervisor(hello)),
        Ok(false) => {
            let error = relay.reject_key(container, "invalid or expired API key");
            Err((id, error.await))
        }
        Err(error) => {
            tracing::error!(%container, %error, "could not check a container's key");
            let message = "the store is unavailable; try again";
            Err((id, RpcError::new(codes::FAILED, message)))
        }
    }
}
