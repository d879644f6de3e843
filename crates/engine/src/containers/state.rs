//! What the server knows about its containers: the runtime, the connections to supervisors, and which
//! containers are in use.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oubliette_model::ProjectId;
use oubliette_runtime::{ContainerId, Networks, RunState, Runtime};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::disk::DiskUsage;
use super::images::ImageBuilds;
use super::interactive::IdleTimers;
use super::locks::{ContainerGuard, ContainerLocks, WorkspacePermit};
use super::memory::MemoryEvents;
use super::process::{PendingStreams, Process};
use super::supervisor_link::SupervisorLink;
use super::{AvailableRuntime, RelayListeners, container_ended, container_unreachable};
use crate::{EngineError, Result};

/// How long a supervisor whose connection was lost may take to connect again.
pub(crate) const SUPERVISOR_RECONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// How often the runtime is asked whether a container still runs while its supervisor is awaited.
const STATUS_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A container whose supervisor has just disconnected is most likely ending.
const FIRST_STATUS_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Held during an operation that must not run twice at the same time.
pub(super) type OperationLock = Arc<tokio::sync::Mutex<()>>;

#[derive(Debug)]
pub(crate) struct ContainerState {
    /// None until the choice is made, which takes a while because runtimes are tried out.
    runtime: watch::Sender<Option<AvailableRuntime>>,
    relay_listeners: Mutex<Option<Arc<dyn RelayListeners>>>,
    links: Mutex<HashMap<ContainerId, watch::Sender<Option<Arc<SupervisorLink>>>>>,
    pub(super) pending_streams: PendingStreams,
    /// The process ids of commands that a call of this server waits for.
    pub(super) awaited_commands: Mutex<HashSet<String>>,
    /// One call of a named command runs at a time; the others join it.
    pub(super) named_commands: Mutex<HashMap<(ProjectId, String), OperationLock>>,
    pub(super) idle_timers: IdleTimers,
    pub(super) disk_usage: DiskUsage,
    pub(super) memory_events: Mutex<HashMap<ContainerId, MemoryEvents>>,
    /// Why the server stopped containers that were in use, until they start again.
    stop_reasons: Mutex<HashMap<ContainerId, String>>,
    pub(super) image_builds: ImageBuilds,
    /// Channels that are kept open until their tokens are cancelled.
    pub(super) channels: Mutex<HashMap<ContainerId, CancellationToken>>,
    pub(super) usage: Mutex<HashMap<ContainerId, Usage>>,
    locks: ContainerLocks,
}

/// How many users a container has, and when that last changed to fewer.
#[derive(Debug)]
pub(super) struct Usage {
    pub(super) users: usize,
    pub(super) last_used: Instant,
    /// Whether it is stopped as soon as it has no users.
    pub(super) is_outdated: bool,
}

impl ContainerState {
    pub(crate) fn new() -> Self {
        Self {
            runtime: watch::Sender::new(None),
            relay_listeners: Mutex::default(),
            links: Mutex::default(),
            pending_streams: PendingStreams::default(),
            awaited_commands: Mutex::default(),
            named_commands: Mutex::default(),
            idle_timers: IdleTimers::default(),
            disk_usage: DiskUsage::default(),
            memory_events: Mutex::default(),
            stop_reasons: Mutex::default(),
            image_builds: ImageBuilds::default(),
            channels: Mutex::default(),
            usage: Mutex::default(),
            locks: ContainerLocks::default(),
        }
    }

    pub(crate) fn set_runtime(&self, choice: AvailableRuntime) {
        self.runtime.send_replace(Some(choice));
    }

    /// The runtime, once it is chosen.
    pub(super) async fn runtime(&self) -> Result<Arc<dyn Runtime>> {
        self.wait_for_runtime(|_| true).await
    }

    /// The runtime, once one is available: the choice may be made again.
    pub(super) async fn available_runtime(&self) -> Result<Arc<dyn Runtime>> {
        self.wait_for_runtime(AvailableRuntime::is_ok).await
    }

    async fn wait_for_runtime(
        &self,
        accepts: impl Fn(&AvailableRuntime) -> bool,
    ) -> Result<Arc<dyn Runtime>> {
        let mut runtime = self.runtime.subscribe();
        let chosen = runtime
            .wait_for(|choice| choice.as_ref().is_some_and(&accepts))
            .await;
        match chosen.as_deref() {
            Ok(Some(Ok(runtime))) => Ok(runtime.clone()),
            Ok(Some(Err(reason))) => Err(EngineError::Failed(reason.clone())),
            _ => Err(EngineError::fault("no runtime was chosen")),
        }
    }

    /// The limits of a project that the chosen runtime does not enforce on this machine.
    pub(super) fn unenforced_limits(&self) -> Vec<&'static str> {
        match &*self.runtime.borrow() {
            Some(Ok(runtime)) => runtime.capabilities().unenforced_limits(),
            _ => Vec::new(),
        }
    }

    /// The name of the chosen runtime and the networks it has; none if there is no runtime yet.
    pub(super) fn networks(&self) -> Option<(&'static str, Networks)> {
        match &*self.runtime.borrow() {
            Some(Ok(runtime)) => {
                let capabilities = runtime.capabilities();
                Some((capabilities.name, capabilities.networks))
            }
            _ => None,
        }
    }

    /// Whether a runtime was chosen and the choice matches.
    pub(super) fn is_runtime(&self, matches: impl Fn(&AvailableRuntime) -> bool) -> bool {
        self.runtime.borrow().as_ref().is_some_and(matches)
    }

    pub(super) fn set_relay_listeners(&self, listeners: Arc<dyn RelayListeners>) {
        *self.relay_listeners.lock() = Some(listeners);
    }

    pub(super) fn relay_listeners(&self) -> Result<Arc<dyn RelayListeners>> {
        self.relay_listeners
            .lock()
            .clone()
            .ok_or_else(|| EngineError::fault("the server does not listen for containers"))
    }

    fn watch_link(&self, id: &ContainerId) -> watch::Sender<Option<Arc<SupervisorLink>>> {
        self.links.lock().entry(id.clone()).or_default().clone()
    }

    /// The connection to a container's supervisor, if there is one now.
    pub(super) fn current_link(&self, id: &ContainerId) -> Option<Arc<SupervisorLink>> {
        let links = self.links.lock();
        let link = links.get(id)?.borrow().clone();
        link.filter(|link| link.is_open())
    }

    pub(super) fn set_link(&self, link: Arc<SupervisorLink>) {
        self.watch_link(link.container()).send_replace(Some(link));
    }

    /// The connection to a container's supervisor, once it connects.
    pub(super) async fn wait_for_link(
        &self,
        id: &ContainerId,
        timeout: Duration,
    ) -> Result<Arc<SupervisorLink>> {
        let mut links = self.watch_link(id).subscribe();
        let open = links.wait_for(|link| link.as_ref().is_some_and(|link| link.is_open()));
        match tokio::time::timeout(timeout, open).await {
            Ok(Ok(link)) => link.clone().ok_or_else(container_unreachable),
            _ => Err(container_unreachable()),
        }
    }

    /// The connection to the supervisor of a container that runs; None at once if the container does
    /// not run. While the runtime does not answer, the supervisor is awaited.
    pub(super) async fn link_if_running(
        &self,
        id: &ContainerId,
        timeout: Duration,
    ) -> Option<Arc<SupervisorLink>> {
        if let Some(link) = self.current_link(id) {
            return Some(link);
        }
        let runtime = self.runtime().await.ok()?;
        let deadline = tokio::time::Instant::now() + timeout;
        let mut wait = FIRST_STATUS_POLL_INTERVAL;
        loop {
            if let Ok(status) = runtime.inspect(id).await
                && status?.state != RunState::Running
            {
                return None;
            }
            let left = deadline.checked_duration_since(tokio::time::Instant::now())?;
            if let Ok(link) = self.wait_for_link(id, left.min(wait)).await {
                return Some(link);
            }
            wait = STATUS_POLL_INTERVAL.min(wait * 2);
        }
    }

    /// The connection that follows one that was lost, or an error if the container has ended.
    pub(super) async fn next_link(&self, lost: &SupervisorLink) -> Result<Arc<SupervisorLink>> {
        let id = lost.container();
        let deadline = tokio::time::Instant::now() + SUPERVISOR_RECONNECT_TIMEOUT;
        // A container that was removed has none.
        let links = self.links.lock().get(id).map(watch::Sender::subscribe);
        let mut links = links.ok_or_else(container_ended)?;
        loop {
            let open = links.wait_for(|link| link.as_ref().is_some_and(|link| link.is_open()));
            tokio::select! {
                link = open => return match link.as_deref() {
                    Ok(Some(link)) => Ok(link.clone()),
                    _ => Err(self.ended_error(id)),
                },
                () = lost.container_ended() => return Err(self.ended_error(id)),
                () = tokio::time::sleep_until(deadline) => return Err(container_unreachable()),
                () = tokio::time::sleep(STATUS_POLL_INTERVAL) => {}
            }
            // A container that ends by itself is not announced. A runtime that does not answer proves
            // nothing.
            let inspected = self.runtime().await?.inspect(id).await;
            if inspected.is_ok_and(|status| status.is_none_or(|it| it.state != RunState::Running)) {
                return Err(self.ended_error(id));
            }
        }
    }

    /// A process that was started before, once its supervisor is connected.
    pub(super) async fn connect_process(
        self: &Arc<Self>,
        container: &ContainerId,
        process_id: &str,
        timeout: Duration,
    ) -> Result<Process> {
        let link = self.wait_for_link(container, timeout).await?;
        Ok(Process::new(self, link, process_id))
    }

    /// Lets the supervisor forget a process, if it is connected now.
    pub(super) async fn forget_process(&self, container: &ContainerId, process_id: &str) {
        if let Some(link) = self.current_link(container) {
            link.forget(process_id).await;
        }
    }

    /// Marks a container as in use until the guard is dropped.
    pub(super) fn mark_in_use(self: &Arc<Self>, id: &ContainerId) -> InUseGuard {
        let mut usage = self.usage.lock();
        let entry = usage.entry(id.clone()).or_insert(Usage {
            users: 0,
            last_used: Instant::now(),
            is_outdated: false,
        });
        entry.users += 1;
        InUseGuard {
            state: self.clone(),
            id: id.clone(),
        }
    }

    /// Sets whether a container that was used is stopped as soon as it has no users.
    pub(super) fn set_outdated(&self, id: &ContainerId, is_outdated: bool) {
        if let Some(usage) = self.usage.lock().get_mut(id) {
            usage.is_outdated = is_outdated;
        }
    }

    pub(super) fn is_in_use(&self, id: &ContainerId) -> bool {
        let usage = self.usage.lock();
        usage.get(id).is_some_and(|usage| usage.users > 0)
    }

    /// Records that a container is about to be stopped, before its processes end.
    pub(super) fn mark_stopping(&self, id: &ContainerId) {
        if let Some(sender) = self.links.lock().get(id)
            && let Some(link) = &*sender.borrow()
        {
            link.mark_stopping();
        }
    }

    /// Records why a container is stopped although it is in use, until it starts again.
    pub(super) fn set_stop_reason(&self, id: &ContainerId, reason: String) {
        self.stop_reasons.lock().insert(id.clone(), reason);
    }

    pub(super) fn clear_stop_reason(&self, id: &ContainerId) {
        self.stop_reasons.lock().remove(id);
    }

    pub(super) fn stop_reason(&self, id: &ContainerId) -> Option<String> {
        self.stop_reasons.lock().get(id).cloned()
    }

    /// The error of a command whose container has ended.
    fn ended_error(&self, id: &ContainerId) -> EngineError {
        match self.stop_reason(id) {
            Some(reason) => EngineError::Failed(format!(
                "the server stopped the container while the command ran, and the command with it: {reason}"
            )),
            None => container_ended(),
        }
    }

    /// Records that a container has ended, before its connections show it.
    pub(super) fn mark_ended(&self, id: &ContainerId) {
        if let Some(channel) = self.channels.lock().remove(id) {
            channel.cancel();
        }
        let link = {
            let links = self.links.lock();
            links.get(id).and_then(|sender| sender.send_replace(None))
        };
        if let Some(link) = link {
            link.mark_container_ended();
        }
    }

    /// Waits until no other operation starts, stops or removes the container.
    pub(crate) async fn lock_container(&self, id: &ContainerId) -> ContainerGuard {
        self.locks.lock(id).await
    }

    /// Waits until few enough workspaces are being created from the container's files: neither the
    /// host nor the container gets hundreds of git processes at once, and a start of the container
    /// never waits for more than a few of them.
    pub(crate) async fn permit_workspace_creation(
        &self,
        id: &ContainerId,
    ) -> Result<WorkspacePermit> {
        self.locks.permit_workspace(id).await
    }

    pub(super) fn forget_container(&self, id: &ContainerId) {
        self.links.lock().remove(id);
        self.usage.lock().remove(id);
        self.memory_events.lock().remove(id);
        self.stop_reasons.lock().remove(id);
    }

    /// How many containers have a supervisor that is connected.
    pub(crate) fn count_connected(&self) -> usize {
        let links = self.links.lock();
        let open = links
            .values()
            .filter(|link| link.borrow().as_ref().is_some_and(|link| link.is_open()));
        open.count()
    }

    /// How many entries the state has about containers.
    pub(crate) fn count_entries(&self) -> usize {
        self.links.lock().len()
            + self.usage.lock().len()
            + self.channels.lock().len()
            + self.named_commands.lock().len()
            + self.awaited_commands.lock().len()
            + self.memory_events.lock().len()
            + self.stop_reasons.lock().len()
            + self.locks.count()
            + self.pending_streams.count()
            + self.disk_usage.count()
    }
}

/// Keeps a container from being stopped as idle.
#[derive(Debug)]
pub(crate) struct InUseGuard {
    state: Arc<ContainerState>,
    id: ContainerId,
}

impl Drop for InUseGuard {
    fn drop(&mut self) {
        if let Some(usage) = self.state.usage.lock().get_mut(&self.id) {
            usage.users = usage.users.saturating_sub(1);
            usage.last_used = Instant::now();
        }
    }
}
