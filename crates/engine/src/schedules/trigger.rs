//! `schedule_trigger`.

use oubliette_model::{Access, Mode, RunCause, ScheduleId};
use oubliette_store::Firing;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::RunView;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The schedule, as `schedule_list` shows it.
    schedule_id: ScheduleId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    schedule_id: ScheduleId,
    /// One for each target.
    runs: Vec<RunView>,
}

#[derive(Debug)]
pub(crate) struct Trigger;

impl Operation for Trigger {
    const NAME: &'static str = "schedule_trigger";
    const ABOUT: &'static str = "Run a schedule now, also one that is disabled, besides the runs that it has by itself. \
         Returns at once; `schedule_history` shows what comes of it.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            begins: true,
            ..Reach::schedule(params.schedule_id)
        }
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.schedule_id;
        let now = engine.now();
        let firing = Firing {
            schedule_id: id,
            at: now,
            due_at: now,
            cause: RunCause::Trigger,
            moves: None,
            skipped: None,
            note: None,
            disabled: None,
        };
        let runs = engine.store().fire(vec![firing], call.audit()).await?;
        if runs.is_empty() {
            return Err(EngineError::invalid(
                "the schedule has no targets any more, because their projects were deleted; give it \
                 some with `schedule_update`",
            ));
        }
        engine.schedules().tell();
        Ok(Output {
            schedule_id: id,
            runs: runs.into_iter().map(RunView::from).collect(),
        })
    }
}
