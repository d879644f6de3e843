//! From nothing to a running container and back.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oubliette_model::{ApiKey, Network as Reach, ProjectId, WorkspaceId};
use oubliette_runtime::{
    ContainerId, ContainerSpec, ImageSource, Init, Limits, Mount, Network, Runtime, State, Status,
};
use oubliette_store::{Container, Project};
use oubliette_wire::Supervise;

use super::link::Link;
use super::{Stream, lock};
use crate::{Doors, Engine, EngineError, Incoming, Result};

/// A container that was started has its supervisor call within this time.
const FIRST_CALL: Duration = Duration::from_secs(20);
/// One that ran before the server did.
const NEXT_CALL: Duration = Duration::from_secs(5);
/// How often idle containers are looked for.
const ROUND: Duration = Duration::from_secs(15);
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
    /// Lets containers in, and settles what a server before this one left running.
    pub fn open_doors(&self, doors: Arc<dyn Doors>) {
        self.containers().set_doors(doors);
        let engine = self.clone();
        self.spawn(async move {
            tokio::select! {
                adopted = engine.adopt() => {
                    if let Err(error) = adopted {
                        tracing::warn!(%error, "containers could not be adopted");
                    }
                    if let Err(error) = engine.adopt_sessions().await {
                        tracing::warn!(%error, "sessions could not be adopted");
                    }
                    engine.stop_idle_ones().await;
                }
                () = engine.stopping() => {}
            }
        });
    }

    /// Opens the doors of containers that run, and removes those that belong to no project.
    async fn adopt(&self) -> Result<()> {
        let runtime = self.containers().runtime().await?;
        for status in runtime.list().await? {
            // One container that cannot be settled must not keep the others from it.
            if let Err(error) = self.adopt_one(&*runtime, &status).await {
                tracing::warn!(container = %status.id, %error, "could not be adopted");
            }
        }
        Ok(())
    }

    async fn adopt_one(&self, runtime: &dyn Runtime, status: &Status) -> Result<()> {
        if self.store().container(status.id.as_str()).await?.is_none() {
            tracing::info!(container = %status.id, "removing a container of no project");
            return Ok(runtime.remove(&status.id).await?);
        }
        if status.state == State::Running {
            let directory = self.relay_dir(&status.id)?;
            self.containers()
                .doors()?
                .open(&status.id, &directory)
                .await?;
            drop(self.containers().using(&status.id));
            tracing::info!(container = %status.id, "adopted");
        }
        Ok(())
    }

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
    pub fn deliver_stream(&self, stream_id: &str, incoming: Incoming) {
        self.containers().deliver(stream_id, incoming);
    }

    fn relay_dir(&self, id: &ContainerId) -> Result<PathBuf> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        let parent = self.settings().data_dir.join("run").join("c");
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
        let agents = self.settings().data_dir.join("agents");
        std::fs::create_dir_all(&agents)?;
        mounts.push(mount(agents, crate::agents::INSTALLED, true));
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

    /// The same, unless somebody uses it.
    async fn stop_if_unused(&self, project: ProjectId) -> Result<bool> {
        let id = id_of(project);
        let turn = self.containers().turn(&id);
        let _turn = turn.lock().await;
        if self.containers().is_used(&id) {
            return Ok(false);
        }
        lock(&self.containers().used).remove(&id);
        self.stop_in_turn(&id).await
    }

    async fn stop_in_turn(&self, id: &ContainerId) -> Result<bool> {
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
        if let Ok(doors) = self.containers().doors() {
            doors.close(&id);
        }
        self.containers().forget(&id);
        self.store().remove_container(id.as_str()).await?;
        let directory = self
            .settings()
            .data_dir
            .join("run")
            .join("c")
            .join(id.as_str());
        match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn stop_idle_ones(&self) {
        let patience = Duration::from_secs(self.settings().containers.idle_seconds);
        loop {
            tokio::select! {
                () = tokio::time::sleep(ROUND.min(patience)) => {}
                () = self.stopping() => return,
            }
            let now = Instant::now();
            let idle: Vec<ContainerId> = lock(&self.containers().used)
                .iter()
                .filter(|(_, used)| used.users == 0 && now.duration_since(used.since) >= patience)
                .map(|(id, _)| id.clone())
                .collect();
            for id in idle {
                let Ok(Some(container)) = self.store().container(id.as_str()).await else {
                    lock(&self.containers().used).remove(&id);
                    continue;
                };
                match self.stop_if_unused(container.project_id).await {
                    Ok(true) => tracing::info!(container = %id, "stopped, idle"),
                    Ok(false) => {}
                    Err(error) => tracing::warn!(container = %id, %error, "could not be stopped"),
                }
            }
        }
    }
}
