//! The relay: the door of each container, a unix socket in a directory that only it sees, or another
//! stream of bytes that the runtime keeps open to it.
//!
//! Which container is at a door is known from the door, not from what it says. Everything that
//! comes through is bounded in size and time before anybody looks at it.

mod client;
mod hall;
mod introduction;
mod methods;
mod tools;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use oubliette_engine::{Doors, Engine, Incoming, Stream};
use oubliette_runtime::ContainerId;
use oubliette_store::{AuditEntry, Outcome};
use oubliette_wire::{RpcError, codes};
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::auth::Failures;
use client::Room;
use hall::Hall;
use introduction::Introduced;

const SOCKET: &str = "relay.sock";
/// Connections of one container at once: four for each of many agents, and strangers.
const CONNECTIONS: usize = 768;

/// All open doors.
#[derive(Debug)]
pub struct Relay {
    engine: Engine,
    open: Mutex<HashMap<ContainerId, Door>>,
    failures: Failures<ContainerId>,
    closing: CancellationToken,
}

/// The bounds of one container's connections.
#[derive(Debug, Clone)]
struct Door {
    closed: CancellationToken,
    places: Arc<Semaphore>,
    hall: Arc<Hall>,
    room: Arc<Room>,
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

    /// Counts a wrong key, and says so to whoever showed it. Past a handful they are no longer
    /// written down, each by each.
    async fn unauthenticated(&self, container: &ContainerId, what: &str) -> RpcError {
        let counted = self.failures.count(container.clone(), Instant::now());
        if let Err(wait) = counted {
            let seconds = wait.as_secs().max(1);
            let why = format!(
                "{what}; too many wrong keys from this container; wait {seconds} s and use a valid \
                 one"
            );
            return RpcError::new(codes::UNAUTHENTICATED, why);
        }
        tracing::warn!(%container, "somebody showed a wrong key");
        let known = self.engine.store().container(container.as_str()).await;
        let entry = AuditEntry {
            at: self.engine.now(),
            token_id: None,
            operation: "authenticate".to_owned(),
            project_id: known.ok().flatten().map(|known| known.project_id),
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
    async fn open(&self, container: &ContainerId, directory: Option<&Path>) -> io::Result<()> {
        let relay = &self.0;
        let mut open = relay.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.contains_key(container) {
            return Ok(());
        }
        let listener = directory.map(bind).transpose()?;
        let door = Door {
            closed: relay.closing.child_token(),
            places: Arc::new(Semaphore::new(CONNECTIONS)),
            hall: Arc::default(),
            room: Arc::default(),
        };
        open.insert(container.clone(), door.clone());
        if let Some(listener) = listener {
            tokio::spawn(accept(relay.clone(), container.clone(), listener, door));
        }
        Ok(())
    }

    fn admit(&self, container: &ContainerId, connection: Box<dyn Stream>) {
        let open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        let door = open.get(container).cloned();
        drop(open);
        if let Some(door) = door
            && let Ok(place) = door.places.clone().try_acquire_owned()
        {
            admit(&self.0, container, door, place, connection);
        }
    }

    fn close(&self, container: &ContainerId) {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(door) = open.remove(container) {
            door.closed.cancel();
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

async fn accept(relay: Arc<Relay>, container: ContainerId, listener: UnixListener, door: Door) {
    loop {
        let place = tokio::select! {
            place = door.places.clone().acquire_owned() => place,
            () = door.closed.cancelled() => return,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = door.closed.cancelled() => return,
        };
        let (Ok(place), Ok((stream, _))) = (place, accepted) else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        admit(&relay, &container, door.clone(), place, Box::new(stream));
    }
}

/// Serves a connection until it ends or the door closes.
fn admit(
    relay: &Arc<Relay>,
    container: &ContainerId,
    door: Door,
    place: OwnedSemaphorePermit,
    connection: Box<dyn Stream>,
) {
    let (relay, container) = (relay.clone(), container.clone());
    tokio::spawn(async move {
        let _place = place;
        tokio::select! {
            () = receive(&relay, &container, &door, connection) => {}
            () = door.closed.cancelled() => {}
        }
    });
}

/// Hears who is there and leads it on.
async fn receive(
    relay: &Arc<Relay>,
    container: &ContainerId,
    door: &Door,
    mut stream: Box<dyn Stream>,
) {
    let hall = &door.hall;
    let stranger = hall.enter();
    let heard = tokio::select! {
        heard = introduction::hear(relay, container, hall, &mut *stream) => heard,
        () = stranger.must_go() => None,
    };
    drop(stranger);
    let Some((introduced, rest)) = heard else {
        return;
    };
    match introduced {
        Introduced::Client(mut first) => {
            first.extend(rest);
            client::serve(relay, container, &door.room, stream, first).await;
        }
        Introduced::Supervisor(hello) => {
            let engine = &relay.engine;
            engine.supervise(container, hello, stream, rest).await;
        }
        Introduced::Stream(opened) => {
            let incoming = Incoming {
                from: opened.from,
                stream,
                rest,
            };
            let engine = &relay.engine;
            engine.deliver_stream(container, &opened.stream_id, incoming);
        }
    }
}
