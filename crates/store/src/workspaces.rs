//! Workspaces of a project.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, WorkspaceId};

use crate::{AuditEntry, Page, Result};

/// A workspace as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Workspace {
    pub id: WorkspaceId,
    pub created_at: Timestamp,
}

#[async_trait]
pub trait Workspaces {
    /// `Duplicate` if the project has it already. False if there is no such project.
    async fn add_workspace(&self, project: ProjectId, workspace: &Workspace) -> Result<bool>;

    async fn workspace(&self, project: ProjectId, id: &WorkspaceId) -> Result<Option<Workspace>>;

    /// Workspaces by id, after the cursor of the page before.
    async fn workspaces(
        &self,
        project: ProjectId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Workspace>>;

    /// False if there was none. `InUse` if a session that has not ended works in it.
    async fn remove_workspace(
        &self,
        project: ProjectId,
        id: &WorkspaceId,
        audit: Option<AuditEntry>,
    ) -> Result<bool>;
}
