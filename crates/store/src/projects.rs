//! Projects.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, ProjectName, ProjectSettings};

use crate::{AuditEntry, Page, Result};

/// A project as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Project {
    pub id: ProjectId,
    pub name: ProjectName,
    /// Counts the changes; an update names the one it was made from.
    pub revision: i64,
    pub settings: ProjectSettings,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// How far a project has come. Only ready projects are seen by [`Projects::get`] and
/// [`Projects::page`]; the others are unfinished work of a server that may have died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectState {
    Creating,
    Ready,
    Deleting,
}

/// Which projects a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visible {
    All,
    Only(ProjectId),
}

/// What became of an update.
#[derive(Debug, Clone, PartialEq)]
pub enum Updated {
    Done(Box<Project>),
    /// Somebody else changed the project since it was read: read it again.
    Stale,
}

#[async_trait]
pub trait Projects {
    /// Takes the name for a project that is being made. `Duplicate` if the name is taken.
    async fn reserve(&self, project: &Project) -> Result<()>;

    /// Makes a reserved project ready, with its default workspace. False if it is not reserved.
    async fn confirm(&self, id: ProjectId, audit: Option<AuditEntry>) -> Result<bool>;

    async fn get(&self, id: ProjectId) -> Result<Option<Project>>;

    /// Projects by name, after the cursor of the page before.
    async fn page(
        &self,
        visible: Visible,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Project>>;

    /// Writes name and settings if the stored revision is still `project.revision`. `Duplicate` if
    /// the name is taken.
    async fn update(&self, project: &Project, audit: Option<AuditEntry>) -> Result<Updated>;

    /// Hides a ready project for deletion and deletes the tokens bound to it; their number, or
    /// none if there is no such project.
    async fn condemn(&self, id: ProjectId, audit: Option<AuditEntry>) -> Result<Option<usize>>;

    /// Forgets a project in any state, and all that hangs on it.
    async fn erase(&self, id: ProjectId) -> Result<()>;

    /// Projects that are not ready.
    async fn unfinished(&self) -> Result<Vec<(ProjectId, ProjectState)>>;

    async fn count_projects(&self) -> Result<i64>;
}
