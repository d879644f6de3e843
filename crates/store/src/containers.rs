//! Containers and the commands that their callers named.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{KeyHash, ProjectId, WorkspaceId};

use crate::Result;

/// A container as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    pub id: String,
    pub project_id: ProjectId,
    /// The workspace it is for, where each has one of its own.
    pub workspace_id: Option<WorkspaceId>,
    /// The hash of the key that its supervisor shows.
    pub key: KeyHash,
    pub created_at: Timestamp,
}

/// A command that its caller named.
#[derive(Debug, Clone, PartialEq)]
pub struct Exec {
    pub project_id: ProjectId,
    pub exec_id: String,
    /// The life of the container in which it was started.
    pub boot_id: String,
    pub started_at: Timestamp,
    /// What it came to, as JSON; none while it runs.
    pub result: Option<String>,
}

#[async_trait]
pub trait Containers {
    /// Adds or replaces. False if there is no such project or workspace.
    async fn put_container(&self, container: &Container) -> Result<bool>;

    async fn container(&self, id: &str) -> Result<Option<Container>>;

    async fn containers(&self) -> Result<Vec<Container>>;

    async fn containers_of(&self, project: ProjectId) -> Result<Vec<Container>>;

    async fn remove_container(&self, id: &str) -> Result<()>;

    /// Adds a command, or returns the one that has its name already.
    async fn begin_exec(&self, exec: &Exec) -> Result<Option<Exec>>;

    async fn exec(&self, project: ProjectId, exec_id: &str) -> Result<Option<Exec>>;

    /// Stores what a command came to.
    async fn end_exec(&self, project: ProjectId, exec_id: &str, result: &str) -> Result<()>;

    /// Forgets commands that were started before `before`; how many.
    async fn trim_execs(&self, before: Timestamp) -> Result<usize>;
}
