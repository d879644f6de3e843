//! The relay: the door of each container, a unix socket in a directory that only it sees.
//!
//! Which container is at a door is known from the door, not from what it says. Everything that
//! comes through is bounded in size and time before anybody looks at it.

mod client;
mod methods;
mod request;
mod tools;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use oubliette_engine::{Doors, Engine, Incoming};
use oubliette_runtime::ContainerId;
use oubliette_store::{AuditEntry, Outcome};
use oubliette_wire::{Message, Opened, RpcError, Supervise, codes, methods as supervision};
use rustix::fs::{Mode, OFlags};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::auth::Failures;
use client::Room;

const SOCKET: &str = "relay.sock";
/// Whoever connects says who it is within this time.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// Most bytes of an introduction: a supervisor's report of thousands of processes fits.
const LONGEST: usize = 1 << 20;
/// Connections of one container at once, and of these, those that have not said who they are.
const CONNECTIONS: usize = 512;
const STRANGERS: usize = 16;
/// Who shows a wrong key waits before it can try another.
const PENALTY: Duration = Duration::from_secs(1);

/// All open doors.
#[derive(Debug)]
pub struct Relay {
    engine: Engine,
    open: Mutex<HashMap<ContainerId, CancellationToken>>,
    failures: Failures<ContainerId>,
    closing: CancellationToken,
}

impl Relay {
    pub fn new(engine: Engine, closing: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            engine,
            open: Mutex::default(),
            failures: Failures::default(),
            closing,
        })
    }

    /// Notes that somebody in a container showed a wrong key, and says so to it. Who tries many
    /// waits.
    async fn unauthenticated(&self, container: &ContainerId, what: &str) -> RpcError {
        let counted = self.failures.count(container.clone(), Instant::now());
        if counted.is_err() {
            tokio::time::sleep(PENALTY).await;
            let text = format!("{what}; too many wrong keys from this container, use a valid one");
            return RpcError::new(codes::UNAUTHENTICATED, text);
        }
        let entry = AuditEntry {
            at: self.engine.now(),
            token_id: None,
            operation: "authenticate".to_owned(),
            project_id: None,
            outcome: Outcome::Unauthenticated,
            address: Some(address(container)),
        };
        self.engine.audit_log().note(entry).await;
        RpcError::new(codes::UNAUTHENTICATED, what)
    }
}

/// Where a call from a container comes from, for the audit log.
fn address(container: &ContainerId) -> String {
    format!("container:{container}")
}

/// The engine opens doors through this.
#[derive(Debug)]
pub struct Doorkeeper(pub Arc<Relay>);

#[async_trait]
impl Doors for Doorkeeper {
    async fn open(&self, container: &ContainerId, directory: &Path) -> io::Result<()> {
        let relay = &self.0;
        let mut open = relay.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.contains_key(container) {
            return Ok(());
        }
        let listener = bind(directory)?;
        let closed = relay.closing.child_token();
        open.insert(container.clone(), closed.clone());
        tokio::spawn(admit(relay.clone(), container.clone(), listener, closed));
        Ok(())
    }

    fn close(&self, container: &ContainerId) {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(closed) = open.remove(container) {
            closed.cancel();
        }
    }
}

/// Binds the socket of a directory: made and opened to all aside, then put in its place, so that
/// nothing a container could have left there is followed or kept.
fn bind(directory: &Path) -> io::Result<UnixListener> {
    let parent = directory.parent().unwrap_or(directory);
    let aside = tempfile::Builder::new()
        .prefix(".")
        .rand_bytes(6)
        .tempdir_in(parent)?;
    let listener = UnixListener::bind(short(aside.path())?.path())?;
    let made = aside.path().join(SOCKET);
    // Ids inside a container are not ours; the directory's parent keeps everybody else out.
    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o666))?;
    std::fs::rename(made, directory.join(SOCKET))?;
    Ok(listener)
}

/// A short way to a directory, for as long as it is held: the path of a socket ends at 107 bytes and
/// that of a data directory does not.
struct Short {
    _directory: OwnedFd,
    path: PathBuf,
}

impl Short {
    fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(target_os = "linux")]
fn short(directory: &Path) -> io::Result<Short> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(directory, flags, Mode::empty())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", fd.as_raw_fd()));
    Ok(Short {
        _directory: fd,
        path,
    })
}

#[cfg(not(target_os = "linux"))]
fn short(directory: &Path) -> io::Result<Short> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(directory, flags, Mode::empty())?;
    Ok(Short {
        _directory: fd,
        path: directory.join(SOCKET),
    })
}

async fn admit(
    relay: Arc<Relay>,
    container: ContainerId,
    listener: UnixListener,
    closed: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    let room = Arc::new(Room::default());
    loop {
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            () = closed.cancelled() => return,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closed.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (relay, container, closed) = (relay.clone(), container.clone(), closed.clone());
        let (strangers, room) = (strangers.clone(), room.clone());
        tokio::spawn(async move {
            let _place = place;
            tokio::select! {
                () = receive(&relay, &container, &strangers, &room, stream) => {}
                () = closed.cancelled() => {}
            }
        });
    }
}

/// Hears who is there and leads it on.
async fn receive(
    relay: &Arc<Relay>,
    container: &ContainerId,
    strangers: &Semaphore,
    room: &Arc<Room>,
    mut stream: UnixStream,
) {
    let engine = &relay.engine;
    let Ok(stranger) = strangers.acquire().await else {
        return;
    };
    let introduced = tokio::time::timeout(INTRODUCTION, introduction(&mut stream)).await;
    let Ok(Some(introduced)) = introduced else {
        return;
    };
    let refusal = match introduced {
        Introduced::Client(first) => {
            drop(stranger);
            client::serve(relay, container, room, stream, first).await;
            return;
        }
        Introduced::Supervisor(message, rest) => match message.params::<Supervise>() {
            Ok(hello) => {
                let stream = Box::new(stream);
                let genuine = engine.knows(container, &hello).await;
                if !matches!(genuine, Ok(true)) {
                    tracing::warn!(%container, "a supervisor showed a wrong key");
                    tokio::time::sleep(PENALTY).await;
                    return;
                }
                drop(stranger);
                engine.supervise(container, hello, stream, rest).await;
                return;
            }
            Err(error) => (message.id, error),
        },
        Introduced::Bytes(message, rest) => match message.params::<Opened>() {
            Ok(opened) => {
                let incoming = Incoming {
                    from: opened.from,
                    stream: Box::new(stream),
                    rest,
                };
                engine.deliver_stream(&opened.stream_id, incoming);
                return;
            }
            Err(error) => (message.id, error),
        },
    };
    let (id, error) = refusal;
    let reply = Message::reply(id.unwrap_or(Value::Null), Err(error));
    let _ = stream.write_all(&reply.line()).await;
}

/// Who a connection says it is, and what it said after that.
enum Introduced {
    Supervisor(Message, Vec<u8>),
    Bytes(Message, Vec<u8>),
    /// Anybody else: an agent's client, with everything it said.
    Client(Vec<u8>),
}

/// Reads the first line.
async fn introduction(stream: &mut UnixStream) -> Option<Introduced> {
    let mut first = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let read = match stream.read(&mut chunk).await {
            Ok(0) | Err(_) if first.is_empty() => return None,
            // It says no more, and may still hear an answer.
            Ok(0) | Err(_) => return Some(Introduced::Client(first)),
            Ok(read) => read,
        };
        let end = chunk[..read].iter().position(|byte| *byte == b'\n');
        let end = end.map(|at| first.len() + at);
        first.extend_from_slice(&chunk[..read]);
        if let Some(end) = end {
            let message = serde_json::from_slice::<Message>(&first[..end]).ok();
            let method = message
                .as_ref()
                .and_then(|message| message.method.as_deref());
            let kind = match method {
                Some(supervision::SUPERVISE) => Introduced::Supervisor,
                Some(supervision::STREAM) => Introduced::Bytes,
                _ => return Some(Introduced::Client(first)),
            };
            let rest = first.split_off(end + 1);
            return message.map(|message| kind(message, rest));
        }
        // Only clients of agents send longer ones.
        if first.len() > LONGEST {
            return Some(Introduced::Client(first));
        }
    }
}
