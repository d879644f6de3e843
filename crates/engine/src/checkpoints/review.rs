//! `session_review`.

use oubliette_model::{Access, Mode, SessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session's id, from `session_list`.
    session_id: SessionId,
    /// The turn up to which its changes were reviewed; the last one if omitted.
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
    const ABOUT: &'static str = "Record that the changes of a session were reviewed, up to a turn. `session_diff` with \
         `since_review` then shows what came later.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            decides: true,
            ..Reach::session(params.session_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let session_id = params.session_id;
        let session = engine.sessions().get(session_id).await?;
        engine.checkpoints().check_tree(actor, &session).await?;
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
