//! Connections to the server over the runtime's own channel.
//!
//! The server runs `oubliette-client carry` here, which connects the channel with the socket that
//! this listens on; its name is one that nobody else can take while this process lives. Whoever
//! comes there must know the container's key. The latest that does is the server.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use oubliette_wire::carry::{Carried, Carrier, carry, challenge, hash_of_key};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};

use crate::channel;

/// How long a proof may take.
const PROOF: Duration = Duration::from_secs(10);
/// How long to wait for a server before the next try.
const PATIENCE: Duration = Duration::from_secs(2);
/// Those at the door at once, and connections of others in the container.
const STRANGERS: usize = 8;
const CLIENTS: usize = 256;
/// After accepting fails, which means that the machine is short of something.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Carriage {
    key: [u8; 32],
    current: RefCell<Option<Carrier>>,
    /// Which one it is; the one before ends when it changes.
    number: Cell<u64>,
    changed: Notify,
}

impl Carriage {
    /// Listens for the server, and at `socket` for everybody else in the container.
    pub(super) fn open_up(container_key: &str, socket: &Path) -> io::Result<Rc<Self>> {
        let carriage = Rc::new(Self {
            key: hash_of_key(container_key),
            current: RefCell::default(),
            number: Cell::new(0),
            changed: Notify::new(),
        });
        tokio::task::spawn_local(carriage.clone().await_servers(channel::listen()?));
        match listen_at(socket) {
            Ok(listener) => {
                tokio::task::spawn_local(carriage.clone().await_clients(listener));
            }
            // Commands work without it.
            Err(error) => eprintln!("cannot listen at {}: {error}", socket.display()),
        }
        Ok(carriage)
    }

    /// A connection to the server, waiting a while for one that is on its way.
    pub(super) async fn open(&self) -> io::Result<Carried> {
        let opened = async {
            loop {
                let changed = self.changed.notified();
                let current = self.current.borrow().clone();
                if let Some(carrier) = current.filter(Carrier::is_open) {
                    return carrier.open();
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, opened)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn await_servers(self: Rc<Self>, listener: UnixListener) {
        let strangers = Rc::new(Semaphore::new(STRANGERS));
        loop {
            let Ok((mut stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let (carriage, strangers) = (self.clone(), strangers.clone());
            tokio::task::spawn_local(async move {
                let Ok(stranger) = strangers.try_acquire() else {
                    return;
                };
                let nonce = *uuid::Uuid::new_v4().as_bytes();
                let more = *uuid::Uuid::new_v4().as_bytes();
                let nonce = [nonce, more].concat().try_into().unwrap_or([0; 32]);
                let proven = challenge(&mut stream, &carriage.key, nonce);
                if let Ok(Ok(())) = tokio::time::timeout(PROOF, proven).await {
                    drop(stranger);
                    carriage.serve(stream).await;
                }
            });
        }
    }

    /// Carries connections for a server until it leaves or another comes.
    async fn serve(&self, stream: UnixStream) {
        let number = self.number.get() + 1;
        self.number.set(number);
        let (carrier, carrying) = carry(stream, None);
        *self.current.borrow_mut() = Some(carrier);
        self.changed.notify_waiters();
        let replaced = async {
            loop {
                let changed = self.changed.notified();
                if self.number.get() != number {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            _ = carrying => {}
            () = replaced => {}
        }
        if self.number.get() == number {
            self.current.take();
        }
    }

    async fn await_clients(self: Rc<Self>, listener: UnixListener) {
        let places = Rc::new(Semaphore::new(CLIENTS));
        loop {
            let Ok((mut client, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let (carriage, places) = (self.clone(), places.clone());
            tokio::task::spawn_local(async move {
                let Ok(_place) = places.try_acquire() else {
                    return;
                };
                // A client whose connection ends at once tries again, as with a server that is away.
                if let Ok(mut carried) = carriage.open().await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut carried).await;
                }
            });
        }
    }
}

fn listen_at(socket: &Path) -> io::Result<UnixListener> {
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
