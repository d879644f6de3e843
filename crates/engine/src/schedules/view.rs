//! Schedules and runs as results show them.

use jiff::Timestamp;
use oubliette_model::{
    MissedRuns, Overlap, ProjectId, RunCause, RunId, RunStatus, ScheduleId, SessionBehavior,
    SessionId, TokenId, WorkspaceId,
};
use oubliette_store::{Schedule, ScheduleRun};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Actor;

/// A schedule in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Summary {
    schedule_id: ScheduleId,
    name: String,
    cron_expr: String,
    timezone: String,
    enabled: bool,
    /// The next run.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_run: Option<String>,
    /// Why the server disabled it.
    #[serde(skip_serializing_if = "Option::is_none")]
    disabled_reason: Option<String>,
    overlap_behavior: Overlap,
    session_behavior: SessionBehavior,
    missed_runs: MissedRuns,
    /// The number of runs that failed in a row.
    failures: u32,
    /// The targets that this token can see.
    targets: Vec<TargetView>,
    /// The token that runs use.
    token_id: TokenId,
    created_at: String,
    updated_at: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TargetView {
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    /// The session that runs continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
}

/// A schedule with its prompt and next runs.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Details {
    #[serde(flatten)]
    summary: Summary,
    prompt: String,
    /// The next five runs.
    next_runs: Vec<String>,
    /// The newest run that this token can see, if there was one.
    last_run: Option<RunView>,
}

impl Summary {
    pub(super) fn new(schedule: Schedule, actor: &Actor) -> Self {
        let targets = schedule.targets.into_iter();
        let visible = targets.filter(|target| actor.sees(target.project_id));
        let view = |target: oubliette_store::ScheduleTarget| TargetView {
            project_id: target.project_id,
            workspace_id: target.workspace_id.unwrap_or_default(),
            session_id: target.session_id,
        };
        Self {
            schedule_id: schedule.id,
            name: schedule.name,
            cron_expr: schedule.cron_expr,
            timezone: schedule.timezone,
            enabled: schedule.enabled,
            next_run: schedule.next_at.map(|at| at.to_string()),
            disabled_reason: schedule.disabled_reason,
            overlap_behavior: schedule.overlap,
            session_behavior: schedule.session_behavior,
            missed_runs: schedule.missed_runs,
            failures: schedule.failures,
            targets: visible.map(view).collect(),
            token_id: schedule.owner_id,
            created_at: schedule.created_at.to_string(),
            updated_at: schedule.updated_at.to_string(),
        }
    }
}

impl Details {
    /// `next` are the runs of the cron expression; a disabled schedule has none.
    pub(super) fn new(
        schedule: Schedule,
        next: &[Timestamp],
        last_run: Option<ScheduleRun>,
        actor: &Actor,
    ) -> Self {
        let enabled_next = if schedule.enabled { next } else { &[] };
        Self {
            prompt: schedule.prompt.clone(),
            next_runs: enabled_next.iter().map(Timestamp::to_string).collect(),
            summary: Summary::new(schedule, actor),
            last_run: last_run.map(RunView::from),
        }
    }
}

/// A run of a schedule for one target.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunView {
    run_id: RunId,
    status: RunStatus,
    /// `schedule`, `missed` for a run that was due while no server ran, or `trigger`.
    cause: RunCause,
    due_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
    /// Why it failed or was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Additional information, for example that a new session replaced the previous one.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// The final text of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// True if the final text was cut; the session's events have all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
}

impl From<ScheduleRun> for RunView {
    fn from(run: ScheduleRun) -> Self {
        let times = run.started_at.zip(run.ended_at);
        let duration = times.map(|(started, ended)| ended.duration_since(started));
        Self {
            run_id: run.id,
            status: run.status,
            cause: run.cause,
            due_at: run.due_at.to_string(),
            started_at: run.started_at.map(|at| at.to_string()),
            ended_at: run.ended_at.map(|at| at.to_string()),
            duration_ms: duration.map(|duration| duration.as_millis() as i64),
            cost_usd: run.cost_usd,
            error: run.error,
            note: run.note,
            output: run.output,
            truncated: run.truncated.then_some(true),
            project_id: run.project_id,
            workspace_id: run.workspace_id.unwrap_or_default(),
            session_id: run.session_id,
        }
    }
}
