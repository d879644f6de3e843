//! `schedule_create`.

use oubliette_model::{Access, MissedRuns, Mode, Overlap, ScheduleId, SessionBehavior};
use oubliette_store::Schedule;
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::fields::{self, Place};
use super::view::Details;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::sessions::message_params::check_prompt;
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// What the schedule is called.
    name: String,
    /// When it runs: five cron fields (`0 9 * * MON-FRI`), six with seconds in front, or `@hourly`,
    /// `@daily`, `@weekly`, `@monthly`, `@yearly`.
    cron_expr: String,
    /// What the agent is to do, each time.
    prompt: String,
    /// Where: `[{"project_id": "…", "workspace_id": "…"}]`, the default workspace if none is named.
    targets: Vec<Place>,
    /// The time zone of `cron_expr`, like `Europe/Berlin`; UTC if absent.
    timezone: Option<String>,
    /// Whether it runs by itself (true if absent); `schedule_trigger` runs it in any case.
    enabled: Option<bool>,
    /// If the run before is not over: `skip` (if absent), `queue` (at most one waits) or `parallel`.
    overlap_behavior: Option<Overlap>,
    /// `resume` (if absent) goes on with one session for each target, `new` begins one each time.
    session_behavior: Option<SessionBehavior>,
    /// Runs that were due while the server was down: `skip` (if absent), or `run_once` for all of them.
    missed_runs: Option<MissedRuns>,
}

#[derive(Debug)]
pub(crate) struct Create;

impl Operation for Create {
    const NAME: &'static str = "schedule_create";
    const ABOUT: &'static str = "Have agents get a prompt at set times. `next_runs` of the result shows when: look whether \
         that is what was meant. Runs act with your token, as it is then.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = Details;

    fn reach(params: &Params) -> Reach {
        Reach {
            targets: params
                .targets
                .iter()
                .map(|place| place.project_id)
                .collect(),
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Details> {
        let name = fields::name(&params.name)?;
        check_prompt(&params.prompt)?;
        let timezone = params.timezone.as_deref().unwrap_or("UTC");
        let checked = engine.check_cadence(&params.cron_expr, timezone).await?;
        let targets = engine.check_targets(&params.targets).await?;
        let enabled = params.enabled.unwrap_or(true);
        let now = engine.now();
        let schedule = Schedule {
            id: ScheduleId::new(Uuid::new_v4()),
            revision: 1,
            name,
            cron_expr: params.cron_expr.trim().to_owned(),
            timezone: checked.timezone,
            prompt: params.prompt,
            targets,
            enabled,
            overlap: params.overlap_behavior.unwrap_or_default(),
            session_behavior: params.session_behavior.unwrap_or_default(),
            missed_runs: params.missed_runs.unwrap_or_default(),
            owner_id: actor.token_id,
            owner_session: actor.session,
            next_at: checked.next.first().copied().filter(|_| enabled),
            disabled_reason: None,
            failures: 0,
            created_at: now,
            updated_at: now,
        };
        let first = schedule.targets.first().map(|target| target.project_id);
        let audit = match first {
            Some(project) => call.audit_of(project),
            None => call.audit(),
        };
        if !engine.store().add_schedule(&schedule, audit).await? {
            return Err(EngineError::Failed(
                "a project that `targets` names was deleted".to_owned(),
            ));
        }
        engine.schedules().tell();
        Ok(Details::of(schedule, &checked.next, actor))
    }
}
