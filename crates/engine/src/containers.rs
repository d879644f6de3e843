//! Containers: one per project or one per workspace, started when needed, and the commands that run in them.
//!
//! The runtime makes and ends containers. Everything inside happens through the supervisor, PID 1,
//! which dials us; its connection is a [`Link`]. All it says is input from a hostile place.

mod adopt;
pub(crate) mod attachment;
mod channel;
mod dialogue;
mod disk;
pub(crate) mod exec;
mod flow;
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
use oubliette_runtime::{ContainerId, ContainerState, Runtime, RuntimeError};
use oubliette_wire::Supervise;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub use link::Link;
pub(crate) use making::{Plan, mount};
pub(crate) use place::Place;
pub use streams::Incoming;

use crate::{EngineError, Result};
use dialogue::Dialogues;
use disk::Disk;
use streams::Streams;

/// How the names of commands begin that their callers did not name.
const UNNAMED: &str = "exec ";
/// And those that they did.
const NAMED: &str = "named ";
/// And those that are talked to, call by call.
const DIALOGUE: &str = "talk ";
/// A supervisor whose connection broke comes back within this time.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one is waited for before somebody looks whether its container runs at all.
const LOOK: Duration = Duration::from_secs(1);
/// What a caller may join keeps its container from being stopped for so long.
const JOINABLE: Duration = Duration::from_secs(86_400);

/// A connection from a container, of whatever kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for T {}

/// Opens and closes the doors that supervisors knock at. The faces know what a door is made of.
#[async_trait]
pub trait Doors: std::fmt::Debug + Send + Sync {
    /// Opens the door of a container, with a socket in its own directory if it has one. Opening an
    /// open door changes nothing.
    async fn open(&self, container: &ContainerId, directory: Option<&Path>) -> std::io::Result<()>;

    /// Lets in a connection that came another way. Without an open door, or with too many inside, it
    /// is dropped.
    fn admit(&self, container: &ContainerId, connection: Box<dyn Stream>);

    fn close(&self, container: &ContainerId);
}

/// What makes containers, or the sentence why nothing does.
pub type Choice = Result<Arc<dyn Runtime>, String>;

/// What makes containers here, and how to reach them.
#[derive(Debug)]
pub(crate) struct Containers {
    /// None until it is chosen, which takes a while: it is tried out.
    runtime: watch::Sender<Option<Choice>>,
    doors: Mutex<Option<Arc<dyn Doors>>>,
    links: Mutex<HashMap<ContainerId, watch::Sender<Option<Arc<Link>>>>>,
    streams: Streams,
    /// Commands that somebody in this server waits for.
    followed: Mutex<HashSet<String>>,
    /// One call of a named command at a time: the others join it.
    named: Mutex<HashMap<(ProjectId, String), Turn>>,
    dialogues: Dialogues,
    disk: Disk,
    /// Ways to containers that are kept open, until these end.
    channels: Mutex<HashMap<ContainerId, CancellationToken>>,
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
    pub(crate) fn new() -> Self {
        Self {
            runtime: watch::Sender::new(None),
            doors: Mutex::default(),
            links: Mutex::default(),
            streams: Streams::default(),
            followed: Mutex::default(),
            named: Mutex::default(),
            dialogues: Dialogues::default(),
            disk: Disk::default(),
            channels: Mutex::default(),
            used: Mutex::default(),
            turns: Mutex::default(),
        }
    }

    pub(crate) fn set_runtime(&self, choice: Choice) {
        self.runtime.send_replace(Some(choice));
    }

    /// What makes containers here, once that is known.
    pub(crate) async fn runtime(&self) -> Result<Arc<dyn Runtime>> {
        let mut runtime = self.runtime.subscribe();
        let chosen = runtime.wait_for(Option::is_some).await;
        match chosen.as_deref() {
            Ok(Some(Ok(runtime))) => Ok(runtime.clone()),
            Ok(Some(Err(why))) => Err(EngineError::Failed(why.clone())),
            _ => Err(EngineError::fault("no runtime was chosen")),
        }
    }

    /// What is known of the runtime; false while nothing is.
    pub(crate) fn is_runtime(&self, what: impl Fn(&Choice) -> bool) -> bool {
        self.runtime.borrow().as_ref().is_some_and(what)
    }

    /// The same, as soon as there is one.
    async fn any_runtime(&self) -> Result<Arc<dyn Runtime>> {
        let mut runtime = self.runtime.subscribe();
        let chosen = runtime
            .wait_for(|chosen| matches!(chosen, Some(Ok(_))))
            .await;
        match chosen.as_deref() {
            Ok(Some(Ok(runtime))) => Ok(runtime.clone()),
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
        self: &Arc<Self>,
        id: &ContainerId,
        hello: Supervise,
        stream: Box<dyn Stream>,
        rest: Vec<u8>,
    ) {
        let reported = |kind: &'static str| {
            let reports = hello.processes.iter();
            reports.filter(move |report| report.process_id.starts_with(kind))
        };
        let left: Vec<String> = {
            let followed = lock(&self.followed);
            reported(UNNAMED)
                .filter(|report| !followed.contains(&report.process_id))
                .map(|report| report.process_id.clone())
                .collect()
        };
        let joinable: Vec<String> = reported(NAMED)
            .filter(|report| report.exited.is_none())
            .map(|report| report.process_id.clone())
            .collect();
        let protocol = hello.protocol;
        let (link, serving) = Link::open(id.clone(), hello, stream, rest);
        let link = Arc::new(link);
        tracing::debug!(container = %id, protocol, boot = link.boot_id(), "supervisor connected");
        self.link_of(id).send_replace(Some(link.clone()));
        let minding = async {
            tokio::join!(end_left(&link, left), self.keep_used(id, &link, joinable));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = serving => {}
            () = minding => {}
        }
        link.lose();
        tracing::debug!(container = %id, "supervisor left");
    }

    /// Keeps a container from being stopped while commands run in it that somebody may join.
    async fn keep_used(self: &Arc<Self>, id: &ContainerId, link: &Link, processes: Vec<String>) {
        if processes.is_empty() {
            return;
        }
        let _use = self.using(id);
        let all = async {
            for process in processes {
                let _ = link.exited(&process).await;
            }
        };
        let _ = tokio::time::timeout(JOINABLE, all).await;
    }

    pub(crate) fn deliver(&self, container: &ContainerId, stream_id: &str, incoming: Incoming) {
        self.streams.deliver(container, stream_id, incoming);
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

    /// Takes note that a container is about to be stopped, before those in it end.
    fn stopping(&self, id: &ContainerId) {
        if let Some(link) = &*self.link_of(id).borrow() {
            link.stop();
        }
    }

    /// Takes note that a container has ended, before its connection shows it.
    fn unlink(&self, id: &ContainerId) {
        if let Some(channel) = lock(&self.channels).remove(id) {
            channel.cancel();
        }
        if let Some(link) = self.link_of(id).send_replace(None) {
            link.end();
        }
    }

    /// The next link to a container after one was lost, or the news that there will be none.
    async fn relink(&self, id: &ContainerId, lost: &Link) -> Result<Arc<Link>> {
        let until = tokio::time::Instant::now() + PATIENCE;
        let mut changes = self.link_of(id).subscribe();
        loop {
            let link = changes.wait_for(|link| link.as_ref().is_some_and(|link| link.is_open()));
            tokio::select! {
                link = link => return match link.as_deref() {
                    Ok(Some(link)) => Ok(link.clone()),
                    _ => Err(ended_meanwhile()),
                },
                () = lost.ended() => return Err(ended_meanwhile()),
                () = tokio::time::sleep_until(until) => return Err(unreachable_container()),
                () = tokio::time::sleep(LOOK) => {}
            }
            // One that ended by itself tells nobody; a runtime that does not answer says nothing.
            let found = self.runtime().await?.inspect(id).await;
            if found.is_ok_and(|found| found.is_none_or(|it| it.state != ContainerState::Running)) {
                return Err(ended_meanwhile());
            }
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

/// Ends commands whose server died while it followed them, and that nobody can join.
async fn end_left(link: &Link, processes: Vec<String>) {
    for process in processes {
        process::kill(link, &process).await;
        if link.exited(&process).await.is_ok() {
            link.forget(&process).await;
        }
    }
}

fn ended_meanwhile() -> EngineError {
    EngineError::Failed(
        "the container ended while the command ran; what it did until then is done".to_owned(),
    )
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
