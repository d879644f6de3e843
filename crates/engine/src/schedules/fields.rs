//! What a schedule is made of, checked.

use jiff::{SignedDuration, Timestamp};
use oubliette_model::{CronSchedule, ProjectId, WorkspaceId, quoted};
use oubliette_store::Target;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{Engine, EngineError, Result};

const MOST_TARGETS: usize = 100;
const LONGEST_NAME: usize = 100;
/// How many of the next runs are shown.
const SHOWN: usize = 5;

/// Where the prompt goes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct Place {
    /// The project, as `project_list` shows it.
    pub(super) project_id: ProjectId,
    /// The workspace; the default one if absent.
    workspace_id: Option<WorkspaceId>,
}

/// A cadence that was checked.
#[derive(Debug)]
pub(super) struct Checked {
    /// The zone as the database of time zones spells it.
    pub(super) timezone: String,
    pub(super) next: Vec<Timestamp>,
}

pub(super) fn name(text: &str) -> Result<String> {
    let name = text.trim();
    let long = name.chars().count() > LONGEST_NAME;
    if name.is_empty() || long || name.chars().any(char::is_control) {
        return Err(EngineError::invalid(format!(
            "{} is not a name of a schedule; use 1 to {LONGEST_NAME} printable characters",
            quoted(text)
        )));
    }
    Ok(name.to_owned())
}

/// The next runs of an expression, as many as are shown.
pub(super) async fn next_runs(
    cron_expr: &str,
    timezone: &str,
    after: Timestamp,
) -> Result<Vec<Timestamp>> {
    let cadence = CronSchedule::parse(cron_expr, timezone)?;
    let looking = move || cadence.runs_after(after).take(SHOWN).collect();
    tokio::task::spawn_blocking(looking)
        .await
        .map_err(EngineError::fault)
}

impl Engine {
    /// Checks when a schedule is to run: it must do so some day, and not too often.
    pub(super) async fn check_cadence(&self, cron_expr: &str, timezone: &str) -> Result<Checked> {
        let cadence = CronSchedule::parse(cron_expr, timezone)?;
        let now = self.now();
        // To find out that there is no next run takes a while.
        let look = move || {
            let gap = cadence.shortest_interval(now);
            let next: Vec<Timestamp> = cadence.runs_after(now).take(SHOWN).collect();
            (cadence.timezone().to_owned(), gap, next)
        };
        let (timezone, gap, next) = tokio::task::spawn_blocking(look)
            .await
            .map_err(EngineError::fault)?;
        if next.is_empty() {
            return Err(EngineError::invalid(format!(
                "{} never comes; check its day and month",
                quoted(cron_expr)
            )));
        }
        let least = self.settings().schedules.min_interval_seconds;
        if let Some(gap) = gap.filter(|gap| *gap < SignedDuration::from_secs(least.into())) {
            return Err(EngineError::invalid(format!(
                "{} runs every {} seconds; the shortest interval here is {least} seconds \
                 (`schedules.min_interval_seconds` of the server's configuration)",
                quoted(cron_expr),
                gap.as_secs()
            )));
        }
        Ok(Checked { timezone, next })
    }

    /// Checks that the places are there, and each of them once. The caller may write to them.
    pub(super) async fn check_targets(&self, places: &[Place]) -> Result<Vec<Target>> {
        if places.is_empty() {
            return Err(EngineError::invalid(
                "`targets` is empty; name at least one project, like [{\"project_id\": \"…\"}]",
            ));
        }
        if places.len() > MOST_TARGETS {
            return Err(EngineError::invalid(format!(
                "`targets` has {} entries; at most {MOST_TARGETS} are taken",
                places.len()
            )));
        }
        let mut targets: Vec<Target> = Vec::new();
        for place in places {
            let id = place.project_id;
            if self.store().get(id).await?.is_none() {
                return Err(EngineError::project_not_found(id));
            }
            let workspace_id = place.workspace_id.clone().filter(|id| !id.is_default());
            if let Some(workspace) = &workspace_id {
                self.workspaces().require(id, workspace).await?;
            }
            let target = Target {
                project_id: id,
                workspace_id,
                session_id: None,
            };
            if targets.iter().any(|other| other.is_same_place(&target)) {
                let place = place.workspace_id.as_ref();
                let place = place.map_or("default", |workspace| workspace.as_str());
                return Err(EngineError::invalid(format!(
                    "`targets` names the workspace `{place}` of the project `{id}` twice"
                )));
            }
            targets.push(target);
        }
        Ok(targets)
    }
}
