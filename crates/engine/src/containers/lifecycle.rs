//! Starts, stops and removes containers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oubliette_model::{ProjectId, WorkspaceId};
use oubliette_runtime::{ContainerId, RunState, RuntimeError};
use oubliette_store::Project;

use super::{ContainerPlan, ContainerScope, Containers, SupervisorLink};
use crate::{EngineError, Result};

/// How long the supervisor of a container that was just started may take to connect.
const FIRST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(20);
/// The same for a container that ran before the server started. After it the container is started
/// anew, and its processes are lost.
const RECOVERED_CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
const STARTUP_LOG_LINES: usize = 20;

/// A container that runs, with a connection to its supervisor.
#[derive(Debug)]
pub(crate) struct RunningContainer {
    pub(crate) id: ContainerId,
    pub(crate) link: Arc<SupervisorLink>,
    /// Whether it was started by this call.
    pub(crate) started: bool,
}

impl Containers<'_> {
    /// The directory that holds a directory with a socket for each container.
    pub(super) fn relay_root(self) -> PathBuf {
        self.engine.settings().data_dir.join("run").join("c")
    }

    pub(super) fn make_relay_dir(self, id: &ContainerId) -> Result<PathBuf> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        let parent = self.relay_root();
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&parent)?;
        let directory = parent.join(id.as_str());
        std::fs::create_dir_all(&directory)?;
        // User ids inside a container differ from the server's; the parent keeps other users out.
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755))?;
        Ok(directory)
    }

    /// The container of a workspace, started if it does not run, with its supervisor connected.
    pub(crate) async fn ensure(
        self,
        project: &Project,
        workspace: &WorkspaceId,
    ) -> Result<RunningContainer> {
        let scope = ContainerScope::of_workspace(project, workspace);
        let id = scope.container_id();
        let runtime = self.runtime().await?;
        let _lock = self.state().lock_container(&id).await;
        let mut link = self.state().current_link(&id);
        if link.is_none() && self.is_running_in_runtime(&id).await? {
            self.listen(&id).await?;
            self.keep_channel(&id).await?;
            let connected = self
                .state()
                .wait_for_link(&id, RECOVERED_CONNECTION_TIMEOUT);
            link = connected.await.ok();
            if link.is_none() {
                tracing::warn!(container = %id, "supervisor does not connect; starting the container anew");
                runtime.remove(&id).await?;
            }
        }
        let (link, started) = match link {
            Some(link) => {
                self.refresh_git_config(project)?;
                (link, false)
            }
            None => {
                let plan = ContainerPlan {
                    project,
                    id: id.clone(),
                    mounts: None,
                    scope,
                    users_of: None,
                };
                (self.create(plan).await?, true)
            }
        };
        Ok(RunningContainer { id, link, started })
    }

    /// Creates a container and starts it. The caller holds its lock, unless the id is new.
    pub(crate) async fn create(self, plan: ContainerPlan<'_>) -> Result<Arc<SupervisorLink>> {
        let runtime = self.runtime().await?;
        let spec = self.container_spec(plan).await?;
        let id = &spec.id;
        self.state().clear_stop_reason(id);
        match runtime.create(&spec).await {
            Err(RuntimeError::NoImage(_)) => self.create_with_new_image(&spec).await?,
            created => created?,
        }
        runtime.start(id).await?;
        self.keep_channel(id).await?;
        let connected = self.state().wait_for_link(id, FIRST_CONNECTION_TIMEOUT);
        if let Ok(link) = connected.await {
            return Ok(link);
        }
        let logs = runtime
            .logs(id, STARTUP_LOG_LINES)
            .await
            .unwrap_or_default();
        let _ = runtime.stop(id, Duration::ZERO).await;
        Err(EngineError::Failed(format!(
            "the container started but its supervisor did not connect; its log: {}",
            logs.trim()
        )))
    }

    /// Stops a container and returns whether it ran.
    pub(crate) async fn stop(self, id: &ContainerId) -> Result<bool> {
        let _lock = self.state().lock_container(id).await;
        self.stop_locked(id).await
    }

    pub(super) async fn stop_locked(self, id: &ContainerId) -> Result<bool> {
        let seconds = self.engine.settings().containers.stop_grace_seconds;
        let grace = Duration::from_secs(seconds);
        let is_running = self.is_running_in_runtime(id).await?;
        if is_running {
            self.state().mark_stopping(id);
            self.runtime().await?.stop(id, grace).await?;
            self.state().mark_ended(id);
            self.state().set_outdated(id, false);
        }
        self.engine.network().unregister(id).await;
        Ok(is_running)
    }

    pub(crate) async fn is_running(self, id: &ContainerId) -> Result<bool> {
        Ok(self.is_connected(id) || self.is_running_in_runtime(id).await?)
    }

    async fn is_running_in_runtime(self, id: &ContainerId) -> Result<bool> {
        let status = self.runtime().await?.inspect(id).await?;
        Ok(status.is_some_and(|status| status.state == RunState::Running))
    }

    /// The containers that a project has or had.
    pub(crate) async fn of_project(self, project: ProjectId) -> Result<Vec<ContainerId>> {
        let stored = self.engine.store().project_containers(project).await?;
        let ids = stored.into_iter().map(|container| container.id);
        Ok(ids.filter_map(ContainerId::new).collect())
    }

    /// Removes all containers of a project.
    pub(crate) async fn remove_of_project(self, project: ProjectId) -> Result<()> {
        for id in self.of_project(project).await? {
            self.remove(&id).await?;
        }
        Ok(())
    }

    /// Removes a container and everything that belongs to it.
    pub(crate) async fn remove(self, id: &ContainerId) -> Result<()> {
        let _lock = self.state().lock_container(id).await;
        self.remove_locked(id).await
    }

    /// Removes a container that is no longer needed, in the background if that fails now.
    pub(crate) async fn remove_or_retry(self, id: &ContainerId) {
        let Err(error) = self.remove(id).await else {
            return;
        };
        tracing::warn!(container = %id, %error, "could not remove a container; trying again");
        let id = id.clone();
        self.engine.spawn_until_stopping(|engine| async move {
            let remove = || engine.containers().remove(&id);
            engine.retry(&format!("container {id}"), remove).await;
        });
    }

    pub(super) async fn remove_locked(self, id: &ContainerId) -> Result<()> {
        let store = self.engine.store();
        if store.container(id.as_str()).await?.is_none() {
            return Ok(());
        }
        let state = self.state();
        if let Ok(runtime) = self.runtime().await {
            state.mark_stopping(id);
            runtime.remove(id).await?;
        }
        state.mark_ended(id);
        self.engine.network().unregister(id).await;
        if let Ok(listeners) = state.relay_listeners() {
            listeners.close(id);
        }
        oubliette_trees::remove_tree(&self.relay_root().join(id.as_str()))?;
        // Last: after a crash before this point, the row makes the server remove the container again.
        store.remove_container(id.as_str()).await?;
        state.forget_container(id);
        Ok(())
    }
}
