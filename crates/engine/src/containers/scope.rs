//! Which container a workspace uses: the one of its project, or its own.

use oubliette_model::{ProjectId, WorkspaceId};
use oubliette_runtime::ContainerId;
use oubliette_store::{Container, Project};

/// The project or workspace that a container is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerScope {
    project: ProjectId,
    /// The only workspace in the container; None if it has all workspaces of the project.
    pub(super) workspace: Option<WorkspaceId>,
}

impl ContainerScope {
    pub(crate) fn of_workspace(project: &Project, workspace: &WorkspaceId) -> Self {
        let is_isolated = project.settings.workspace_isolation;
        Self {
            project: project.id,
            workspace: is_isolated.then(|| workspace.clone()),
        }
    }

    pub(super) fn of_stored(container: &Container) -> Self {
        Self {
            project: container.project_id,
            workspace: container.workspace_id.clone(),
        }
    }

    /// The container of a project's default workspace, which every other workspace is made from.
    pub(crate) fn default_container_id(project: ProjectId) -> ContainerId {
        ContainerId::from_bits(project.uuid().as_u128())
    }

    /// The only workspace in the container, if it is not the whole project's.
    pub(crate) fn workspace(&self) -> Option<&WorkspaceId> {
        self.workspace.as_ref()
    }

    pub(crate) fn container_id(&self) -> ContainerId {
        match &self.workspace {
            Some(workspace) if !workspace.is_default() => {
                ContainerId::derive(self.project.uuid().as_u128(), workspace.as_str())
            }
            _ => Self::default_container_id(self.project),
        }
    }
}
