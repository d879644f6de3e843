//! The fields of a schedule, checked.

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{CronSchedule, ProjectId, WorkspaceId, quoted};
use oubliette_store::ScheduleTarget;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Schedules;
use crate::containers::DiskUse;
use crate::{EngineError, Result};

const MAX_TARGETS: usize = 100;
const MAX_NAME_CHARS: usize = 100;
const NEXT_RUNS_SHOWN: usize = 5;

/// A place where the schedule runs.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct TargetParam {
    /// Project name or id.
    pub(super) project_id: ProjectId,
    /// Workspace id.
    ///
    /// Default: `default`.
    workspace_id: Option<WorkspaceId>,
}

/// The time zone and the next runs of a valid cron expression.
#[derive(Debug)]
pub(super) struct CheckedCadence {
    /// As the time zone database spells it.
    pub(super) timezone: String,
    pub(super) next: Vec<Timestamp>,
}

pub(super) fn check_name(text: &str) -> Result<String> {
    let name = text.trim();
    let is_long = name.chars().count() > MAX_NAME_CHARS;
    if name.is_empty() || is_long || name.chars().any(char::is_control) {
        return Err(EngineError::invalid(format!(
            "{} is not a schedule name; use 1 to {MAX_NAME_CHARS} printable characters",
            quoted(text)
        )));
    }
    Ok(name.to_owned())
}

/// The next runs of a cron expression, as results show them.
pub(super) async fn next_runs(
    cron_expr: &str,
    timezone: &str,
    after: Timestamp,
) -> Result<Vec<Timestamp>> {
    let cadence = CronSchedule::parse(cron_expr, timezone)?;
    let compute = move || cadence.runs_after(after).take(NEXT_RUNS_SHOWN).collect();
    tokio::task::spawn_blocking(compute)
        .await
        .map_err(EngineError::fault)
}

impl Schedules<'_> {
    /// Checks a cron expression: it must match some time, and not too often.
    pub(super) async fn check_cadence(
        self,
        cron_expr: &str,
        timezone: &str,
    ) -> Result<CheckedCadence> {
        let cadence = CronSchedule::parse(cron_expr, timezone)?;
        let now = self.engine.now();
        // Finding that there is no next run takes long.
        let compute = move || {
            let gap = cadence.shortest_interval(now);
            let next: Vec<Timestamp> = cadence.runs_after(now).take(NEXT_RUNS_SHOWN).collect();
            (cadence.timezone().to_owned(), gap, next)
        };
        let (timezone, gap, next) = tokio::task::spawn_blocking(compute)
            .await
            .map_err(EngineError::fault)?;
        if next.is_empty() {
            return Err(EngineError::invalid(format!(
                "{} never matches a date; check its day and month",
                quoted(cron_expr)
            )));
        }
        let min_interval = self.engine.settings().schedules.min_interval_seconds;
        if let Some(gap) = gap.filter(|gap| *gap < SignedDuration::from_secs(min_interval.into())) {
            return Err(EngineError::invalid(format!(
                "{} runs every {} seconds; the shortest interval is {min_interval} seconds \
                 (`schedules.min_interval_seconds` of the server's configuration)",
                quoted(cron_expr),
                gap.as_secs()
            )));
        }
        Ok(CheckedCadence { timezone, next })
    }

    /// Checks that each target exists and is named once. Permission was decided before.
    pub(super) async fn check_targets(self, params: &[TargetParam]) -> Result<Vec<ScheduleTarget>> {
        if params.is_empty() {
            return Err(EngineError::invalid(
                "`targets` is empty; name at least one project, like [{\"project_id\": \"…\"}]",
            ));
        }
        if params.len() > MAX_TARGETS {
            return Err(EngineError::invalid(format!(
                "`targets` has {} entries; the maximum is {MAX_TARGETS}",
                params.len()
            )));
        }
        let mut targets: Vec<ScheduleTarget> = Vec::new();
        for param in params {
            let project = self.engine.project(param.project_id).await?;
            let containers = self.engine.containers();
            containers
                .require_disk_space(&project, DiskUse::Message)
                .await?;
            let id = project.id;
            let workspace_id = param.workspace_id.clone().filter(|id| !id.is_default());
            if let Some(workspace) = &workspace_id {
                self.engine.workspaces().require(id, workspace).await?;
            }
            let target = ScheduleTarget {
                project_id: id,
                workspace_id,
                session_id: None,
            };
            if targets
                .iter()
                .any(|other| other.has_same_workspace(&target))
            {
                let named = param.workspace_id.as_ref();
                let workspace = named.map_or(WorkspaceId::DEFAULT, |workspace| workspace.as_str());
                return Err(EngineError::invalid(format!(
                    "`targets` names the workspace `{workspace}` of the project `{id}` twice"
                )));
            }
            targets.push(target);
        }
        Ok(targets)
    }
}
