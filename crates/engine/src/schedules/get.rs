//! `schedule_get`.

use oubliette_model::{Access, Mode, ScheduleId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::fields;
use super::view::Details;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Schedule name or id.
    schedule_id: ScheduleId,
}

#[derive(Debug)]
pub(crate) struct Get;

impl Operation for Get {
    const NAME: &'static str = "schedule_get";
    const ABOUT: &'static str = "Show a schedule with its next runs and the last one.\n\n\
         Its prompt, its targets, and the reason if it is disabled.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Details;

    fn reach(params: &Params) -> Reach {
        Reach::schedule(params.schedule_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, _: Call) -> Result<Details> {
        let schedule = engine.schedules().get(params.schedule_id).await?;
        let next = match schedule.next_at {
            Some(_) => {
                let (expression, timezone) = (&schedule.cron_expr, &schedule.timezone);
                fields::next_runs(expression, timezone, engine.now()).await?
            }
            None => Vec::new(),
        };
        let last_run = engine.schedules().last_run(&schedule, actor).await?;
        Ok(Details::new(schedule, &next, last_run, actor))
    }
}
