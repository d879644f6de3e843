//! Storage of projects.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{ProjectId, ProjectName, ProjectSettings};

use crate::{AuditEntry, Page, Result};

/// A project as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Project {
    pub id: ProjectId,
    pub name: ProjectName,
    /// Incremented by every update; an update must name the revision that it was based on.
    pub revision: i64,
    pub settings: ProjectSettings,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The lifecycle state of a project. [`ProjectStore::project`] and [`ProjectStore::projects`] return only
/// ready projects; a project in another state may be left over from a server that crashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectState {
    Creating,
    Ready,
    Deleting,
}

/// Limits a list to the projects that the caller may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VisibleProjects {
    All,
    Only(ProjectId),
}

/// The outcome of [`ProjectStore::update_project`].
#[derive(Debug, Clone, PartialEq)]
pub enum ProjectUpdate {
    Done(Box<Project>),
    /// The project was changed since it was read; the caller must read it again.
    Stale,
}

#[async_trait]
pub trait ProjectStore {
    /// Adds a project in state `Creating`, which reserves its name. `Duplicate` if the name is taken.
    async fn reserve_project(&self, project: &Project) -> Result<()>;

    /// Makes a reserved project ready and adds its default workspace. False if the project is not in
    /// state `Creating`.
    async fn confirm_project(&self, id: ProjectId, audit: Option<AuditEntry>) -> Result<bool>;

    async fn project(&self, id: ProjectId) -> Result<Option<Project>>;

    /// Returns the project with a name, and those whose ids begin with `prefix`, if there is one.
    async fn projects_matching(
        &self,
        visible: VisibleProjects,
        name: &str,
        prefix: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Project>>;

    /// Lists projects by name. `after` is the cursor of the previous page.
    async fn projects(
        &self,
        visible: VisibleProjects,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Project>>;

    /// Writes the name and settings if the stored revision is still `project.revision`. `Duplicate`
    /// if the name is taken.
    async fn update_project(
        &self,
        project: &Project,
        audit: Option<AuditEntry>,
    ) -> Result<ProjectUpdate>;

    /// Moves a ready project to state `Deleting` and deletes the tokens bound to it. Returns the
    /// number of deleted tokens, or `None` if there is no such project.
    async fn mark_project_deleting(
        &self,
        id: ProjectId,
        audit: Option<AuditEntry>,
    ) -> Result<Option<usize>>;

    /// Deletes a project in any state with all rows that belong to it.
    async fn delete_project(&self, id: ProjectId) -> Result<()>;

    /// Returns the projects that are not ready.
    async fn unfinished_projects(&self) -> Result<Vec<(ProjectId, ProjectState)>>;

    async fn count_projects(&self) -> Result<i64>;
}
