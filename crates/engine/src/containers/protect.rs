//! Protected paths: what agents can read but not change, in every workspace of a project.

use std::path::{Component, Path};

use oubliette_model::WorkspaceId;
use oubliette_runtime::{ProtectedPath, RuntimeError};
use oubliette_store::Project;

use super::{ContainerScope, Containers};
use crate::workspaces::path_in_container;
use crate::{EngineError, Result};

const WORKSPACES_PER_PAGE: u32 = 1000;

/// The protected paths of one workspace.
fn of_workspace(project: &Project, workspace: &WorkspaceId) -> Vec<ProtectedPath> {
    let within = path_in_container(workspace);
    let paths = project.settings.protected_paths.iter().map(|path| {
        let parts = Path::new(path).components();
        ProtectedPath {
            within: within.clone().into(),
            path: parts.filter(|part| *part != Component::CurDir).collect(),
        }
    });
    paths.collect()
}

impl Containers<'_> {
    /// The protected paths of the workspaces that a container has.
    pub(super) async fn protected_paths(
        self,
        project: &Project,
        scope: &ContainerScope,
    ) -> Result<Vec<ProtectedPath>> {
        if project.settings.protected_paths.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(workspace) = &scope.workspace {
            return Ok(of_workspace(project, workspace));
        }
        let mut paths = of_workspace(project, &WorkspaceId::default());
        let mut after = None;
        loop {
            let store = self.engine.store();
            let page = store
                .workspaces(project.id, after.as_deref(), WORKSPACES_PER_PAGE)
                .await?;
            let others = page.rows.iter().filter(|found| !found.id.is_default());
            paths.extend(others.flat_map(|found| of_workspace(project, &found.id)));
            after = page.next;
            if after.is_none() {
                return Ok(paths);
            }
        }
    }

    /// Protects the paths of a workspace that was just made in the container of its project, if that
    /// runs. A container that cannot be changed is stopped, and protects them when it starts again; one
    /// that is in use is not stopped, and the error says so.
    pub(crate) async fn protect_workspace(
        self,
        project: &Project,
        workspace: &WorkspaceId,
    ) -> Result<()> {
        let paths = of_workspace(project, workspace);
        if paths.is_empty() || project.settings.workspace_isolation {
            return Ok(());
        }
        let id = ContainerScope::of_workspace(project, workspace).container_id();
        let _lock = self.state().lock_container(&id).await;
        if !self.is_running(&id).await? {
            return Ok(());
        }
        match self.runtime().await?.protect(&id, &paths).await {
            Err(RuntimeError::Unsupported(_)) if !self.state().is_in_use(&id) => {
                self.stop_locked(&id).await?;
                Ok(())
            }
            Err(RuntimeError::Unsupported(reason)) => Err(EngineError::Failed(format!(
                "the protected paths of a new workspace cannot be protected while the project's \
                 container is in use: {reason}; end its sessions and commands or call \
                 `container_stop`, then try again"
            ))),
            other => Ok(other?),
        }
    }
}
