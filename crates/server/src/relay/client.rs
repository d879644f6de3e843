//! One connection of an agent's MCP server: requests in, replies out in whatever order they are
//! ready.
//!
//! Bounded for one container: connections, requests in flight, the bytes they hold, long lines in
//! the making, and the bytes of replies that nobody has read. Past a bound it is read from no
//! further until something is done.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oubliette_engine::{Call, Ear, Speaker, Stream};
use oubliette_runtime::ContainerId;
use oubliette_wire::{
    Attach, Attached, CallerTools, Cancel, LONGEST_LINE, Lines, Message, Request, RpcError, codes,
    relay_methods,
};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Relay;
use super::methods::{self, Outcome};

/// Connections of one container at once; there is room for its supervisor besides.
const CONNECTIONS: usize = 256;
const IN_FLIGHT: usize = 512;
/// Of one connection.
const IN_FLIGHT_HERE: usize = 256;
/// Kibibytes that requests in flight hold.
const HELD: usize = 64 << 10;
/// A line that is longer takes one of few places, and has to end in time.
const SHORT: usize = 64 << 10;
const LONG_LINES: usize = 4;
const LONG_LINE: Duration = Duration::from_secs(30);
/// Replies of one connection that wait to be written.
const REPLIES: usize = 32;
/// Kibibytes of all lines that wait to be written.
const UNREAD: usize = 64 << 10;
/// A peer that takes no reply for so long is gone.
const STALLED: Duration = Duration::from_secs(60);
/// Who says no more may still hear what was asked.
const LAST_REPLIES: Duration = Duration::from_secs(10);

/// What the clients of one container share.
#[derive(Debug)]
pub(super) struct Room {
    connections: Semaphore,
    in_flight: Arc<Semaphore>,
    held: Arc<Semaphore>,
    long_lines: Arc<Semaphore>,
    unread: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            connections: Semaphore::new(CONNECTIONS),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            held: Arc::new(Semaphore::new(HELD)),
            long_lines: Arc::new(Semaphore::new(LONG_LINES)),
            unread: Arc::new(Semaphore::new(UNREAD)),
        }
    }
}

/// Serves a connection to its end. `first` is what was read of it already.
pub(super) async fn serve(
    relay: &Arc<Relay>,
    container: &ContainerId,
    room: &Arc<Room>,
    mut stream: Box<dyn Stream>,
    first: Vec<u8>,
) {
    let Ok(_place) = room.connections.try_acquire() else {
        let error = RpcError::new(
            codes::FAILED,
            "too many connections from this container; close some",
        );
        let _ = stream
            .write_all(&Message::reply(Value::Null, Err(error)).to_line())
            .await;
        return;
    };
    let (reader, writer) = tokio::io::split(stream);
    let (queue, waiting) = mpsc::channel(REPLIES);
    let client = Client {
        relay: relay.clone(),
        container: container.clone(),
        room: room.clone(),
        here: Arc::new(Semaphore::new(IN_FLIGHT_HERE)),
        speaker: None,
        ear: None,
        told: None,
        replies: Replies {
            queue,
            unread: room.unread.clone(),
        },
        tasks: JoinSet::new(),
        asked: HashMap::new(),
        next: 0,
    };
    let mut writing = std::pin::pin!(write(writer, waiting));
    tokio::select! {
        () = client.read(reader, first) => {
            // What was answered last is still on its way.
            let _ = tokio::time::timeout(LAST_REPLIES, writing).await;
        }
        () = &mut writing => {}
    }
}

/// A line on its way, and the room that it takes until it is written.
type Outgoing = (Vec<u8>, OwnedSemaphorePermit);

async fn write(mut writer: WriteHalf<Box<dyn Stream>>, mut waiting: mpsc::Receiver<Outgoing>) {
    while let Some((line, _room)) = waiting.recv().await {
        let written = tokio::time::timeout(STALLED, writer.write_all(&line)).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

/// The way back to a client.
#[derive(Clone)]
struct Replies {
    queue: mpsc::Sender<Outgoing>,
    unread: Arc<Semaphore>,
}

impl Replies {
    async fn reply(&self, id: Value, outcome: Outcome) -> Option<()> {
        self.send(reply_line(id, outcome)).await
    }

    /// Queues a line once there is room for it. None means that the connection is over.
    async fn send(&self, line: Vec<u8>) -> Option<()> {
        // One that is longer than all the room would otherwise wait for ever.
        let kibibytes = u32::try_from((line.len() / 1024 + 1).min(UNREAD)).ok()?;
        let room = self.unread.clone().acquire_many_owned(kibibytes).await;
        self.queue.send((line, room.ok()?)).await.ok()
    }
}

/// A reply as a line that its reader takes: one that is too long would be skipped, and whoever asked
/// would wait for ever.
fn reply_line(id: Value, outcome: Outcome) -> Vec<u8> {
    let message = Message::reply(id, outcome);
    let line = message.to_line();
    let bytes = line.len() - 1;
    if bytes <= LONGEST_LINE {
        return line;
    }
    let why = format!(
        "the answer to this call has {bytes} bytes, of which no more than {LONGEST_LINE} fit, and was \
         left out; ask for less: a page of it, a smaller bound, or have it written to a file"
    );
    let error = RpcError::new(codes::FAILED, why);
    Message::reply(message.id.unwrap_or_default(), Err(error)).to_line()
}

struct Client {
    relay: Arc<Relay>,
    container: ContainerId,
    room: Arc<Room>,
    here: Arc<Semaphore>,
    /// For which session this connection speaks.
    speaker: Option<Speaker>,
    ear: Option<Ear>,
    /// Which tools of its caller it was told of.
    told: Option<CallerTools>,
    replies: Replies,
    /// Requests in flight, each giving back its number.
    tasks: JoinSet<u64>,
    asked: HashMap<u64, (Option<Value>, CancellationToken)>,
    next: u64,
}

/// What a request holds until it is answered.
struct Held {
    _places: [OwnedSemaphorePermit; 3],
}

impl Client {
    async fn read(mut self, mut reader: ReadHalf<Box<dyn Stream>>, first: Vec<u8>) {
        let mut lines = Lines::default();
        lines.push(&first);
        drop(first);
        let mut chunk = vec![0; 8 << 10];
        let mut long: Option<(OwnedSemaphorePermit, Instant)> = None;
        let mut declared = self.relay.engine.tools_declared();
        loop {
            while let Some(line) = lines.next_line() {
                long = None;
                let taken = match line {
                    Ok(line) => self.take(&line).await,
                    Err(_) => {
                        let error = RpcError::new(
                            codes::INVALID_REQUEST,
                            "the line is longer than 16 MiB and was left out",
                        );
                        self.replies.reply(Value::Null, Err(error)).await
                    }
                };
                if taken.is_none() {
                    return;
                }
            }
            if lines.pending() > SHORT && long.is_none() {
                let places = self.room.long_lines.clone();
                let Ok(place) = places.acquire_owned().await else {
                    return;
                };
                long = Some((place, Instant::now() + LONG_LINE));
            }
            let too_late = async {
                match &long {
                    Some((_, end)) => tokio::time::sleep_until(*end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                read = reader.read(&mut chunk) => match read {
                    Ok(0) => break,
                    Err(_) => return,
                    Ok(read) => lines.push(&chunk[..read]),
                },
                Some(done) = self.tasks.join_next() => self.forget(done.ok()),
                Ok(()) = declared.changed() => {
                    if self.tell_tools(false).await.is_none() {
                        return;
                    }
                }
                () = too_late => return,
            }
        }
        let last = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_REPLIES, last).await;
    }

    fn forget(&mut self, done: Option<u64>) {
        match done {
            Some(number) => drop(self.asked.remove(&number)),
            // One that panicked did not say which it was.
            None if self.tasks.is_empty() => self.asked.clear(),
            None => {}
        }
    }

    /// Takes a line. None means that the connection is over.
    async fn take(&mut self, line: &[u8]) -> Option<()> {
        let request = match Request::parse(line) {
            Ok(Some(request)) => request,
            Ok(None) => return Some(()),
            Err(invalid) => return self.replies.reply(invalid.id, Err(invalid.error)).await,
        };
        match request.method.as_str() {
            // In its turn: what comes after it relies on it.
            relay_methods::ATTACH => self.attach(request).await,
            relay_methods::CANCEL => {
                self.cancel(request.params);
                match request.id {
                    Some(id) => self.replies.reply(id, Ok(Value::Object(Map::new()))).await,
                    None => Some(()),
                }
            }
            _ => self.begin(request, line.len()).await,
        }
    }

    async fn attach(&mut self, request: Request) -> Option<()> {
        let outcome = match methods::parsed::<Attach>(request.params) {
            Ok(attach) => self.recognise(&attach).await,
            Err(error) => Err(error),
        };
        let attached = outcome.is_ok();
        if let Some(id) = request.id {
            self.replies.reply(id, outcome).await?;
        }
        match attached {
            true => self.tell_tools(true).await,
            false => Some(()),
        }
    }

    /// Tells the agent's client which tools its caller has, at once or if they are others than before.
    async fn tell_tools(&mut self, always: bool) -> Option<()> {
        let Some(speaker) = &self.speaker else {
            return Some(());
        };
        let tools = match self.relay.engine.caller_tools(speaker.session()).await {
            Ok(tools) => tools,
            Err(error) => {
                tracing::error!(%error, "the tools of a caller could not be read");
                return Some(());
            }
        };
        if !always && self.told.as_ref() == Some(&tools) {
            return Some(());
        }
        self.replies.send(tools.to_line()).await?;
        if let Some(ear) = &self.ear {
            ear.told(&tools);
        }
        self.told = Some(tools);
        Some(())
    }

    async fn recognise(&mut self, attach: &Attach) -> Outcome {
        if let Some(speaker) = &self.speaker
            && speaker.session().to_string() != attach.session_id
        {
            return Err(RpcError::new(
                codes::INVALID_REQUEST,
                "this connection speaks for another session; open one of its own",
            ));
        }
        let engine = &self.relay.engine;
        let found = engine
            .attach(&self.container, &attach.session_id, &attach.session_key)
            .await;
        let Some(speaker) = found.map_err(|error| methods::failure(&error))? else {
            return Err(self
                .relay
                .unauthenticated(&self.container, "invalid session or session key")
                .await);
        };
        let session_id = speaker.session().to_string();
        if self.ear.is_none() {
            self.ear = Some(engine.ear(speaker.session()));
        }
        self.speaker = Some(speaker);
        methods::rendered(&Attached {
            session_id,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    fn cancel(&self, params: Map<String, Value>) {
        let Ok(Cancel { id }) = serde_json::from_value(Value::Object(params)) else {
            return;
        };
        for (asked, cancelled) in self.asked.values() {
            if asked.as_ref() == Some(&id) {
                cancelled.cancel();
            }
        }
    }

    /// Has a request answered besides all others.
    async fn begin(&mut self, request: Request, bytes: usize) -> Option<()> {
        let held = self.hold(bytes).await?;
        let (number, cancelled) = (self.next, CancellationToken::new());
        self.next += 1;
        self.asked
            .insert(number, (request.id.clone(), cancelled.clone()));
        let (relay, container) = (self.relay.clone(), self.container.clone());
        let (speaker, replies) = (self.speaker.clone(), self.replies.clone());
        self.tasks.spawn(async move {
            let call = Call::new().with_cancellation(cancelled);
            let from = methods::From {
                relay: &relay,
                container: &container,
                speaker: speaker.as_ref(),
            };
            let Request { id, method, params } = request;
            let outcome = methods::answer(from, &method, params, call).await;
            if let Some(id) = id {
                let _ = replies.reply(id, outcome).await;
            }
            drop(held);
            number
        });
        Some(())
    }

    async fn hold(&self, bytes: usize) -> Option<Held> {
        let kibibytes = u32::try_from(bytes / 1024 + 1).ok()?;
        Some(Held {
            _places: [
                self.here.clone().acquire_owned().await.ok()?,
                self.room.in_flight.clone().acquire_owned().await.ok()?,
                self.room
                    .held
                    .clone()
                    .acquire_many_owned(kibibytes)
                    .await
                    .ok()?,
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_its_reader_would_skip_becomes_an_error() {
        let fits = reply_line(Value::from(7), Ok("a".repeat(1000).into()));
        assert!(fits.len() > 1000);
        let line = reply_line(Value::from(7), Ok("a".repeat(LONGEST_LINE).into()));
        let message: Message = serde_json::from_slice(&line).unwrap();
        assert_eq!(message.id, Some(Value::from(7)));
        assert_eq!(message.error.unwrap().code, codes::FAILED);
    }

    #[tokio::test]
    async fn lines_that_wait_take_room_until_they_are_written() {
        let (queue, mut waiting) = mpsc::channel(REPLIES);
        let unread = Arc::new(Semaphore::new(UNREAD));
        let replies = Replies {
            queue,
            unread: unread.clone(),
        };
        // Longer than all the room there is.
        replies.send(vec![0; (UNREAD + 1) << 10]).await.unwrap();
        assert_eq!(unread.available_permits(), 0);
        let mut next = std::pin::pin!(replies.send(vec![0; 10]));
        tokio::select! {
            biased;
            _ = &mut next => panic!("there was no room"),
            () = std::future::ready(()) => {}
        }
        drop(waiting.recv().await);
        next.await.unwrap();
        assert_eq!(unread.available_permits(), UNREAD - 1);
        drop(waiting.recv().await);
        assert_eq!(unread.available_permits(), UNREAD);
    }
}
