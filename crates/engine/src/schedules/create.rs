//! `schedule_create`.

use oubliette_model::{Access, MissedRuns, Mode, Overlap, ScheduleId, SessionBehavior};
use oubliette_store::Schedule;
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::fields::{self, TargetParam};
use super::view::Details;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::sessions::message_params::check_prompt;
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// 1-100 characters.
    name: String,
    /// Cron fields (`0 9 * * MON-FRI`) or `@daily`.
    ///
    /// Five fields, six with seconds first, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
    cron_expr: String,
    /// Prompt of each run.
    prompt: String,
    /// Where it runs; replaces all.
    targets: Vec<TargetParam>,
    /// Of `cron_expr`, as `Europe/Berlin` (UTC).
    timezone: Option<String>,
    /// Whether it runs at its times (true).
    ///
    /// `schedule_trigger` runs it in any case.
    enabled: Option<bool>,
    /// If the last run is not over (`skip`).
    ///
    /// `queue`: at most one waits.
    overlap_behavior: Option<Overlap>,
    /// Continue a session or start new ones (`resume`).
    ///
    /// `resume` continues one session per target, `new` starts a session for each run.
    session_behavior: Option<SessionBehavior>,
    /// Due while the server was down (`skip`).
    ///
    /// `run_once`: once for all of them together.
    missed_runs: Option<MissedRuns>,
}

#[derive(Debug)]
pub(crate) struct Create;

impl Operation for Create {
    const NAME: &'static str = "schedule_create";
    const ABOUT: &'static str = "Send a prompt to agents at set times; `next_runs` shows when.\n\n\
         Runs use your token with the scope it has at that time.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = Details;

    fn reach(params: &Params) -> Reach {
        Reach {
            targets: params
                .targets
                .iter()
                .map(|target| target.project_id)
                .collect(),
            depends_on_tree: true,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Details> {
        let name = fields::check_name(&params.name)?;
        check_prompt(&params.prompt)?;
        let timezone = params.timezone.as_deref().unwrap_or("UTC");
        let schedules = engine.schedules();
        let checked = schedules.check_cadence(&params.cron_expr, timezone).await?;
        let targets = schedules.check_targets(&params.targets).await?;
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
            Some(project) => call.take_audit_entry_for(project),
            None => call.take_audit_entry(),
        };
        if !engine.store().add_schedule(&schedule, audit).await? {
            return Err(EngineError::Failed(
                "a project in `targets` was deleted".to_owned(),
            ));
        }
        schedules.notify_changed();
        Ok(Details::new(schedule, &checked.next, None, actor))
    }
}
