//! Storage of schedules and their runs. Each due time creates its runs once, each run starts once, and
//! its end is recorded once.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{
    MissedRuns, Overlap, ProjectId, RunCause, RunId, RunStatus, ScheduleId, SessionBehavior,
    SessionId, TokenId, WorkspaceId,
};

use crate::{
    AuditEntry, CallTurn, Page, Result, Session, SessionMessage, StopRequest, VisibleProjects,
};

/// A schedule as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub id: ScheduleId,
    /// Incremented by every update; an update must name the revision that it was based on.
    pub revision: i64,
    pub name: String,
    pub cron_expr: String,
    pub timezone: String,
    pub prompt: String,
    pub targets: Vec<ScheduleTarget>,
    pub enabled: bool,
    pub overlap: Overlap,
    pub session_behavior: SessionBehavior,
    pub missed_runs: MissedRuns,
    /// The token whose permissions apply to a run, as they are when the run starts.
    pub owner_id: TokenId,
    /// The session whose agent created the schedule, if any.
    pub owner_session: Option<SessionId>,
    /// The next due time; `None` while the schedule is disabled.
    pub next_at: Option<Timestamp>,
    /// Why the server disabled the schedule.
    pub disabled_reason: Option<String>,
    /// The number of consecutive failed runs.
    pub failures: u32,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A project and workspace that a schedule sends its prompt to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleTarget {
    pub project_id: ProjectId,
    /// `None` means the default workspace.
    pub workspace_id: Option<WorkspaceId>,
    /// The session that all runs share.
    pub session_id: Option<SessionId>,
}

impl ScheduleTarget {
    pub fn has_same_workspace(&self, other: &Self) -> bool {
        self.project_id == other.project_id && self.workspace_id == other.workspace_id
    }
}

/// The outcome of [`ScheduleStore::update_schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleUpdate {
    Done,
    /// The schedule was changed since it was read; the caller must read it again.
    Stale,
    /// A target names a project that does not exist.
    NoSuchProject,
}

/// One run of a schedule for one target.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleRun {
    pub id: RunId,
    pub schedule_id: ScheduleId,
    pub project_id: ProjectId,
    pub workspace_id: Option<WorkspaceId>,
    pub due_at: Timestamp,
    pub cause: RunCause,
    pub status: RunStatus,
    pub session_id: Option<SessionId>,
    /// A remark for the run history, besides the outcome.
    pub note: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// The time at which the run is stopped.
    pub deadline: Option<Timestamp>,
    pub output: Option<String>,
    /// Whether the output was cut.
    pub truncated: bool,
    pub error: Option<String>,
    pub cost_usd: Option<f64>,
}

/// The instruction to create the runs of a schedule that is due or was triggered.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    pub schedule_id: ScheduleId,
    pub at: Timestamp,
    pub due_at: Timestamp,
    pub cause: RunCause,
    /// The due time that the caller read and the one that replaces it. If the stored due time differs,
    /// no runs are created. `None` for a triggered schedule.
    pub reschedule: Option<(Timestamp, Option<Timestamp>)>,
    /// If set, the runs are recorded as skipped for this reason.
    pub skip_reason: Option<String>,
    pub note: Option<String>,
    /// If set, the schedule is disabled for this reason.
    pub disable_reason: Option<String>,
}

/// The claim of one server on runs, which other servers respect until it expires.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    pub holder: String,
    pub at: Timestamp,
    pub until: Timestamp,
}

/// Connects a new session or message with the run that it is for.
#[derive(Debug, Clone, PartialEq)]
pub struct RunBinding {
    pub run: RunId,
    /// Whether later runs of the target use the same session.
    pub pin: bool,
    pub note: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRun {
    pub at: Timestamp,
    pub status: RunStatus,
    pub output: Option<String>,
    pub truncated: bool,
    pub error: Option<String>,
    /// A stop request for the session of the run.
    pub stop_request: Option<StopRequest>,
    /// The schedule is disabled after this number of consecutive failed runs.
    pub max_failures: u32,
    /// The reason to record when the schedule is disabled.
    pub disable_reason: String,
}

/// Filters for a list of runs; `None` matches every run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunFilter {
    pub project_id: Option<ProjectId>,
}

/// How many schedules may have a project as target.
pub const MAX_SCHEDULES: u32 = 200;
/// How many bytes the prompts of these schedules may have together.
pub const MAX_SCHEDULE_PROMPT_BYTES: u64 = 8 << 20;

#[async_trait]
pub trait ScheduleStore {
    /// Adds a schedule. False if a target names a project that does not exist.
    /// [`StoreError::TooManySchedules`](crate::StoreError::TooManySchedules) if one has too many already.
    async fn add_schedule(&self, schedule: &Schedule, audit: Option<AuditEntry>) -> Result<bool>;

    async fn schedule(&self, id: ScheduleId) -> Result<Option<Schedule>>;

    /// Lists schedules with a visible target, newest first, with shortened prompts. `after` is the
    /// cursor of the previous page.
    async fn schedules(
        &self,
        visible: VisibleProjects,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Schedule>>;

    /// Writes a schedule if the stored revision is still `schedule.revision`. Remaining targets keep
    /// their sessions unless `owner_session` changes.
    async fn update_schedule(
        &self,
        schedule: &Schedule,
        audit: Option<AuditEntry>,
    ) -> Result<ScheduleUpdate>;

    /// Deletes a schedule and its runs. Returns the number of unfinished runs, or `None` if there is
    /// no such schedule.
    async fn remove_schedule(
        &self,
        id: ScheduleId,
        audit: Option<AuditEntry>,
    ) -> Result<Option<usize>>;

    /// Returns the earliest due time of all schedules.
    async fn next_due_at(&self) -> Result<Option<Timestamp>>;

    /// Returns schedules that are due, the earliest due time first, with shortened prompts.
    async fn due_schedules(&self, now: Timestamp, limit: u32) -> Result<Vec<Schedule>>;

    /// Adds one run for each target of the schedules and sets their next due times. A target with an
    /// unfinished run is handled according to the `overlap` setting of its schedule.
    async fn fire_schedules(
        &self,
        firings: Vec<Firing>,
        audit: Option<AuditEntry>,
    ) -> Result<Vec<ScheduleRun>>;

    /// Claims up to `limit` runs whose lease has expired or that can start, the oldest first. Runs that
    /// start get `deadline`.
    async fn claim_runs(
        &self,
        lease: &Lease,
        deadline: Timestamp,
        limit: u32,
    ) -> Result<Vec<ScheduleRun>>;

    /// Claims all started runs that the lease holder has or whose lease has expired.
    async fn adopt_runs(&self, lease: &Lease) -> Result<Vec<ScheduleRun>>;

    /// Extends the leases of the lease holder.
    async fn renew_runs(&self, lease: &Lease) -> Result<()>;

    /// Returns the time at which the next lease of another holder expires.
    async fn next_lease_end(&self, holder: &str) -> Result<Option<Timestamp>>;

    async fn schedule_run(&self, id: RunId) -> Result<Option<ScheduleRun>>;

    /// Queues the prompt of a started run, once. Returns the session and whether it was resumed, or
    /// `None` if the run has ended or the run or session does not exist.
    async fn queue_run(
        &self,
        binding: &RunBinding,
        to: SessionId,
        message: &SessionMessage,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>>;

    /// Returns the state of the turn of a run. `None` if the run or its session does not exist.
    async fn run_turn(&self, id: RunId) -> Result<Option<CallTurn>>;

    /// Records the end of a run and deletes its prompt if no turn has taken it. Returns whether this
    /// disabled the schedule, or `None` if the run is not running.
    async fn finish_run(&self, id: RunId, finished: FinishedRun) -> Result<Option<bool>>;

    /// Lists the runs of a schedule, newest first. `after` is the cursor of the previous page.
    async fn schedule_runs(
        &self,
        id: ScheduleId,
        filter: &RunFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<ScheduleRun>>;

    /// Deletes finished runs that ended before `before` or exceed `max_runs` per schedule. Returns
    /// their number.
    async fn trim_runs(&self, before: Timestamp, max_runs: u32) -> Result<usize>;
}
