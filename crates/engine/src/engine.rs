//! The engine: what it is made of, how it starts and how it ends.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};
use oubliette_model::ProjectId;
use oubliette_store::{ProjectState, Store};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::AuditLog;
use crate::callers::Callers;
use crate::containers::{ContainerState, Containers, RuntimeChoice};
use crate::files::Files;
use crate::git::Git;
use crate::metrics::Metrics;
use crate::operations::Running;
use crate::schedules::Schedules;
use crate::sessions::Sessions;
use crate::tokens::Watch;
use crate::{Clock, Result, Settings};

/// What Oubliette does. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    store: Arc<dyn Store>,
    settings: Settings,
    files: Files,
    git: Git,
    audit: AuditLog,
    tokens: Watch,
    metrics: Metrics,
    containers: Arc<ContainerState>,
    sessions: Sessions,
    schedules: Schedules,
    running: Running,
    callers: Callers,
    tasks: TaskTracker,
    draining: CancellationToken,
    stopping: CancellationToken,
}

impl Engine {
    /// Starts the engine on a store. What a server that died left unfinished is settled here, by
    /// the ordinary ways of doing it.
    ///
    /// `runtime` chooses what makes containers; nothing waits for it but what needs a container.
    pub async fn start(
        store: Arc<dyn Store>,
        settings: Settings,
        runtime: impl Future<Output = RuntimeChoice> + Send + 'static,
    ) -> Result<Self> {
        let tasks = TaskTracker::new();
        let files = Files::open(&settings.data_dir)?;
        let git = Git::new(&settings.data_dir, settings.projects.clone())?;
        let containers = Arc::new(ContainerState::new());
        let choosing = containers.clone();
        tasks.spawn(async move { choosing.set_runtime(runtime.await) });
        let audit = AuditLog::start(store.clone(), &tasks);
        let engine = Self {
            parts: Arc::new(Parts {
                store,
                settings,
                files,
                git,
                audit,
                tokens: Watch::default(),
                metrics: Metrics::default(),
                containers,
                sessions: Sessions::default(),
                schedules: Schedules::default(),
                running: Running::default(),
                callers: Callers::default(),
                tasks,
                draining: CancellationToken::new(),
                stopping: CancellationToken::new(),
            }),
        };
        engine.settle().await?;
        engine.adopt_requests().await?;
        engine.parts.tasks.spawn(engine.clone().keep_house());
        Ok(engine)
    }

    /// Finishes what was begun: projects whose making or deleting was cut off, and files on their
    /// way out. What can take long is begun here and done beside the server's work.
    async fn settle(&self) -> Result<()> {
        for (id, state) in self.store().unfinished().await? {
            if state == ProjectState::Ready {
                continue;
            }
            tracing::info!(project = %id, ?state, "settling an unfinished project");
            if !self.store().containers_of(id).await?.is_empty() {
                self.spawn(self.clone().finish_deletion(id));
            } else {
                // Its name is free again when this returns.
                self.files().condemn_project(id).await?;
                self.store().erase(id).await?;
            }
        }
        let condemned = self.files().condemned().await?;
        let files = self.files().clone();
        self.spawn(async move { files.sweep(condemned).await });
        Ok(())
    }

    /// Takes away all that a project has, which must be hidden already.
    pub(crate) async fn erase_project(&self, id: ProjectId) -> Result<()> {
        self.containers().remove_of_project(id).await?;
        self.files().discard_project(id).await?;
        Ok(self.store().erase(id).await?)
    }

    /// The same, again and again until it is done.
    pub(crate) async fn finish_deletion(self, id: ProjectId) {
        let mut pause = Duration::from_secs(1);
        loop {
            match self.erase_project(id).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(project = %id, %error, "could not be deleted yet"),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stopping() => return,
            }
            pause = (pause * 2).min(Duration::from_secs(60));
        }
    }

    /// Forgets what is kept by age, now and then once an hour.
    async fn keep_house(self) {
        let hour = Duration::from_secs(3600);
        loop {
            let days = i64::from(self.settings().audit.keep_days);
            let before = self.now() - SignedDuration::from_hours(24 * days);
            if let Err(error) = self.store().trim_audit(before).await {
                tracing::warn!(%error, "could not trim the audit log");
            }
            // Long after anybody would join them.
            let day_ago = self.now() - SignedDuration::from_hours(24);
            if let Err(error) = self.store().trim_execs(day_ago).await {
                tracing::warn!(%error, "could not trim named commands");
            }
            if let Err(error) = self.store().trim_calls(day_ago).await {
                tracing::warn!(%error, "could not trim the calls of agents");
            }
            let sessions = &self.settings().sessions;
            let oldest = SignedDuration::from_hours(24 * i64::from(sessions.keep_days));
            let most = i64::from(sessions.keep_events);
            if let Err(error) = self.store().trim_events(self.now() - oldest, most).await {
                tracing::warn!(%error, "could not trim the logs of sessions");
            }
            let schedules = &self.settings().schedules;
            let oldest = SignedDuration::from_hours(24 * i64::from(schedules.keep_days));
            let trimmed = self
                .store()
                .trim_runs(self.now() - oldest, schedules.keep_runs);
            if let Err(error) = trimmed.await {
                tracing::warn!(%error, "could not trim the history of schedules");
            }
            tokio::select! {
                () = tokio::time::sleep(hour) => {}
                () = self.parts.stopping.cancelled() => return,
            }
        }
    }

    /// Ends calls that only wait for something to happen; the others finish.
    pub fn drain(&self) {
        self.parts.draining.cancel();
    }

    /// Returns when calls that only wait are to end.
    pub(crate) async fn draining(&self) {
        self.parts.draining.cancelled().await;
    }

    /// Ends the engine's own tasks after they have written what they hold.
    pub async fn stop(&self) {
        self.parts.stopping.cancel();
        self.parts.audit.close();
        self.parts.tasks.close();
        self.parts.tasks.wait().await;
    }

    /// The time, at the grain the store keeps.
    pub fn now(&self) -> Timestamp {
        let now = self.clock().now();
        now.round(Unit::Millisecond).unwrap_or(now)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.parts.settings.clock
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parts.store
    }

    pub fn settings(&self) -> &Settings {
        &self.parts.settings
    }

    pub fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }

    pub fn audit_log(&self) -> &AuditLog {
        &self.parts.audit
    }

    pub(crate) fn files(&self) -> &Files {
        &self.parts.files
    }

    pub fn containers(&self) -> Containers<'_> {
        Containers::new(self)
    }

    pub(crate) fn container_state(&self) -> &Arc<ContainerState> {
        &self.parts.containers
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.parts.sessions
    }

    pub(crate) fn callers(&self) -> &Callers {
        &self.parts.callers
    }

    pub(crate) fn schedules(&self) -> &Schedules {
        &self.parts.schedules
    }

    pub(crate) fn running(&self) -> &Running {
        &self.parts.running
    }

    /// Ends with the engine.
    pub(crate) async fn stopping(&self) {
        self.parts.stopping.cancelled().await;
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.parts.tasks.spawn(task);
    }

    /// The same for a task that can be given up.
    pub(crate) fn spawn_abortable(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        self.parts.tasks.spawn(task).abort_handle()
    }

    pub(crate) fn git(&self) -> &Git {
        &self.parts.git
    }

    pub(crate) fn token_watch(&self) -> &Watch {
        &self.parts.tokens
    }
}
