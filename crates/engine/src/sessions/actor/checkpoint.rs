//! Keeps the workspace at the start and end of each turn.

use oubliette_checkpoints::Hash;
use oubliette_model::{Changed, Event, TurnKind};
use oubliette_store::CheckpointStep;

use super::{ActorError, SessionActor};
use crate::checkpoints::checkpoint_id;

impl SessionActor<'_> {
    /// Adds the workspace as it is before the next turn to the step. A turn starts without it if the
    /// workspace cannot be read.
    pub(super) async fn add_start_checkpoint(&mut self) {
        let checkpoints = self.engine.checkpoints();
        if !checkpoints.is_enabled() {
            return;
        }
        let turn = self.session.turns + 1;
        let workspace = &self.session.workspace_id;
        match checkpoints.scan(&self.project, workspace).await {
            Ok(scanned) => {
                self.step.changes.checkpoint = Some(CheckpointStep {
                    turn,
                    before: Some(*scanned.tree.as_bytes()),
                    after: None,
                });
                self.step.kept_objects = Some(scanned.guard);
            }
            Err(reason) => self.step.events.log(format!(
                "no checkpoint of the start of turn {turn}: the workspace cannot be read: {reason}"
            )),
        }
    }

    /// Adds the workspace as it is after the turn to the step, and what the turn changed. A turn ends
    /// without it if the workspace cannot be read.
    pub(super) async fn add_end_checkpoint(&mut self, kind: TurnKind) -> Result<(), ActorError> {
        let checkpoints = self.engine.checkpoints();
        if !checkpoints.is_enabled() {
            return Ok(());
        }
        let turn = self.session.turns;
        let workspace = &self.session.workspace_id;
        let scanned = match checkpoints.scan(&self.project, workspace).await {
            Ok(scanned) => scanned,
            Err(reason) => {
                self.step.events.log(format!(
                    "no checkpoint of turn {turn}: the workspace cannot be read: {reason}"
                ));
                return Ok(());
            }
        };
        let known = self.engine.store().checkpoints(self.session.id).await?;
        let own = known.iter().find(|checkpoint| checkpoint.turn == turn);
        let mut before = own.and_then(|checkpoint| checkpoint.before);
        if before.is_none() && kind == TurnKind::Background {
            // The agent was at work before its turn was noticed: the turn began where the last one ended.
            let previous = known.iter().rfind(|checkpoint| checkpoint.turn < turn);
            before = previous.and_then(|checkpoint| checkpoint.after);
        }
        let changed = match before {
            Some(before) => {
                let before = Hash::from_bytes(before);
                let counted = checkpoints
                    .count_changes(self.project.id, before, scanned.tree)
                    .await;
                counted.unwrap_or_else(|error| {
                    tracing::warn!(session = %self.session.id, %error, "could not count changes");
                    Changed::default()
                })
            }
            None => Changed::default(),
        };
        self.step.changes.checkpoint = Some(CheckpointStep {
            turn,
            before,
            after: Some(*scanned.tree.as_bytes()),
        });
        self.step.events.push(Event::Checkpoint {
            turn,
            checkpoint_id: checkpoint_id(scanned.tree),
            changed,
        });
        self.step.changed = before.map(|_| changed);
        self.step.kept_objects = Some(scanned.guard);
        Ok(())
    }
}
