//! `schedule_delete`.

use oubliette_model::{Access, Mode, ScheduleId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The schedule, as `schedule_list` shows it.
    schedule_id: ScheduleId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    schedule_id: ScheduleId,
    deleted: bool,
    /// Runs that were not over. What their sessions do goes on; `session_interrupt` stops it.
    unfinished_runs: usize,
}

#[derive(Debug)]
pub(crate) struct Delete;

impl Operation for Delete {
    const NAME: &'static str = "schedule_delete";
    const ABOUT: &'static str = "Delete a schedule and its history, for good. Sessions that it began stay, and what they do \
         at the moment goes on.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::schedule(params.schedule_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.schedule_id;
        let removed = engine.store().remove_schedule(id, call.audit()).await?;
        let unfinished_runs = removed.ok_or_else(|| Engine::schedule_not_found(id))?;
        engine.schedules().tell();
        Ok(Output {
            schedule_id: id,
            deleted: true,
            unfinished_runs,
        })
    }
}
