//! What callers see of schedules and their runs.

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{
    MissedRuns, Overlap, ProjectId, RunCause, RunId, RunStatus, ScheduleId, SessionBehavior,
    SessionId, TokenId, WorkspaceId,
};
use oubliette_store::{Run, Schedule};
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
    /// When it runs next.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_run: Option<String>,
    /// Why it is disabled, if nobody asked for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    disabled_reason: Option<String>,
    overlap_behavior: Overlap,
    session_behavior: SessionBehavior,
    missed_runs: MissedRuns,
    /// Runs in a row that failed.
    failures: u32,
    /// Those that this token can see.
    targets: Vec<TargetView>,
    /// The token that runs act with.
    token_id: TokenId,
    created_at: String,
    updated_at: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TargetView {
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    /// The session that goes on from run to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
}

/// A schedule with everything about it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Details {
    #[serde(flatten)]
    summary: Summary,
    prompt: String,
    /// The next five runs.
    next_runs: Vec<String>,
}

impl Summary {
    pub(super) fn of(schedule: Schedule, actor: &Actor) -> Self {
        let seen = schedule.targets.into_iter();
        let seen = seen.filter(|target| actor.sees(target.project_id));
        let view = |target: oubliette_store::Target| TargetView {
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
            targets: seen.map(view).collect(),
            token_id: schedule.owner_id,
            created_at: schedule.created_at.to_string(),
            updated_at: schedule.updated_at.to_string(),
        }
    }
}

impl Details {
    /// `next` are the runs that would come, of which a schedule that is disabled has none.
    pub(super) fn of(schedule: Schedule, next: &[Timestamp], actor: &Actor) -> Self {
        let next = match schedule.enabled {
            true => next,
            false => &[],
        };
        Self {
            prompt: schedule.prompt.clone(),
            next_runs: next.iter().map(Timestamp::to_string).collect(),
            summary: Summary::of(schedule, actor),
        }
    }
}

/// One run of one target.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunView {
    run_id: RunId,
    status: RunStatus,
    /// `schedule`, `missed` for one that was due while no server ran, or `trigger`.
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
    /// What is worth knowing besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// The final text of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// Whether the final text was longer; the session has all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
}

impl From<Run> for RunView {
    fn from(run: Run) -> Self {
        let took = run.started_at.zip(run.ended_at);
        let took = took.map(|(started, ended)| ended.duration_since(started));
        Self {
            run_id: run.id,
            status: run.status,
            cause: run.cause,
            due_at: run.due_at.to_string(),
            started_at: run.started_at.map(|at| at.to_string()),
            ended_at: run.ended_at.map(|at| at.to_string()),
            duration_ms: took.map(|took: SignedDuration| took.as_millis() as i64),
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
