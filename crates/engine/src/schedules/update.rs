//! `schedule_update`.

use oubliette_model::{Access, MissedRuns, Mode, Overlap, ScheduleId, SessionBehavior};
use oubliette_store::{Changed, Schedule};
use schemars::JsonSchema;
use serde::Deserialize;

use super::fields::{self, Place};
use super::view::Details;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::sessions::message_params::check_prompt;
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The schedule, as `schedule_list` shows it.
    schedule_id: ScheduleId,
    /// What it is called.
    name: Option<String>,
    /// When it runs: five cron fields, six with seconds in front, or a form like `@daily`.
    cron_expr: Option<String>,
    /// The time zone of `cron_expr`.
    timezone: Option<String>,
    /// What the agent is to do, each time.
    prompt: Option<String>,
    /// Where, instead of all that there are now.
    targets: Option<Vec<Place>>,
    /// Whether it runs by itself.
    enabled: Option<bool>,
    /// If the run before is not over: `skip`, `queue` or `parallel`.
    overlap_behavior: Option<Overlap>,
    /// `resume` goes on with one session for each target, `new` begins one each time.
    session_behavior: Option<SessionBehavior>,
    /// Runs that were due while the server was down: `skip` or `run_once`.
    missed_runs: Option<MissedRuns>,
}

#[derive(Debug)]
pub(crate) struct Update;

impl Operation for Update {
    const NAME: &'static str = "schedule_update";
    const ABOUT: &'static str = "Change a schedule; what is not named stays. From then on runs act with your token. One that \
         was disabled because its runs failed runs again, unless `enabled` is false.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Details;

    fn reach(params: &Params) -> Reach {
        let targets = params.targets.iter().flatten();
        Reach {
            targets: targets.map(|place| place.project_id).collect(),
            ..Reach::schedule(params.schedule_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Details> {
        let id = params.schedule_id;
        let audit = call.audit();
        loop {
            let found = engine.store().schedule(id).await?;
            let found = found.ok_or_else(|| Engine::schedule_not_found(id))?;
            let changed = engine.changed_schedule(found, &params, actor).await?;
            let wrote = engine.store().update_schedule(&changed, audit.clone());
            match wrote.await? {
                Changed::Done => {
                    engine.schedules().tell();
                    let now = engine.now();
                    let stored = engine.store().schedule(id).await?;
                    let changed = stored.ok_or_else(|| Engine::schedule_not_found(id))?;
                    let next =
                        fields::next_runs(&changed.cron_expr, &changed.timezone, now).await?;
                    return Ok(Details::of(changed, &next, actor));
                }
                Changed::Stale => {}
                Changed::NoSuchProject => {
                    return Err(EngineError::Failed(
                        "a project of its targets was deleted meanwhile".to_owned(),
                    ));
                }
            }
        }
    }
}

impl Engine {
    /// A schedule as a call wants it.
    async fn changed_schedule(
        &self,
        mut schedule: Schedule,
        params: &Params,
        actor: &Actor,
    ) -> Result<Schedule> {
        if let Some(name) = &params.name {
            schedule.name = fields::name(name)?;
        }
        if let Some(prompt) = &params.prompt {
            check_prompt(prompt)?;
            schedule.prompt = prompt.clone();
        }
        if let Some(places) = &params.targets {
            schedule.targets = self.check_targets(places).await?;
        }
        let was_disabled = schedule.disabled_reason.take().is_some();
        let enabled = params.enabled.unwrap_or(schedule.enabled || was_disabled);
        if enabled && schedule.targets.is_empty() {
            return Err(EngineError::invalid(
                "the schedule has no targets any more, because their projects were deleted; give it \
                 some with `targets`",
            ));
        }
        let moved = params.cron_expr.is_some() || params.timezone.is_some();
        if moved || (enabled && schedule.next_at.is_none()) {
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
        schedule.updated_at = self.now();
        Ok(schedule)
    }
}
