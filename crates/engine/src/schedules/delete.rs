//! `schedule_delete`.

use oubliette_model::{Access, Mode, ScheduleId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Schedule name or id.
    schedule_id: ScheduleId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    schedule_id: ScheduleId,
    deleted: bool,
    /// The number of runs that were not over. Their sessions continue; `session_interrupt` stops them.
    unfinished_runs: usize,
}

#[derive(Debug)]
pub(crate) struct Delete;

impl Operation for Delete {
    const NAME: &'static str = "schedule_delete";
    const ABOUT: &'static str = "Delete a schedule with its history.\n\n\
         The sessions that it started remain, and their current turns continue.";
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
        let removed = engine
            .store()
            .remove_schedule(id, call.take_audit_entry())
            .await?;
        let unfinished_runs = removed.ok_or_else(|| super::not_found(id))?;
        engine.schedules().notify_changed();
        Ok(Output {
            schedule_id: id,
            deleted: true,
            unfinished_runs,
        })
    }
}
