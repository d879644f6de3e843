//! Connections to the server over the runtime's channel.
//!
//! The server runs `oubliette-client carry` in the container, which connects the channel with the
//! socket that [`MuxListener`] listens on. A peer must prove that it knows the container's key. The
//! latest peer that did is the server.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use oubliette_wire::mux::{MuxSession, MuxStream, challenge_server, hash_key};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};

use crate::stdio_bridge;

const PROOF_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new stream waits for a server to connect.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_UNAUTHENTICATED_PEERS: usize = 8;
const MAX_CLIENT_CONNECTIONS: usize = 256;
/// `accept` fails when the system is short of memory or file descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct MuxListener {
    key_hash: [u8; 32],
    session: RefCell<Option<MuxSession>>,
    /// Counts sessions; a session ends when it is no longer the latest.
    session_number: Cell<u64>,
    session_changed: Notify,
}

impl MuxListener {
    /// Listens for the server, and at `socket` for clients in the container.
    pub(super) fn start(container_key: &str, socket: &Path) -> io::Result<Rc<Self>> {
        let listener = Rc::new(Self {
            key_hash: hash_key(container_key),
            session: RefCell::default(),
            session_number: Cell::new(0),
            session_changed: Notify::new(),
        });
        let servers = stdio_bridge::listen()?;
        tokio::task::spawn_local(listener.clone().accept_servers(servers));
        match bind_client_socket(socket) {
            Ok(clients) => {
                tokio::task::spawn_local(listener.clone().accept_clients(clients));
            }
            // Commands work without clients.
            Err(error) => eprintln!("cannot listen at {}: {error}", socket.display()),
        }
        Ok(listener)
    }

    /// Opens a stream to the server, and waits for a server if there is none.
    pub(super) async fn open_stream(&self) -> io::Result<MuxStream> {
        let opening = async {
            loop {
                let changed = self.session_changed.notified();
                let session = self.session.borrow().clone();
                if let Some(session) = session.filter(MuxSession::is_open) {
                    return session.open();
                }
                changed.await;
            }
        };
        tokio::time::timeout(SESSION_TIMEOUT, opening)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn accept_servers(self: Rc<Self>, servers: UnixListener) {
        let unauthenticated = Rc::new(Semaphore::new(MAX_UNAUTHENTICATED_PEERS));
        loop {
            let Ok((mut channel, _)) = servers.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            };
            let (listener, unauthenticated) = (self.clone(), unauthenticated.clone());
            tokio::task::spawn_local(async move {
                let Ok(permit) = unauthenticated.try_acquire() else {
                    return;
                };
                let proving = challenge_server(&mut channel, &listener.key_hash, random_nonce());
                if let Ok(Ok(())) = tokio::time::timeout(PROOF_TIMEOUT, proving).await {
                    drop(permit);
                    listener.run_session(channel).await;
                }
            });
        }
    }

    /// Runs a session until the server leaves or another server connects.
    async fn run_session(&self, channel: UnixStream) {
        let number = self.session_number.get() + 1;
        self.session_number.set(number);
        let (session, running) = MuxSession::new(channel, None);
        *self.session.borrow_mut() = Some(session);
        self.session_changed.notify_waiters();
        let replaced = async {
            loop {
                let changed = self.session_changed.notified();
                if self.session_number.get() != number {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            _ = running => {}
            () = replaced => {}
        }
        if self.session_number.get() == number {
            self.session.take();
        }
    }

    async fn accept_clients(self: Rc<Self>, clients: UnixListener) {
        let connections = Rc::new(Semaphore::new(MAX_CLIENT_CONNECTIONS));
        loop {
            let Ok((mut client, _)) = clients.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            };
            let (listener, connections) = (self.clone(), connections.clone());
            tokio::task::spawn_local(async move {
                let Ok(_permit) = connections.try_acquire() else {
                    return;
                };
                // A client whose connection is closed at once connects again.
                if let Ok(mut stream) = listener.open_stream().await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut stream).await;
                }
            });
        }
    }
}

fn random_nonce() -> [u8; 32] {
    let mut nonce = [0; 32];
    for half in nonce.chunks_mut(16) {
        half.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    }
    nonce
}

fn bind_client_socket(socket: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = socket.parent() {
        std::fs::create_dir_all(directory)?;
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}
