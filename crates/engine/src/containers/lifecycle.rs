//! From nothing to a running container and back.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oubliette_model::{ApiKey, ProjectId, WorkspaceId};
use oubliette_runtime::{ContainerId, ContainerState};
use oubliette_store::Project;
use oubliette_wire::Supervise;

use super::link::Link;
use super::{Place, Plan, Stream};
use crate::{Engine, EngineError, Incoming, Result};

/// A container that was started has its supervisor call within this time.
const FIRST_CALL: Duration = Duration::from_secs(20);
/// One that ran before the server did; past it, it is started anew, and what runs in it is lost.
const NEXT_CALL: Duration = Duration::from_secs(15);
/// How long processes may take to end when whoever started the server leaves.
const LEAVING: Duration = Duration::from_millis(500);

/// Whether a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Running,
    Stopped,
}

impl Engine {
    /// Whether a supervisor shows the key of the container at whose door it is.
    pub async fn knows(&self, container: &ContainerId, hello: &Supervise) -> Result<bool> {
        let known = self.store().container(container.as_str()).await?;
        let key = hello
            .container_key
            .parse::<ApiKey>()
            .ok()
            .map(|key| key.hash());
        let genuine = known.is_some_and(|known| Some(known.key) == key);
        Ok(genuine && hello.container_id == container.as_str())
    }

    /// Serves a supervisor that has shown its key, to its end.
    pub async fn supervise(
        &self,
        container: &ContainerId,
        hello: Supervise,
        stream: Box<dyn Stream>,
        rest: Vec<u8>,
    ) {
        self.resume_dialogues(container, &hello).await;
        self.containers()
            .supervised(container, hello, stream, rest)
            .await;
    }

    /// Hands a connection for bytes to whoever asked for it.
    pub fn deliver_stream(&self, container: &ContainerId, stream_id: &str, incoming: Incoming) {
        self.containers().deliver(container, stream_id, incoming);
    }

    /// Where each container has a directory with its socket.
    pub(super) fn doors_dir(&self) -> PathBuf {
        self.settings().data_dir.join("run").join("c")
    }

    pub(super) fn relay_dir(&self, id: &ContainerId) -> Result<PathBuf> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        let parent = self.doors_dir();
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&parent)?;
        let directory = parent.join(id.as_str());
        std::fs::create_dir_all(&directory)?;
        // Ids inside a container are not ours; its parent keeps everybody else out.
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755))?;
        Ok(directory)
    }

    /// The container of a workspace, running, with its supervisor on the line; whether it was
    /// started for this.
    pub(crate) async fn ensure_container(
        &self,
        project: &Project,
        workspace: &WorkspaceId,
    ) -> Result<(ContainerId, Arc<Link>, bool)> {
        let place = Place::of(project, workspace);
        let id = place.container();
        let containers = self.containers();
        let runtime = containers.runtime().await?;
        let turn = containers.turn(&id);
        let _turn = turn.lock().await;
        let current = containers.link_of(&id).borrow().clone();
        if let Some(link) = current.filter(|link| link.is_open()) {
            return Ok((id, link, false));
        }
        if runtime
            .inspect(&id)
            .await?
            .is_some_and(|status| status.state == ContainerState::Running)
        {
            self.open_door(&id).await?;
            self.keep_channel(&id).await?;
            if let Ok(link) = containers.link(&id, NEXT_CALL).await {
                return Ok((id, link, false));
            }
            tracing::warn!(container = %id, "runs and does not answer: starting it anew");
            runtime.remove(&id).await?;
        }
        let plan = Plan {
            project,
            id: id.clone(),
            mounts: None,
            place,
            users_of: None,
        };
        let link = self.bring_up(plan).await?;
        Ok((id, link, true))
    }

    /// Makes a container and starts it. Whoever does has its turn.
    pub(crate) async fn bring_up(&self, plan: Plan<'_>) -> Result<Arc<Link>> {
        let runtime = self.containers().runtime().await?;
        let spec = self.specify(plan).await?;
        let id = &spec.id;
        runtime.create(&spec).await?;
        runtime.start(id).await?;
        self.keep_channel(id).await?;
        match self.containers().link(id, FIRST_CALL).await {
            Ok(link) => Ok(link),
            Err(_) => {
                let said = runtime.logs(id, 20).await.unwrap_or_default();
                let _ = runtime.stop(id, Duration::ZERO).await;
                Err(EngineError::Failed(format!(
                    "the container started and does not answer; it said: {}",
                    said.trim()
                )))
            }
        }
    }

    /// Stops a container; whether it ran.
    pub(crate) async fn stop_container(&self, id: &ContainerId) -> Result<bool> {
        let turn = self.containers().turn(id);
        let _turn = turn.lock().await;
        self.stop_in_turn(id).await
    }

    /// Stops every container, with little grace: whoever started the server leaves.
    pub async fn stop_containers(&self) -> Result<()> {
        let runtime = self.containers().runtime().await?;
        for container in self.store().containers().await? {
            let Some(id) = ContainerId::new(container.id) else {
                continue;
            };
            let turn = self.containers().turn(&id);
            let _turn = turn.lock().await;
            let status = runtime.inspect(&id).await?;
            if status.is_some_and(|status| status.state == ContainerState::Running) {
                self.containers().stopping(&id);
                runtime.stop(&id, LEAVING).await?;
                self.containers().unlink(&id);
            }
        }
        Ok(())
    }

    pub(super) async fn stop_in_turn(&self, id: &ContainerId) -> Result<bool> {
        let runtime = self.containers().runtime().await?;
        let running = runtime
            .inspect(id)
            .await?
            .is_some_and(|status| status.state == ContainerState::Running);
        if running {
            let grace = Duration::from_secs(self.settings().containers.stop_grace_seconds);
            self.containers().stopping(id);
            runtime.stop(id, grace).await?;
            self.containers().unlink(id);
        }
        Ok(running)
    }

    pub(crate) async fn find_container(&self, id: &ContainerId) -> Result<Found> {
        if self.containers().is_linked(id) {
            return Ok(Found::Running);
        }
        let status = self.containers().runtime().await?.inspect(id).await?;
        Ok(match status.map(|status| status.state) {
            Some(ContainerState::Running) => Found::Running,
            _ => Found::Stopped,
        })
    }

    /// The containers a project has or had.
    pub(crate) async fn containers_of(&self, project: ProjectId) -> Result<Vec<ContainerId>> {
        let stored = self.store().containers_of(project).await?;
        let ids = stored.into_iter().map(|container| container.id);
        Ok(ids.filter_map(ContainerId::new).collect())
    }

    /// Removes everything a project has in the way of containers.
    pub(crate) async fn discard_containers(&self, project: ProjectId) -> Result<()> {
        for id in self.containers_of(project).await? {
            self.discard_container(&id).await?;
        }
        Ok(())
    }

    /// Removes a container and all that belongs to it.
    pub(crate) async fn discard_container(&self, id: &ContainerId) -> Result<()> {
        let turn = self.containers().turn(id);
        let _turn = turn.lock().await;
        self.discard_in_turn(id).await
    }

    pub(super) async fn discard_in_turn(&self, id: &ContainerId) -> Result<()> {
        if self.store().container(id.as_str()).await?.is_none() {
            return Ok(());
        }
        if let Ok(runtime) = self.containers().runtime().await {
            self.containers().stopping(id);
            runtime.remove(id).await?;
        }
        self.containers().unlink(id);
        if let Ok(doors) = self.containers().doors() {
            doors.close(id);
        }
        match std::fs::remove_dir_all(self.doors_dir().join(id.as_str())) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        // Last: whoever is cut off before finds the row, and does it all again.
        self.store().remove_container(id.as_str()).await?;
        self.containers().forget(id);
        Ok(())
    }
}
