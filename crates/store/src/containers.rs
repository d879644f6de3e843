//! Storage of containers and of commands with a caller-given id.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{KeyHash, ProjectId, WorkspaceId};

use crate::{AuditEntry, Result};

/// How many results of named commands of a project are kept.
pub const MAX_KEPT_RESULTS: u32 = 500;
/// How many bytes the kept results of a project may have together, besides the newest.
pub const MAX_KEPT_RESULT_BYTES: u64 = 8 << 20;
/// In place of a result that is no longer kept. Its row stays, so that a repeated call does not run the
/// command again.
pub const DROPPED_RESULT: &str = "";

/// A container as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    pub id: String,
    pub project_id: ProjectId,
    /// Set if each workspace of the project has its own container.
    pub workspace_id: Option<WorkspaceId>,
    /// The hash of the key with which its supervisor authenticates.
    pub key: KeyHash,
    pub created_at: Timestamp,
}

/// A command with a caller-given id.
#[derive(Debug, Clone, PartialEq)]
pub struct Exec {
    pub project_id: ProjectId,
    pub exec_id: String,
    /// Identifies the start of the container in which the command was started.
    pub boot_id: String,
    pub started_at: Timestamp,
    /// Tells whether a repeated call is about the same command; none if it was stored by an older version.
    pub command_hash: Option<Vec<u8>>,
    /// The result as JSON, or [`DROPPED_RESULT`]; `None` while the command runs.
    pub result: Option<String>,
}

#[async_trait]
pub trait ContainerStore {
    /// Adds or replaces a container. False if its project or workspace does not exist.
    async fn put_container(&self, container: &Container) -> Result<bool>;

    async fn container(&self, id: &str) -> Result<Option<Container>>;

    async fn containers(&self) -> Result<Vec<Container>>;

    async fn project_containers(&self, project: ProjectId) -> Result<Vec<Container>>;

    async fn remove_container(&self, id: &str) -> Result<()>;

    /// Adds a command, or returns the existing one with the same id. Appends the audit entry in both
    /// cases.
    async fn add_exec(&self, exec: &Exec, audit: Option<AuditEntry>) -> Result<Option<Exec>>;

    /// Removes a command that could not be started. Does nothing if it has a result.
    async fn remove_unstarted_exec(&self, project: ProjectId, exec_id: &str) -> Result<()>;

    async fn exec(&self, project: ProjectId, exec_id: &str) -> Result<Option<Exec>>;

    /// Stores the result of a command, and drops the oldest results of the project beyond
    /// [`MAX_KEPT_RESULTS`] and [`MAX_KEPT_RESULT_BYTES`].
    async fn set_exec_result(&self, project: ProjectId, exec_id: &str, result: &str) -> Result<()>;

    /// The newest commands with a result whose id has a prefix, newest first.
    async fn finished_execs(
        &self,
        project: ProjectId,
        id_prefix: &str,
        limit: u32,
    ) -> Result<Vec<Exec>>;

    /// Deletes commands that were started before `before` and returns their number.
    async fn trim_execs(&self, before: Timestamp) -> Result<usize>;
}
