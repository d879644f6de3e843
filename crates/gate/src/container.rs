//! The containers of a gate, and the sockets on which their tunnels connect.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oubliette_model::NetworkRules;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::control::{Denial, GateStatus, Registration};
use crate::gateway::{BufferPool, Gateway, UpstreamClient};
use crate::journal::Journal;
use crate::limits::Limits;
use crate::questions::Questions;
use crate::resolver::Resolver;
use crate::{EGRESS_SOCKET_NAME, connection, control_client, socket};

/// Names of one container that are being looked up.
const MAX_CONTAINER_LOOKUPS: usize = 16;
/// `accept` fails when the system is short of memory or descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The server hears of a denial of the same host and port again after this time.
const DENIAL_INTERVAL: Duration = Duration::from_secs(10);
/// Hosts of a container whose last denial is remembered.
const MAX_REMEMBERED_DENIALS: usize = 256;

/// What all connections of a gate share.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The directory in which drafts of sockets are made.
    staging: PathBuf,
    containers: Mutex<HashMap<String, Arc<ContainerGate>>>,
    /// Notified when containers come or go.
    pub(crate) containers_changed: Notify,
    pub(crate) resolver: Resolver,
    pub(crate) journal: Journal,
    limits: Limits,
    pub(crate) gateway: Gateway,
    pub(crate) connections: Arc<Semaphore>,
    connection_number: AtomicU64,
    subscribers: Mutex<Vec<mpsc::Sender<Denial>>>,
    /// Changes when questions are asked, answered or withdrawn.
    pub(crate) questions_changed: watch::Sender<()>,
    pub(crate) stopping: CancellationToken,
}

/// One container.
#[derive(Debug)]
pub(crate) struct ContainerGate {
    pub(crate) id: String,
    pub(crate) project: String,
    directory: PathBuf,
    rules: watch::Sender<Arc<NetworkRules>>,
    pub(crate) open_connections: Arc<AtomicUsize>,
    pub(crate) lookups: Arc<Semaphore>,
    denials: Mutex<HashMap<(String, u16, String), Instant>>,
    pub(crate) questions: Questions,
    pub(crate) upstream: UpstreamClient,
    pub(crate) buffered: BufferPool,
    pub(crate) closing: CancellationToken,
}

impl ContainerGate {
    /// The rules, and their changes.
    pub(crate) fn rules(&self) -> watch::Receiver<Arc<NetworkRules>> {
        self.rules.subscribe()
    }

    /// Whether the server hears of this denial: a loop of a container must not flood it.
    fn is_news(&self, host: &str, port: u16, reason: &str) -> bool {
        let now = Instant::now();
        let mut denials = self.denials.lock();
        let key = (host.to_owned(), port, reason.to_owned());
        if let Some(last) = denials.get(&key)
            && now.duration_since(*last) < DENIAL_INTERVAL
        {
            return false;
        }
        denials.retain(|_, last| now.duration_since(*last) < DENIAL_INTERVAL);
        let has_room = denials.len() < MAX_REMEMBERED_DENIALS;
        if has_room {
            denials.insert(key, now);
        }
        has_room
    }
}

impl Gate {
    pub(crate) fn new(data_dir: &Path, limits: Limits) -> io::Result<Self> {
        let resolver = Resolver::new(None, limits.lookups);
        Ok(Self {
            gateway: Gateway::new(data_dir, resolver.clone())?,
            staging: data_dir.join("run"),
            containers: Mutex::default(),
            containers_changed: Notify::new(),
            resolver,
            journal: Journal::start(&data_dir.join(crate::JOURNAL_DIR))?,
            limits,
            connections: Arc::new(Semaphore::new(limits.connections)),
            connection_number: AtomicU64::new(0),
            subscribers: Mutex::default(),
            questions_changed: watch::Sender::new(()),
            stopping: CancellationToken::new(),
        })
    }

    pub(crate) fn status(&self) -> GateStatus {
        let free = self.connections.available_permits();
        GateStatus {
            pid: std::process::id(),
            build: control_client::own_build(),
            containers: self.containers.lock().keys().cloned().collect(),
            streams: self.limits.connections.saturating_sub(free) as u64,
        }
    }

    pub(crate) fn all_containers(&self) -> Vec<Arc<ContainerGate>> {
        self.containers.lock().values().cloned().collect()
    }

    pub(crate) fn has_containers(&self) -> bool {
        !self.containers.lock().is_empty()
    }

    pub(crate) fn next_connection_number(&self) -> u64 {
        self.connection_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The connections that each container may have at once.
    pub(crate) fn max_container_connections(&self) -> usize {
        let containers = self.containers.lock().len();
        self.limits.of_container(containers)
    }

    /// Adds a container, or changes the rules of one whose socket is still there. Open connections that the rules still allow
    /// stay.
    pub(crate) fn set(self: &Arc<Self>, registration: Registration) -> io::Result<()> {
        let Registration {
            container: id,
            project,
            directory,
            rules,
            ..
        } = registration;
        let known = self.containers.lock().get(&id).cloned();
        if let Some(known) = known
            && known.directory == directory
            && directory.join(EGRESS_SOCKET_NAME).exists()
        {
            known.rules.send_if_modified(|current| {
                let is_changed = **current != rules;
                if is_changed {
                    *current = Arc::new(rules);
                }
                is_changed
            });
            return Ok(());
        }
        // Any user may connect who sees it: user ids in containers are others.
        let listener = socket::bind(&directory, EGRESS_SOCKET_NAME, &self.staging, 0o666)?;
        let container = Arc::new(ContainerGate {
            id: id.clone(),
            project,
            directory,
            rules: watch::Sender::new(Arc::new(rules)),
            open_connections: Arc::default(),
            lookups: Arc::new(Semaphore::new(MAX_CONTAINER_LOOKUPS)),
            denials: Mutex::default(),
            questions: Questions::default(),
            upstream: self.gateway.new_client(),
            buffered: BufferPool::of_container(),
            closing: self.stopping.child_token(),
        });
        let replaced = self.containers.lock().insert(id, container.clone());
        if let Some(replaced) = replaced {
            replaced.closing.cancel();
        }
        tokio::spawn(accept(self.clone(), container, listener));
        self.containers_changed.notify_waiters();
        Ok(())
    }

    /// Ends the connections of a container.
    pub(crate) fn remove(&self, id: &str) {
        self.gateway.grants.remove_container(id);
        let removed = self.containers.lock().remove(id);
        if let Some(removed) = removed {
            removed.closing.cancel();
            // The directory may be gone.
            let _ = std::fs::remove_file(removed.directory.join(EGRESS_SOCKET_NAME));
        }
        self.containers_changed.notify_waiters();
    }

    pub(crate) fn keep(&self, ids: &[String]) {
        let others: Vec<String> = {
            let containers = self.containers.lock();
            let all = containers.keys();
            all.filter(|id| !ids.contains(id)).cloned().collect()
        };
        for id in others {
            self.remove(&id);
        }
    }

    pub(crate) fn subscribe(&self, subscriber: mpsc::Sender<Denial>) {
        let mut subscribers = self.subscribers.lock();
        subscribers.retain(|it| !it.is_closed());
        subscribers.push(subscriber);
    }

    pub(crate) fn publish(&self, container: &ContainerGate, host: &str, port: u16, reason: &str) {
        if !container.is_news(host, port, reason) {
            return;
        }
        let subscribers = self.subscribers.lock();
        for subscriber in subscribers.iter() {
            // A server that does not read misses some; the journal has them.
            let _ = subscriber.try_send(Denial {
                container: container.id.clone(),
                host: host.to_owned(),
                port,
                reason: reason.to_owned(),
            });
        }
    }
}

async fn accept(gate: Arc<Gate>, container: Arc<ContainerGate>, listener: UnixListener) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = container.closing.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => connection::spawn(&gate, &container, stream),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await,
        }
    }
}
