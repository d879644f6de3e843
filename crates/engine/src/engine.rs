//! The engine: what it is made of, how it starts and how it ends.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};
use oubliette_model::ProjectId;
use oubliette_store::{Project, ProjectState, Store};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::AuditLog;
use crate::callers::Callers;
use crate::containers::{Choice, Containers};
use crate::files::Files;
use crate::git::Git;
use crate::metrics::Metrics;
use crate::operations::Running;
use crate::projects::Projects;
use crate::schedules::Schedules;
use crate::sessions::Sessions;
use crate::tokens::Watch;
use crate::workspaces::Workspaces;
use crate::{Clock, EngineError, Result, Settings};

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
    containers: Arc<Containers>,
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
        runtime: impl Future<Output = Choice> + Send + 'static,
    ) -> Result<Self> {
        let tasks = TaskTracker::new();
        let files = Files::open(&settings.data_dir)?;
        let git = Git::new(&settings.data_dir, settings.projects.clone())?;
        let containers = Arc::new(Containers::new());
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
                self.projects().purge_in_background(id);
            } else {
                // Its name is free again when this returns.
                self.files().move_project_to_trash(id).await?;
                self.store().erase(id).await?;
            }
        }
        let entries = self.files().trash_entries().await?;
        let files = self.files().clone();
        self.spawn(async move { files.purge_trash(entries).await });
        Ok(())
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

    /// Whether there is something that makes containers, as far as that is known.
    pub fn has_runtime(&self) -> bool {
        self.containers().is_runtime(Choice::is_ok)
    }

    /// Whether it is known that there is nothing.
    pub fn lacks_runtime(&self) -> bool {
        self.containers().is_runtime(Choice::is_err)
    }

    /// Makes containers with another runtime from now on, where there was none.
    pub fn set_runtime(&self, choice: Choice) {
        self.containers().set_runtime(choice);
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

    /// The project, or the error that it does not exist.
    pub(crate) async fn project(&self, id: ProjectId) -> Result<Project> {
        let project = self.store().get(id).await?;
        project.ok_or_else(|| EngineError::project_not_found(id))
    }

    pub(crate) fn projects(&self) -> Projects<'_> {
        Projects { engine: self }
    }

    pub(crate) fn workspaces(&self) -> Workspaces<'_> {
        Workspaces { engine: self }
    }

    pub(crate) fn files(&self) -> &Files {
        &self.parts.files
    }

    pub(crate) fn containers(&self) -> &Arc<Containers> {
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
