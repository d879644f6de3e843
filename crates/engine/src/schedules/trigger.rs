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
    /// Schedule name or id.
    schedule_id: ScheduleId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    schedule_id: ScheduleId,
    /// One run per target.
    runs: Vec<RunView>,
}

#[derive(Debug)]
pub(crate) struct Trigger;

impl Operation for Trigger {
    const NAME: &'static str = "schedule_trigger";
    const ABOUT: &'static str = "Run a schedule now, even if disabled.\n\n\
         In addition to its regular runs. Returns at once; `schedule_history` shows the outcome.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            starts_run: true,
            depends_on_tree: true,
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
            reschedule: None,
            skip_reason: None,
            note: None,
            disable_reason: None,
        };
        let runs = engine
            .store()
            .fire_schedules(vec![firing], call.take_audit_entry())
            .await?;
        if runs.is_empty() {
            return Err(EngineError::invalid(
                "the schedule has no targets left, because their projects were deleted; set `targets` with \
                 `schedule_update`",
            ));
        }
        engine.schedules().notify_changed();
        Ok(Output {
            schedule_id: id,
            runs: runs.into_iter().map(RunView::from).collect(),
        })
    }
}
