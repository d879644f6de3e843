//! From nothing to a running container and back.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oubliette_model::{ApiKey, Network as Reach, ProjectId, WorkspaceId};
use oubliette_runtime::{
    ContainerId, ContainerSpec, ImageSource, Init, Limits, Mount, Network, State,
};
use oubliette_store::{Container, Project};
use oubliette_wire::Supervise;

use super::Stream;
use super::link::Link;
use crate::{Engine, EngineError, Incoming, Result};

/// A container that was started has its supervisor call within this time.
const FIRST_CALL: Duration = Duration::from_secs(20);
/// One that ran before the server did; past it, it is started anew, and what runs in it is lost.
const NEXT_CALL: Duration = Duration::from_secs(15);
const CLIENT: &str = "/usr/local/bin/oubliette-client";

/// The container of a project.
pub(crate) fn id_of(project: ProjectId) -> ContainerId {
    ContainerId::from_bits(project.uuid().as_u128())
}

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

    /// The project's container, running, with its supervisor on the line; whether it was started
    /// for this.
    pub(crate) async fn ensure_container(
        &self,
        project: &Project,
    ) -> Result<(ContainerId, Arc<Link>, bool)> {
        let id = id_of(project.id);
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
            .is_some_and(|status| status.state == State::Running)
        {
            let directory = self.relay_dir(&id)?;
            containers.doors()?.open(&id, &directory).await?;
            if let Ok(link) = containers.link(&id, NEXT_CALL).await {
                return Ok((id, link, false));
            }
            tracing::warn!(container = %id, "runs and does not answer: starting it anew");
            runtime.remove(&id).await?;
        }
        let spec = self.specify(project, &id).await?;
        runtime.create(&spec).await?;
        runtime.start(&id).await?;
        match containers.link(&id, FIRST_CALL).await {
            Ok(link) => Ok((id, link, true)),
            Err(_) => {
                let said = runtime.logs(&id, 20).await.unwrap_or_default();
                let _ = runtime.stop(&id, Duration::ZERO).await;
                Err(EngineError::Failed(format!(
                    "the container started and does not answer; it said: {}",
                    said.trim()
                )))
            }
        }
    }

    /// Gives the container a new key and says what it is made of.
    async fn specify(&self, project: &Project, id: &ContainerId) -> Result<ContainerSpec> {
        let settings = self.settings();
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|e| EngineError::fault(e.to_string()))?;
        let key = ApiKey::from_random(random);
        let container = Container {
            id: id.to_string(),
            project_id: project.id,
            key: key.hash(),
            created_at: self.now(),
        };
        if !self.store().put_container(&container).await? {
            return Err(EngineError::project_not_found(project.id));
        }
        let directory = self.relay_dir(id)?;
        self.containers().doors()?.open(id, &directory).await?;
        let own = &project.settings;
        let kind = own
            .container_type
            .clone()
            .unwrap_or_else(|| "base".to_owned());
        let source = settings
            .container_types
            .get(&kind)
            .cloned()
            .unwrap_or_default();
        let env = BTreeMap::from([
            ("OUBLIETTE_CONTAINER_ID".to_owned(), id.to_string()),
            (
                "OUBLIETTE_CONTAINER_KEY".to_owned(),
                key.reveal().to_owned(),
            ),
        ]);
        Ok(ContainerSpec {
            id: id.clone(),
            project: project.id.to_string(),
            image: ImageSource {
                name: kind,
                image: source.image,
                dockerfile: source.dockerfile,
            },
            mounts: self.mounts(project, directory).await?,
            hostname: "oubliette".to_owned(),
            network: self.network(own.network).await?,
            limits: Limits {
                memory_bytes: Some(
                    u64::from(own.limits.memory_mb.unwrap_or(settings.limits.memory_mb)) << 20,
                ),
                cpus: Some(own.limits.cpus.unwrap_or(settings.limits.cpus)),
                processes: Some(
                    own.limits
                        .max_processes
                        .unwrap_or(settings.limits.max_processes),
                ),
            },
            init: Init {
                binary: settings.client.clone(),
                inside: PathBuf::from(CLIENT),
                args: vec!["init".to_owned()],
                env,
            },
        })
    }

    async fn network(&self, asked: Option<Reach>) -> Result<Network> {
        let runtime = self.containers().runtime().await?;
        let capabilities = runtime.capabilities();
        let can = capabilities.networks;
        let (network, possible) = match asked {
            Some(Reach::None) => (Network::None, can.none),
            Some(Reach::Host) => (Network::Host, can.host),
            Some(Reach::Bridge) => (Network::Bridge, can.bridge),
            None if can.bridge => (Network::Bridge, true),
            None => (Network::Host, can.host),
        };
        if possible {
            return Ok(network);
        }
        Err(EngineError::invalid(format!(
            "the runtime `{}` cannot give a container that network; `project_options` says what it \
             can",
            capabilities.name
        )))
    }

    async fn mounts(&self, project: &Project, relay: PathBuf) -> Result<Vec<Mount>> {
        let files = self.files();
        let workspace = files.workspace_dir(project.id, &WorkspaceId::default_one());
        let mount = |host: PathBuf, inside: &str, read_only: bool| Mount {
            host,
            inside: PathBuf::from(inside),
            read_only,
        };
        let mut mounts = vec![
            mount(workspace.clone(), "/workspace", false),
            mount(
                files.project_dir(project.id).join("workspaces"),
                "/workspaces",
                false,
            ),
            mount(files.home_dir(project.id).await?, "/root", false),
            // Read-only: a socket can be connected to, and nobody can put another in its place.
            mount(relay, "/mcp", true),
        ];
        let real_workspace = workspace.canonicalize()?;
        for path in &project.settings.protected_paths {
            // Only what is really inside: a link could lead anywhere.
            match workspace.join(path).canonicalize() {
                Ok(real) if real.starts_with(&real_workspace) => {
                    mounts.push(mount(real, &format!("/workspace/{path}"), true));
                }
                Ok(_) => {
                    return Err(EngineError::Failed(format!(
                        "the protected path `{path}` leads out of the workspace; take it out of \
                         `protected_paths` or remove the link"
                    )));
                }
                // There is nothing to protect yet.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        for path in &self.settings().containers.read_only_paths {
            let inside = path.clone();
            mounts.push(Mount {
                host: path.clone(),
                inside,
                read_only: true,
            });
        }
        Ok(mounts)
    }

    /// Stops a project's container; whether it ran.
    pub(crate) async fn stop_container(&self, project: ProjectId) -> Result<bool> {
        let id = id_of(project);
        let turn = self.containers().turn(&id);
        let _turn = turn.lock().await;
        self.stop_in_turn(&id).await
    }

    pub(super) async fn stop_in_turn(&self, id: &ContainerId) -> Result<bool> {
        let runtime = self.containers().runtime().await?;
        let running = runtime
            .inspect(id)
            .await?
            .is_some_and(|status| status.state == State::Running);
        if running {
            let grace = Duration::from_secs(self.settings().containers.stop_grace_seconds);
            runtime.stop(id, grace).await?;
            self.containers().unlink(id);
        }
        Ok(running)
    }

    pub(crate) async fn find_container(&self, project: ProjectId) -> Result<Found> {
        let id = id_of(project);
        let linked = self.containers().link_of(&id).borrow().clone();
        if linked.is_some_and(|link| link.is_open()) {
            return Ok(Found::Running);
        }
        let status = self.containers().runtime().await?.inspect(&id).await?;
        Ok(match status.map(|status| status.state) {
            Some(State::Running) => Found::Running,
            _ => Found::Stopped,
        })
    }

    /// Removes everything a project has in the way of containers.
    pub(crate) async fn discard_containers(&self, project: ProjectId) -> Result<()> {
        let id = id_of(project);
        let turn = self.containers().turn(&id);
        let _turn = turn.lock().await;
        if self.store().container(id.as_str()).await?.is_none() {
            return Ok(());
        }
        if let Ok(runtime) = self.containers().runtime().await {
            runtime.remove(&id).await?;
        }
        self.containers().unlink(&id);
        if let Ok(doors) = self.containers().doors() {
            doors.close(&id);
        }
        match std::fs::remove_dir_all(self.doors_dir().join(id.as_str())) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        // Last: whoever is cut off before finds the row, and does it all again.
        self.store().remove_container(id.as_str()).await?;
        self.containers().forget(&id);
        Ok(())
    }
}
