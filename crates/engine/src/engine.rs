//! The engine: its parts, how it starts and how it stops.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};
use oubliette_model::ProjectId;
use oubliette_store::{Project, Store, StoreError, with_reserve};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::AuditLog;
use crate::callers::{CallerState, Callers};
use crate::checkpoints::CheckpointState;
use crate::containers::{AvailableRuntime, ContainerState, Containers};
use crate::credentials::{CredentialState, Credentials};
use crate::files::Files;
use crate::gateway::GatewayState;
use crate::git::Git;
use crate::metrics::Metrics;
use crate::network::{Network, NetworkState};
use crate::operations::RunningCalls;
use crate::projects::Projects;
use crate::recovery::RecoveryState;
use crate::schedules::{ScheduleState, Schedules};
use crate::sessions::SessionState;
use crate::tokens::{TokenState, Tokens};
use crate::workspaces::tickets::Tickets;
use crate::workspaces::{Transfers, Workspaces};
use crate::{Clock, EngineError, Result, Settings};

/// How often records that are kept for a limited time are trimmed.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(3600);
/// How long commands and tool calls with a caller's name can be joined by a repeated call, and the turn of a
/// message can be asked for.
const NAMED_CALL_RETENTION: SignedDuration = SignedDuration::from_hours(24);

fn days(count: u32) -> SignedDuration {
    SignedDuration::from_hours(24 * i64::from(count))
}

/// What Oubliette does. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) parts: Arc<Parts>,
}

/// What all clones of an engine share. The verbs are on the handles that [`Engine`] returns.
#[derive(Debug)]
pub(crate) struct Parts {
    store: Arc<dyn Store>,
    settings: Settings,
    files: Files,
    git: Git,
    audit: AuditLog,
    metrics: Metrics,
    pub(crate) tokens: TokenState,
    pub(crate) credentials: CredentialState,
    pub(crate) containers: Arc<ContainerState>,
    pub(crate) sessions: SessionState,
    pub(crate) checkpoints: CheckpointState,
    pub(crate) schedules: ScheduleState,
    pub(crate) callers: CallerState,
    pub(crate) network: NetworkState,
    pub(crate) gateway: GatewayState,
    pub(crate) running_calls: RunningCalls,
    pub(crate) recovery: RecoveryState,
    pub(crate) tickets: Arc<Tickets>,
    tasks: TaskTracker,
    draining: CancellationToken,
    stopping: CancellationToken,
}

impl Engine {
    /// Starts the engine on a store, and repairs what a server that died left unfinished
    /// (`recovery.rs`).
    ///
    /// `runtime` chooses the container runtime; only calls that need a container wait for it.
    pub async fn start(
        store: Arc<dyn Store>,
        settings: Settings,
        runtime: impl Future<Output = AvailableRuntime> + Send + 'static,
    ) -> Result<Self> {
        let tasks = TaskTracker::new();
        let files = Files::open(&settings.data_dir)?;
        let credentials = CredentialState::open(&settings.data_dir)?;
        let git = Git::new(&settings.data_dir, settings.projects.clone())?;
        let containers = Arc::new(ContainerState::new());
        let choosing = containers.clone();
        tasks.spawn(async move { choosing.set_runtime(runtime.await) });
        let network = NetworkState::new(&settings);
        let audit = AuditLog::start(store.clone(), &tasks);
        let engine = Self {
            parts: Arc::new(Parts {
                store,
                settings,
                files,
                git,
                audit,
                metrics: Metrics::default(),
                tokens: TokenState::default(),
                credentials,
                containers,
                sessions: SessionState::default(),
                checkpoints: CheckpointState::default(),
                schedules: ScheduleState::default(),
                callers: CallerState::default(),
                network,
                gateway: GatewayState::default(),
                running_calls: RunningCalls::default(),
                recovery: RecoveryState::default(),
                tickets: Arc::default(),
                tasks,
                draining: CancellationToken::new(),
                stopping: CancellationToken::new(),
            }),
        };
        // Also on a full disk: what it removes frees space.
        with_reserve(engine.recover()).await?;
        engine.spawn_until_stopping(|engine| async move { engine.run_maintenance().await });
        engine.spawn_until_stopping(|engine| async move { engine.run_gate_link().await });
        engine.spawn_until_stopping(|engine| async move { engine.run_gateway_link().await });
        engine.spawn_until_stopping(|engine| async move { engine.run_charge_counter().await });
        Ok(engine)
    }

    /// For how long after a message its turn can be asked for.
    pub(crate) fn turn_retention(&self) -> SignedDuration {
        NAMED_CALL_RETENTION.min(days(self.settings().sessions.keep_days))
    }

    /// Trims what is kept for a limited time, at the start and then once an hour.
    async fn run_maintenance(&self) {
        let warn = |what: &str, trimmed: Result<usize, StoreError>| {
            if let Err(error) = trimmed {
                tracing::warn!(%error, "could not trim {what}");
            }
        };
        loop {
            let (store, settings, now) = (self.store(), self.settings(), self.now());
            let (sessions, schedules) = (&settings.sessions, &settings.schedules);
            let audit_start = now - days(settings.audit.keep_days);
            warn("the audit log", store.trim_audit(audit_start).await);
            let named_start = now - NAMED_CALL_RETENTION;
            warn("named commands", store.trim_execs(named_start).await);
            warn("tool calls of agents", store.trim_calls(named_start).await);
            let events_start = now - days(sessions.keep_days);
            let max_events = i64::from(sessions.keep_events);
            let trimmed = store.trim_events(events_start, max_events).await;
            warn("session events", trimmed);
            let runs_start = now - days(schedules.keep_days);
            let trimmed = store.trim_runs(runs_start, schedules.keep_runs).await;
            warn("scheduled runs", trimmed);
            let projects = self.checkpoints().projects_with_checkpoints().await;
            self.checkpoints().collect_garbage_in_background(projects);
            tokio::time::sleep(MAINTENANCE_INTERVAL).await;
        }
    }

    /// Ends calls that only wait for something to happen; the others finish.
    pub fn drain(&self) {
        self.parts.draining.cancel();
    }

    /// Returns when calls that only wait have to end.
    pub(crate) async fn draining(&self) {
        self.parts.draining.cancelled().await;
    }

    /// Ends the engine's own tasks after they have written what they hold.
    pub async fn stop(&self) {
        self.drain();
        self.parts.stopping.cancel();
        self.parts.audit.close();
        self.parts.tasks.close();
        self.parts.tasks.wait().await;
    }

    /// Returns when [`Engine::stop`] was called.
    pub(crate) async fn stopping(&self) {
        self.parts.stopping.cancelled().await;
    }

    /// The time, rounded to milliseconds as in the store.
    pub fn now(&self) -> Timestamp {
        let now = self.clock().now();
        now.round(Unit::Millisecond).unwrap_or(now)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.parts.settings.clock
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.parts.store
    }

    pub fn settings(&self) -> &Settings {
        &self.parts.settings
    }

    pub fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }

    pub(crate) fn audit_log(&self) -> &AuditLog {
        &self.parts.audit
    }

    pub(crate) fn files(&self) -> &Files {
        &self.parts.files
    }

    pub(crate) fn git(&self) -> &Git {
        &self.parts.git
    }

    pub fn containers(&self) -> Containers<'_> {
        Containers::new(self)
    }

    pub(crate) fn network(&self) -> Network<'_> {
        Network::new(self)
    }

    pub(crate) fn container_state(&self) -> &Arc<ContainerState> {
        &self.parts.containers
    }

    pub(crate) fn session_state(&self) -> &SessionState {
        &self.parts.sessions
    }

    pub(crate) fn projects(&self) -> Projects<'_> {
        Projects { engine: self }
    }

    pub(crate) fn workspaces(&self) -> Workspaces<'_> {
        Workspaces { engine: self }
    }

    pub fn transfers(&self) -> Transfers<'_> {
        Transfers { engine: self }
    }

    pub fn callers(&self) -> Callers<'_> {
        Callers::new(self)
    }

    pub fn schedules(&self) -> Schedules<'_> {
        Schedules::new(self)
    }

    pub(crate) fn credentials(&self) -> Credentials<'_> {
        Credentials::new(self)
    }

    pub fn tokens(&self) -> Tokens<'_> {
        Tokens::new(self)
    }

    /// The project with this id.
    ///
    /// # Errors
    /// There is none, or the store failed.
    pub async fn project(&self, id: ProjectId) -> Result<Project> {
        let found = self.store().project(id).await?;
        found.ok_or_else(|| EngineError::project_not_found(id))
    }

    pub async fn count_projects(&self) -> Result<i64> {
        Ok(self.store().count_projects().await?)
    }

    /// Runs a task that [`Engine::stop`] waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.parts.tasks.spawn(task);
    }

    /// Runs a task that ends at its next await when the engine stops.
    pub(crate) fn spawn_until_stopping<Fut>(&self, task: impl FnOnce(Self) -> Fut)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let (engine, task) = (self.clone(), task(self.clone()));
        self.spawn(async move {
            tokio::select! {
                () = task => {}
                () = engine.stopping() => {}
            }
        });
    }

    /// Runs a task that can be aborted.
    pub(crate) fn spawn_abortable(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        self.parts.tasks.spawn(task).abort_handle()
    }
}
