//! `session_review`.

use oubliette_model::{Access, Mode, SessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    session_id: SessionId,
    /// Turn number.
    ///
    /// From 1; the last one if omitted.
    turn: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    session_id: SessionId,
    turn: u32,
}

#[derive(Debug)]
pub(crate) struct Review;

impl Operation for Review {
    const NAME: &'static str = "session_review";
    const ABOUT: &'static str = "Mark changes as reviewed, up to a turn.\n\n\
         `session_diff` with `since_review` then shows what came later.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            decides: true,
            ..Reach::work_of(params.session_id)
        }
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let session_id = params.session_id;
        let trees = engine.checkpoints().turn_trees(session_id).await?;
        let turn = params.turn.unwrap_or_else(|| trees.last_turn());
        if turn > 0 {
            trees.after(turn)?;
        }
        let audit = call.take_audit_entry();
        let store = engine.store();
        if !store.set_reviewed_turn(session_id, turn, audit).await? {
            return Err(EngineError::session_not_found(session_id));
        }
        Ok(Output { session_id, turn })
    }
}
