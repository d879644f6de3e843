//! Containers: one per project or one per workspace, started when needed, and the commands that run in them.
//!
//! The runtime makes and ends containers. Everything inside happens through the supervisor, PID 1,
//! which dials us; its connection is a [`Link`]. All it says is input from a hostile place.

mod adopt;
pub(crate) mod attachment;
mod dialogue;
pub(crate) mod exec;
mod idle;
mod lifecycle;
mod link;
pub(crate) mod logs;
mod making;
mod place;
mod process;
pub(crate) mod rebuild;
pub(crate) mod start;
pub(crate) mod stop;
mod streams;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use oubliette_model::ProjectId;
use oubliette_runtime::{ContainerId, Runtime, RuntimeError};
use oubliette_wire::{OpenStream, StreamKind, Supervise, methods};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};

pub use link::Link;
pub(crate) use making::{Plan, mount};
pub(crate) use place::Place;
pub use streams::Incoming;

use crate::{EngineError, Result};
use dialogue::Dialogues;
use link::LinkError;
use streams::Streams;

/// How the names of commands begin that their callers did not name.
const UNNAMED: &str = "exec ";
/// And those that they did.
const NAMED: &str = "named ";
/// And those that are talked to, call by call.
const DIALOGUE: &str = "talk ";

/// A connection from a container, of whatever kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for T {}

/// Opens and closes the doors that supervisors knock at. The faces know what a door is made of.
#[async_trait]
pub trait Doors: std::fmt::Debug + Send + Sync {
    /// Opens the door of a container in its own directory. Opening an open door changes nothing.
    async fn open(&self, container: &ContainerId, directory: &Path) -> std::io::Result<()>;

    fn close(&self, container: &ContainerId);
}

/// What makes containers, or the sentence why nothing does.
pub type Choice = Result<Arc<dyn Runtime>, String>;

/// What makes containers here, and how to reach them.
#[derive(Debug)]
pub(crate) struct Containers {
    /// None until it is chosen, which takes a while: it is tried out.
    runtime: watch::Receiver<Option<Choice>>,
    doors: Mutex<Option<Arc<dyn Doors>>>,
    links: Mutex<HashMap<ContainerId, watch::Sender<Option<Arc<Link>>>>>,
    streams: Streams,
    /// Commands that somebody in this server waits for.
    followed: Mutex<HashSet<String>>,
    /// One call of a named command at a time: the others join it.
    named: Mutex<HashMap<(ProjectId, String), Turn>>,
    dialogues: Dialogues,
    used: Mutex<HashMap<ContainerId, Use>>,
    /// One start or stop of a container at a time.
    turns: Mutex<HashMap<ContainerId, Turn>>,
}

/// Held while something is done that only one may do at a time.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// When a container was last needed, and by how many it is now.
#[derive(Debug)]
struct Use {
    users: usize,
    since: Instant,
}

impl Containers {
    pub(crate) fn new(runtime: watch::Receiver<Option<Choice>>) -> Self {
        Self {
            runtime,
            doors: Mutex::default(),
            links: Mutex::default(),
            streams: Streams::default(),
            followed: Mutex::default(),
            named: Mutex::default(),
            dialogues: Dialogues::default(),
            used: Mutex::default(),
            turns: Mutex::default(),
        }
    }

    /// What makes containers here, once that is known.
    pub(crate) async fn runtime(&self) -> Result<Arc<dyn Runtime>> {
        let mut runtime = self.runtime.clone();
        let chosen = runtime.wait_for(Option::is_some).await;
        match chosen.as_deref() {
            Ok(Some(Ok(runtime))) => Ok(runtime.clone()),
            Ok(Some(Err(why))) => Err(EngineError::Failed(why.clone())),
            _ => Err(EngineError::fault("no runtime was chosen")),
        }
    }

    pub(crate) fn set_doors(&self, doors: Arc<dyn Doors>) {
        *lock(&self.doors) = Some(doors);
    }

    fn doors(&self) -> Result<Arc<dyn Doors>> {
        lock(&self.doors)
            .clone()
            .ok_or_else(|| EngineError::fault("no face lets containers in"))
    }

    fn link_of(&self, id: &ContainerId) -> watch::Sender<Option<Arc<Link>>> {
        lock(&self.links).entry(id.clone()).or_default().clone()
    }

    /// Whether a container runs and its supervisor is on the line.
    pub(crate) fn is_linked(&self, id: &ContainerId) -> bool {
        let links = lock(&self.links);
        let link = links.get(id).map(|link| link.borrow().clone());
        link.flatten().is_some_and(|link| link.is_open())
    }

    /// The link to a container's supervisor, waiting for one that is on its way.
    pub(crate) async fn link(&self, id: &ContainerId, patience: Duration) -> Result<Arc<Link>> {
        let mut changes = self.link_of(id).subscribe();
        let link = changes.wait_for(|link| link.as_ref().is_some_and(|link| link.is_open()));
        match tokio::time::timeout(patience, link).await {
            Ok(Ok(link)) => match link.as_ref() {
                Some(link) => Ok(link.clone()),
                None => Err(unreachable_container()),
            },
            _ => Err(unreachable_container()),
        }
    }

    /// Takes the connection of a supervisor that has shown its key, and serves it to its end.
    pub(crate) async fn supervised(
        &self,
        id: &ContainerId,
        hello: Supervise,
        stream: Box<dyn Stream>,
        rest: Vec<u8>,
    ) {
        let left: Vec<String> = {
            let followed = lock(&self.followed);
            let reported = hello.processes.iter().map(|report| &report.process_id);
            let unnamed = reported.filter(|process| process.starts_with(UNNAMED));
            unnamed
                .filter(|process| !followed.contains(*process))
                .cloned()
                .collect()
        };
        let (link, serving) = Link::open(hello, stream, rest);
        let link = Arc::new(link);
        tracing::debug!(container = %id, boot = link.boot_id(), "supervisor connected");
        self.link_of(id).send_replace(Some(link.clone()));
        // Commands whose server died while it followed them, and that nobody can join.
        let ending = async {
            for process in left {
                process::kill(&link, &process).await;
                if link.exited(&process).await.is_ok() {
                    link.forget(&process).await;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = serving => {}
            () = ending => {}
        }
        link.lose();
        tracing::debug!(container = %id, "supervisor left");
    }

    /// A connection for the bytes of one stream, from an offset on.
    async fn open_stream(
        &self,
        link: &Link,
        process_id: &str,
        kind: StreamKind,
        from: u64,
    ) -> Result<Incoming, LinkError> {
        let expected = self.streams.expect();
        let asked = OpenStream {
            stream_id: expected.id.clone(),
            process_id: process_id.to_owned(),
            kind,
            from,
        };
        link.ask(methods::OPEN_STREAM, &asked).await?;
        expected.arrive().await.ok_or(LinkError::Lost)
    }

    pub(crate) fn deliver(&self, stream_id: &str, incoming: Incoming) {
        self.streams.deliver(stream_id, incoming);
    }

    /// Notes that a container is in use until the guard is dropped.
    pub(crate) fn using(self: &Arc<Self>, id: &ContainerId) -> InUse {
        let mut used = lock(&self.used);
        let entry = used.entry(id.clone()).or_insert(Use {
            users: 0,
            since: Instant::now(),
        });
        entry.users += 1;
        InUse {
            containers: self.clone(),
            id: id.clone(),
        }
    }

    fn is_used(&self, id: &ContainerId) -> bool {
        lock(&self.used).get(id).is_some_and(|used| used.users > 0)
    }

    /// Takes note that a container has ended, before its connection shows it.
    fn unlink(&self, id: &ContainerId) {
        if let Some(link) = self.link_of(id).send_replace(None) {
            link.lose();
        }
    }

    fn turn(&self, id: &ContainerId) -> Turn {
        lock(&self.turns).entry(id.clone()).or_default().clone()
    }

    fn forget(&self, id: &ContainerId) {
        lock(&self.links).remove(id);
        lock(&self.used).remove(id);
        lock(&self.turns).remove(id);
    }
}

/// Keeps a container from being stopped as idle.
#[derive(Debug)]
pub(crate) struct InUse {
    containers: Arc<Containers>,
    id: ContainerId,
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(entry) = lock(&self.containers.used).get_mut(&self.id) {
            entry.users = entry.users.saturating_sub(1);
            entry.since = Instant::now();
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unreachable_container() -> EngineError {
    EngineError::Failed(
        "the container does not answer; `container_logs` may say why, `container_stop` and \
         `container_start` make a new start"
            .to_owned(),
    )
}

impl From<RuntimeError> for EngineError {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Fault(source) => Self::Fault(source),
            told => Self::Failed(told.to_string()),
        }
    }
}

/// Something that can be waited for and has or has not happened.
#[derive(Debug, Default)]
pub(crate) struct Flag {
    raised: std::sync::atomic::AtomicBool,
    notify: Notify,
}

impl Flag {
    pub(crate) fn raise(&self) {
        self.raised
            .store(true, std::sync::atomic::Ordering::Release);
        self.notify.notify_waiters();
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(std::sync::atomic::Ordering::Acquire)
    }

    pub(crate) async fn raised(&self) {
        loop {
            let notified = self.notify.notified();
            if self.is_raised() {
                return;
            }
            notified.await;
        }
    }
}
