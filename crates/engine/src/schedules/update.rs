//! `schedule_update`.

use oubliette_model::{Access, MissedRuns, Mode, Overlap, ScheduleId, SessionBehavior};
use oubliette_store::{Schedule, ScheduleUpdate};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Schedules;
use super::fields::{self, TargetParam};
use super::view::Details;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::sessions::message_params::check_prompt;
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Schedule name or id.
    schedule_id: ScheduleId,
    /// 1-100 characters.
    name: Option<String>,
    /// Cron fields (`0 9 * * MON-FRI`) or `@daily`.
    cron_expr: Option<String>,
    /// Of `cron_expr`, as `Europe/Berlin` (UTC).
    timezone: Option<String>,
    /// Prompt of each run.
    prompt: Option<String>,
    /// Where it runs; replaces all.
    targets: Option<Vec<TargetParam>>,
    /// Whether it runs at its times (true).
    enabled: Option<bool>,
    /// If the last run is not over (`skip`).
    overlap_behavior: Option<Overlap>,
    /// Continue a session or start new ones (`resume`).
    session_behavior: Option<SessionBehavior>,
    /// Due while the server was down (`skip`).
    missed_runs: Option<MissedRuns>,
}

#[derive(Debug)]
pub(crate) struct Update;

impl Operation for Update {
    const NAME: &'static str = "schedule_update";
    const ABOUT: &'static str = "Change or re-enable a schedule; omitted parameters stay.\n\n\
         Later runs use your token. A schedule that was disabled after failures is enabled, unless you \
         pass `enabled: false`.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Details;

    fn reach(params: &Params) -> Reach {
        let targets = params.targets.iter().flatten();
        Reach {
            targets: targets.map(|target| target.project_id).collect(),
            depends_on_tree: true,
            ..Reach::schedule(params.schedule_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Details> {
        let id = params.schedule_id;
        let schedules = engine.schedules();
        let audit = call.take_audit_entry();
        loop {
            let found = schedules.get(id).await?;
            let changed = schedules.apply_changes(found, &params, actor).await?;
            let update = engine.store().update_schedule(&changed, audit.clone());
            match update.await? {
                ScheduleUpdate::Done => {
                    schedules.notify_changed();
                    let now = engine.now();
                    let stored = schedules.get(id).await?;
                    let next = fields::next_runs(&stored.cron_expr, &stored.timezone, now).await?;
                    let last_run = engine.schedules().last_run(&stored, actor).await?;
                    return Ok(Details::new(stored, &next, last_run, actor));
                }
                ScheduleUpdate::Stale => {}
                ScheduleUpdate::NoSuchProject => {
                    return Err(EngineError::Failed(
                        "a project in its targets was deleted".to_owned(),
                    ));
                }
            }
        }
    }
}

impl Schedules<'_> {
    /// The schedule with the changes of a call.
    async fn apply_changes(
        self,
        mut schedule: Schedule,
        params: &Params,
        actor: &Actor,
    ) -> Result<Schedule> {
        if let Some(name) = &params.name {
            schedule.name = fields::check_name(name)?;
        }
        if let Some(prompt) = &params.prompt {
            check_prompt(prompt)?;
            schedule.prompt = prompt.clone();
        }
        if let Some(targets) = &params.targets {
            schedule.targets = self.check_targets(targets).await?;
        }
        let was_disabled = schedule.disabled_reason.take().is_some();
        let enabled = params.enabled.unwrap_or(schedule.enabled || was_disabled);
        if enabled && schedule.targets.is_empty() {
            return Err(EngineError::invalid(
                "the schedule has no targets left, because their projects were deleted; set `targets`",
            ));
        }
        let new_times = params.cron_expr.is_some() || params.timezone.is_some();
        if new_times || (enabled && schedule.next_at.is_none()) {
            let expression = params.cron_expr.as_ref().unwrap_or(&schedule.cron_expr);
            let timezone = params.timezone.as_ref().unwrap_or(&schedule.timezone);
            let checked = self.check_cadence(expression, timezone).await?;
            schedule.cron_expr = expression.trim().to_owned();
            schedule.timezone = checked.timezone;
            schedule.next_at = checked.next.first().copied();
        }
        schedule.next_at = schedule.next_at.filter(|_| enabled);
        schedule.enabled = enabled;
        schedule.overlap = params.overlap_behavior.unwrap_or(schedule.overlap);
        schedule.session_behavior = params.session_behavior.unwrap_or(schedule.session_behavior);
        schedule.missed_runs = params.missed_runs.unwrap_or(schedule.missed_runs);
        schedule.failures = 0;
        schedule.owner_id = actor.token_id;
        schedule.owner_session = actor.session;
        schedule.updated_at = self.engine.now();
        Ok(schedule)
    }
}
