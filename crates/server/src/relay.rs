//! The relay, by which containers reach the server. Each container has its own listener: a unix
//! socket in a directory that only this container sees, or a byte stream that the runtime keeps open.
//!
//! The listener identifies the container; what a connection says about it does not. Everything that a
//! connection sends is bounded in size and time before it is interpreted.

mod client;
mod client_limits;
mod eviction_queue;
mod handshake;
mod methods;
mod replies;
mod socket;
mod tools;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use oubliette_engine::{Engine, IncomingStream, RelayListeners, Stream};
use oubliette_runtime::ContainerId;
use oubliette_wire::{RpcError, codes};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::auth::FailureLimiter;
use crate::tasks::Tasks;
use client_limits::ClientLimits;
use eviction_queue::EvictionQueue;
use handshake::Peer;

/// Four for each of many agents, and unauthenticated ones.
const MAX_CONNECTIONS_PER_CONTAINER: usize = 768;
/// Connections before their first line. Agents that start at the same time open three streams each.
const MAX_PENDING_CONNECTIONS: usize = 192;
/// Long first lines that are read at once; each can have many megabytes.
const MAX_PENDING_LONG_LINES: usize = 1;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Accepts the connections of all containers. The engine opens and closes their listeners.
#[derive(Debug)]
pub struct RelayServer {
    relay: Arc<Relay>,
}

#[derive(Debug)]
struct Relay {
    engine: Engine,
    listeners: Mutex<HashMap<ContainerId, Listener>>,
    failures: FailureLimiter<ContainerId>,
    tasks: Tasks,
}

/// The open listener of one container, with the limits of its connections.
#[derive(Debug, Clone)]
struct Listener {
    closed: CancellationToken,
    permits: Arc<Semaphore>,
    pending: Arc<EvictionQueue>,
    /// A pending connection holds a permit while it reads a long line.
    pending_long_lines: Arc<Semaphore>,
    client_limits: Arc<ClientLimits>,
}

impl RelayServer {
    pub fn new(engine: Engine) -> Self {
        Self {
            relay: Arc::new(Relay {
                engine,
                listeners: Mutex::default(),
                failures: FailureLimiter::default(),
                tasks: Tasks::default(),
            }),
        }
    }

    /// Closes all listeners and connections, and returns when their tasks have ended.
    pub async fn shut_down(&self) {
        self.relay.tasks.shut_down().await;
    }
}

#[async_trait]
impl RelayListeners for RelayServer {
    async fn open(&self, container: &ContainerId, directory: Option<&Path>) -> io::Result<()> {
        let mut listeners = self.relay.listeners.lock();
        if listeners.contains_key(container) {
            return Ok(());
        }
        let socket = directory.map(socket::bind).transpose()?;
        let listener = Listener {
            closed: self.relay.tasks.shutdown_token().child_token(),
            permits: Arc::new(Semaphore::new(MAX_CONNECTIONS_PER_CONTAINER)),
            pending: EvictionQueue::new(MAX_PENDING_CONNECTIONS),
            pending_long_lines: Arc::new(Semaphore::new(MAX_PENDING_LONG_LINES)),
            client_limits: Arc::default(),
        };
        listeners.insert(container.clone(), listener.clone());
        if let Some(socket) = socket {
            let accepting = accept(self.relay.clone(), container.clone(), socket, listener);
            self.relay.tasks.spawn(accepting);
        }
        Ok(())
    }

    fn admit(&self, container: &ContainerId, connection: Box<dyn Stream>) {
        let listener = self.relay.listeners.lock().get(container).cloned();
        if let Some(listener) = listener
            && let Ok(permit) = listener.permits.clone().try_acquire_owned()
        {
            spawn_connection(&self.relay, container, listener, permit, connection);
        }
    }

    fn close(&self, container: &ContainerId) {
        if let Some(listener) = self.relay.listeners.lock().remove(container) {
            listener.closed.cancel();
        }
    }
}

impl Relay {
    /// Records a wrong key, and returns the error for the peer. Past the limit of its container, wrong
    /// keys are not written to the audit log.
    async fn reject_key(&self, container: &ContainerId, reason: &str) -> RpcError {
        if let Err(wait) = self.failures.record(container.clone(), Instant::now()) {
            let seconds = wait.as_secs().max(1);
            let message = format!(
                "{reason}; too many wrong keys from this container; wait {seconds} s and use a \
                 valid one"
            );
            return RpcError::new(codes::UNAUTHENTICATED, message);
        }
        tracing::warn!(%container, "a connection showed a wrong key");
        self.engine
            .tokens()
            .record_authentication_failure(audit_address(container), Some(container))
            .await;
        RpcError::new(codes::UNAUTHENTICATED, reason)
    }
}

/// The origin of calls from a container, for the audit log.
fn audit_address(container: &ContainerId) -> String {
    format!("container:{container}")
}

async fn accept(
    relay: Arc<Relay>,
    container: ContainerId,
    socket: UnixListener,
    listener: Listener,
) {
    loop {
        let permit = tokio::select! {
            permit = listener.permits.clone().acquire_owned() => permit,
            () = listener.closed.cancelled() => return,
        };
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = listener.closed.cancelled() => return,
        };
        let (Ok(permit), Ok((stream, _))) = (permit, accepted) else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        spawn_connection(
            &relay,
            &container,
            listener.clone(),
            permit,
            Box::new(stream),
        );
    }
}

/// Serves a connection until it ends or its listener closes.
fn spawn_connection(
    relay: &Arc<Relay>,
    container: &ContainerId,
    listener: Listener,
    permit: OwnedSemaphorePermit,
    connection: Box<dyn Stream>,
) {
    let (relay, container) = (relay.clone(), container.clone());
    relay.tasks.clone().spawn(async move {
        let _permit = permit;
        tokio::select! {
            () = serve_connection(&relay, &container, &listener, connection) => {}
            () = listener.closed.cancelled() => {}
        }
    });
}

async fn serve_connection(
    relay: &Arc<Relay>,
    container: &ContainerId,
    listener: &Listener,
    mut stream: Box<dyn Stream>,
) {
    let pending = listener.pending.add();
    let long_lines = &listener.pending_long_lines;
    let identifying = handshake::identify(relay, container, long_lines, &mut *stream);
    let identified = pending
        .eviction()
        .run_until_cancelled_owned(identifying)
        .await;
    drop(pending);
    let identified = identified.flatten();
    let Some((peer, rest)) = identified else {
        return;
    };
    let engine = &relay.engine;
    match peer {
        Peer::Client(first) => {
            client::serve(
                relay,
                container,
                &listener.client_limits,
                stream,
                first,
                rest,
            )
            .await;
        }
        Peer::Supervisor(hello) => {
            engine
                .containers()
                .supervise(container, hello, stream, rest)
                .await;
        }
        Peer::Stream(opened) => {
            let incoming = IncomingStream {
                from: opened.from,
                stream,
                rest,
            };
            engine
                .containers()
                .deliver_stream(container, &opened.stream_id, incoming);
        }
    }
}
