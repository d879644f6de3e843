//! Which trees of a workspace belong to the turns of sessions. The trees themselves are files of the
//! project.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, SessionId};

use crate::{AuditEntry, Result};

/// The name of a tree.
pub type TreeHash = [u8; 32];

/// What a step adds to the checkpoints of its session.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointStep {
    pub turn: u32,
    /// The workspace when the turn started.
    pub before: Option<TreeHash>,
    /// The workspace when the turn ended.
    pub after: Option<TreeHash>,
}

/// The workspace before and after a turn, as far as it could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    pub turn: u32,
    pub before: Option<TreeHash>,
    pub after: Option<TreeHash>,
}

#[async_trait]
pub trait CheckpointStore {
    /// The checkpoints of a session, by turn.
    async fn checkpoints(&self, session: SessionId) -> Result<Vec<Checkpoint>>;

    /// Keeps a tree as long as the session exists: its workspace before it was set back.
    async fn keep_tree(&self, session: SessionId, tree: TreeHash, at: Timestamp) -> Result<()>;

    /// A session of another tree that has worked in the same workspace since the end of a turn of this one;
    /// 0 is before the first turn. What was before the first event of a trimmed log counts as later.
    async fn later_work(&self, session: SessionId, turn: u32) -> Result<Option<SessionId>>;

    /// Every tree that the sessions of a project have.
    async fn project_trees(&self, project: ProjectId) -> Result<Vec<TreeHash>>;

    /// The turn up to which a session was reviewed; `None` if it was not.
    async fn reviewed_turn(&self, session: SessionId) -> Result<Option<u32>>;

    /// False if there is no such session.
    async fn set_reviewed_turn(
        &self,
        session: SessionId,
        turn: u32,
        audit: Option<AuditEntry>,
    ) -> Result<bool>;
}
