//! Which container: a project's, or a workspace's own.

use oubliette_model::{ProjectId, WorkspaceId};
use oubliette_runtime::ContainerId;
use oubliette_store::{Container, Project};

/// What a container is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    project: ProjectId,
    /// The one workspace it sees; none if it sees them all.
    pub(super) workspace: Option<WorkspaceId>,
}

impl Place {
    /// Where things happen that happen in this workspace.
    pub(crate) fn of(project: &Project, workspace: &WorkspaceId) -> Self {
        let apart = project.settings.workspace_isolation;
        Self {
            project: project.id,
            workspace: apart.then(|| workspace.clone()),
        }
    }

    /// What a container that was stored is for.
    pub(super) fn stored(container: &Container) -> Self {
        Self {
            project: container.project_id,
            workspace: container.workspace_id.clone(),
        }
    }

    pub(crate) fn container(&self) -> ContainerId {
        let bits = self.project.uuid().as_u128();
        match &self.workspace {
            Some(workspace) if !workspace.is_default() => {
                ContainerId::derive(bits, workspace.as_str())
            }
            _ => ContainerId::from_bits(bits),
        }
    }
}
