//! Schedules, and the runs that come of them: due once, begun once, recorded once.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{
    MissedRuns, Overlap, ProjectId, RunCause, RunId, RunStatus, ScheduleId, SessionBehavior,
    SessionId, TokenId, WorkspaceId,
};

use crate::{AuditEntry, CallTurn, Message, Page, Result, Session, Visible, Wanted};

/// A schedule as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub id: ScheduleId,
    /// Counts the changes; an update names the one it was made from.
    pub revision: i64,
    pub name: String,
    pub cron_expr: String,
    pub timezone: String,
    pub prompt: String,
    pub targets: Vec<Target>,
    pub enabled: bool,
    pub overlap: Overlap,
    pub session_behavior: SessionBehavior,
    pub missed_runs: MissedRuns,
    /// The token that runs act with, as it is then.
    pub owner_id: TokenId,
    /// The session whose agent made it, if one did.
    pub owner_session: Option<SessionId>,
    /// When it runs next; none while it is disabled.
    pub next_at: Option<Timestamp>,
    /// Why it was disabled, if nobody asked for that.
    pub disabled_reason: Option<String>,
    /// Runs in a row that failed.
    pub failures: u32,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Where a schedule's prompt goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub project_id: ProjectId,
    /// The default one if absent.
    pub workspace_id: Option<WorkspaceId>,
    /// The session that goes on from run to run.
    pub session_id: Option<SessionId>,
}

impl Target {
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.project_id == other.project_id && self.workspace_id == other.workspace_id
    }
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    Done,
    /// Somebody else changed it since it was read: read it again.
    Stale,
    /// A project that it names is gone.
    NoSuchProject,
}

/// One run of a schedule for one target.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub id: RunId,
    pub schedule_id: ScheduleId,
    pub project_id: ProjectId,
    pub workspace_id: Option<WorkspaceId>,
    pub due_at: Timestamp,
    pub cause: RunCause,
    pub status: RunStatus,
    pub session_id: Option<SessionId>,
    /// What is worth knowing besides how it ended.
    pub note: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// When it has to be over.
    pub deadline: Option<Timestamp>,
    pub output: Option<String>,
    /// Whether the output was longer.
    pub truncated: bool,
    pub error: Option<String>,
    pub cost_usd: Option<f64>,
}

/// A schedule whose time has come, or that somebody triggers.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    pub schedule_id: ScheduleId,
    pub at: Timestamp,
    pub due_at: Timestamp,
    pub cause: RunCause,
    /// The instant it was due by and the one after; nothing happens if it is not due by that any more.
    /// None for one that is triggered.
    pub moves: Option<(Timestamp, Option<Timestamp>)>,
    /// Why it does not run, if it does not.
    pub skipped: Option<String>,
    pub note: Option<String>,
    /// Why it is disabled from now on.
    pub disabled: Option<String>,
}

/// Who works on runs, and for how long others leave them alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    pub by: String,
    pub at: Timestamp,
    pub until: Timestamp,
}

/// The run that a session or a message is made for.
#[derive(Debug, Clone, PartialEq)]
pub struct RunMark {
    pub run: RunId,
    /// Whether the session goes on with the next run.
    pub pin: bool,
    pub note: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    pub at: Timestamp,
    pub status: RunStatus,
    pub output: Option<String>,
    pub truncated: bool,
    pub error: Option<String>,
    /// What is wanted of its session from now on.
    pub wanted: Option<Wanted>,
    /// After so many failures in a row the schedule is disabled, for this reason.
    pub most_failures: u32,
    pub disabled: String,
}

/// Which runs a history shows; absent means any.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunFilter {
    pub project_id: Option<ProjectId>,
}

#[async_trait]
pub trait Schedules {
    /// False if a project that it names is gone.
    async fn add_schedule(&self, schedule: &Schedule, audit: Option<AuditEntry>) -> Result<bool>;

    async fn schedule(&self, id: ScheduleId) -> Result<Option<Schedule>>;

    /// Schedules with a target that is visible, newest first, after the cursor of the page before.
    /// Of their prompts only the beginning.
    async fn schedules(
        &self,
        visible: Visible,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Schedule>>;

    /// Writes a schedule if the stored revision is still `schedule.revision`. Targets that stay keep
    /// their sessions, unless the schedule comes to stand below another session, or none.
    async fn update_schedule(
        &self,
        schedule: &Schedule,
        audit: Option<AuditEntry>,
    ) -> Result<Changed>;

    /// Deletes a schedule with its history; how many of its runs were not over, or none if there is
    /// no such schedule.
    async fn remove_schedule(
        &self,
        id: ScheduleId,
        audit: Option<AuditEntry>,
    ) -> Result<Option<usize>>;

    /// When the next schedule is due.
    async fn next_due(&self) -> Result<Option<Timestamp>>;

    /// Schedules that are due, the longest due first. Of their prompts only the beginning.
    async fn due_schedules(&self, now: Timestamp, limit: u32) -> Result<Vec<Schedule>>;

    /// Adds the runs of schedules, one for each target, and moves them on to their next instant. A
    /// target whose run before is not over gets what the schedule says about that.
    async fn fire(&self, firings: Vec<Firing>, audit: Option<AuditEntry>) -> Result<Vec<Run>>;

    /// Takes up to `limit` runs that can begin, or whose lease is over, the oldest first. Those that
    /// begin have until `deadline`.
    async fn claim_runs(&self, lease: &Lease, deadline: Timestamp, limit: u32) -> Result<Vec<Run>>;

    /// Takes every run that has begun and is the lease holder's own, or nobody's any more.
    async fn adopt_runs(&self, lease: &Lease) -> Result<Vec<Run>>;

    /// Keeps the runs that the lease holder works on.
    async fn renew_runs(&self, lease: &Lease) -> Result<()>;

    /// When the next lease of somebody else is over.
    async fn next_lease_end(&self, by: &str) -> Result<Option<Timestamp>>;

    async fn run(&self, id: RunId) -> Result<Option<Run>>;

    /// Queues the prompt of a run that has begun, unless it was before; none if the run or the
    /// session is gone.
    async fn queue_run(
        &self,
        mark: &RunMark,
        to: SessionId,
        message: &Message,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>>;

    /// Where the turn of a run is; none if the run or its session is gone.
    async fn run_turn(&self, id: RunId) -> Result<Option<CallTurn>>;

    /// Records the end of a run, once; whether that disabled the schedule, or none if it is over
    /// already. A prompt that no turn has taken is withdrawn.
    async fn finish_run(&self, id: RunId, finished: Finished) -> Result<Option<bool>>;

    /// Runs of a schedule, newest first, after the cursor of the page before.
    async fn runs(
        &self,
        id: ScheduleId,
        filter: &RunFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Run>>;

    /// Forgets runs that ended before `before`, and what is more than `most` of one schedule; how
    /// many.
    async fn trim_runs(&self, before: Timestamp, most: u32) -> Result<usize>;
}
