//! Storage of the workspaces of projects.

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
pub trait WorkspaceStore {
    /// Adds a workspace. `Duplicate` if the project already has one with this id, `TooManyWorkspaces` if
    /// it has `max_workspaces`; false if there is no such project.
    async fn add_workspace(
        &self,
        project: ProjectId,
        workspace: &Workspace,
        max_workspaces: u32,
    ) -> Result<bool>;

    async fn workspace(&self, project: ProjectId, id: &WorkspaceId) -> Result<Option<Workspace>>;

    /// Lists workspaces by id. `after` is the cursor of the previous page.
    async fn workspaces(
        &self,
        project: ProjectId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Workspace>>;

    /// Removes a workspace. False if it does not exist; `InUse` if a session that has not ended works
    /// in it.
    async fn remove_workspace(
        &self,
        project: ProjectId,
        id: &WorkspaceId,
        audit: Option<AuditEntry>,
    ) -> Result<bool>;
}
