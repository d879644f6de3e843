//! Which trees a call about the turns of a session means.

use oubliette_checkpoints::Hash;
use oubliette_model::SessionId;
use oubliette_store::{Checkpoint, TreeHash};

use super::Checkpoints;
use crate::{EngineError, NO_CHECKPOINT, Result};

/// The checkpoints of a session, by turn.
#[derive(Debug)]
pub(crate) struct TurnTrees {
    checkpoints: Vec<Checkpoint>,
}

impl Checkpoints<'_> {
    pub(crate) async fn turn_trees(self, session: SessionId) -> Result<TurnTrees> {
        let checkpoints = self.engine.store().checkpoints(session).await?;
        Ok(TurnTrees { checkpoints })
    }
}

impl TurnTrees {
    /// The last turn whose end has a checkpoint; 0 if there is none.
    pub(crate) fn last_turn(&self) -> u32 {
        let mut ended = self.checkpoints.iter().rev();
        ended
            .find(|checkpoint| checkpoint.after.is_some())
            .map_or(0, |checkpoint| checkpoint.turn)
    }

    /// The workspace when a turn started.
    pub(crate) fn before(&self, turn: u32) -> Result<Hash> {
        let found = self.find(turn).and_then(|checkpoint| checkpoint.before);
        found.map(hash).ok_or_else(|| missing(turn, "start"))
    }

    /// The workspace after a turn; 0 is before the first turn.
    pub(crate) fn after(&self, turn: u32) -> Result<Hash> {
        if turn == 0 {
            let first = self.checkpoints.first();
            let before = first.and_then(|checkpoint| checkpoint.before);
            return before.map(hash).ok_or_else(|| missing(1, "start"));
        }
        let found = self.find(turn).and_then(|checkpoint| checkpoint.after);
        found.map(hash).ok_or_else(|| missing(turn, "end"))
    }

    fn find(&self, turn: u32) -> Option<&Checkpoint> {
        self.checkpoints
            .iter()
            .find(|checkpoint| checkpoint.turn == turn)
    }
}

fn hash(tree: TreeHash) -> Hash {
    Hash::from_bytes(tree)
}

fn missing(turn: u32, moment: &str) -> EngineError {
    EngineError::Failed(format!(
        "{NO_CHECKPOINT} of the {moment} of turn {turn}: the turn has not ended, did not run, or the \
         workspace could not be read then; the `checkpoint` events of the session say which turns have one"
    ))
}
