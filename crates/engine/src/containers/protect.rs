//! Protected paths: what agents can read but not change, in every workspace of a project.

use std::path::{Component, Path};

use oubliette_model::WorkspaceId;
use oubliette_runtime::{ProtectedPath, RuntimeError};
use oubliette_store::Project;

use super::{ContainerScope, Containers};
use crate::workspaces::path_in_container;
use crate::{EngineError, Result};

const WORKSPACES_PER_PAGE: u32 = 1000;

/// How a running container got changed paths.
enum AppliedBy {
    /// It was stopped, and has them when it starts again.
    Stop,
    /// They are protected from now on.
    Mount,
}

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

    /// Applies changed settings to the containers of a project that run. Those with changed protected paths
    /// are stopped if they are not in use; added paths are protected at once where the runtime can.
    /// Returns those of `changed` that a container lacks until it starts again.
    pub(crate) async fn apply_settings(
        self,
        project: &Project,
        protected_before: &[String],
        changed: Vec<&'static str>,
    ) -> Vec<&'static str> {
        if changed.is_empty() {
            return changed;
        }
        let (mut is_any_running, mut lacks_paths) = (false, false);
        let stored = self.engine.store().project_containers(project.id).await;
        for container in stored.unwrap_or_default() {
            let scope = ContainerScope::of_stored(&container);
            let id = scope.container_id();
            let _lock = self.state().lock_container(&id).await;
            if !self.is_running(&id).await.unwrap_or(false) {
                continue;
            }
            if changed.contains(&"protected_paths") {
                match self.protect_again(project, protected_before, &scope).await {
                    Ok(AppliedBy::Stop) => continue,
                    Ok(AppliedBy::Mount) => {}
                    Err(error) => {
                        tracing::info!(container = %id, %error, "protected paths hold from the next start");
                        lacks_paths = true;
                    }
                }
            }
            is_any_running = true;
        }
        let mut lacking = changed;
        lacking.retain(|name| match *name {
            "protected_paths" => lacks_paths,
            _ => is_any_running,
        });
        lacking
    }

    /// Applies changed protected paths to a container that runs; its lock is held.
    async fn protect_again(
        self,
        project: &Project,
        protected_before: &[String],
        scope: &ContainerScope,
    ) -> Result<AppliedBy> {
        let id = scope.container_id();
        if !self.state().is_in_use(&id) {
            self.stop_locked(&id).await?;
            return Ok(AppliedBy::Stop);
        }
        let kept = &project.settings.protected_paths;
        if protected_before.iter().any(|path| !kept.contains(path)) {
            return Err(EngineError::Failed(
                "paths of a running container stay protected".to_owned(),
            ));
        }
        let paths = self.protected_paths(project, scope).await?;
        self.runtime().await?.protect(&id, &paths).await?;
        Ok(AppliedBy::Mount)
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
