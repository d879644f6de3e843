//! Containers of a Docker engine, or of Podman through the same interface.
//!
//! Every object that this driver creates has the labels of its data directory, and the driver lists
//! and changes no others. Every call has a timeout.

mod build_context;
mod channel;
mod create_request;
mod disk_quota;
mod driver;
mod engine;
mod images;
mod memory_events;
mod ownership;
mod process_user;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bollard::errors::Error;
use bollard::models::{ContainerStateStatusEnum, ContainerSummaryStateEnum};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
    LogsOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
    StopContainerOptionsBuilder,
};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use driver::DRIVER;

use crate::capabilities::NO_POLICY_NOTE;
use crate::names::{CONTAINER_LABEL, DATA_DIR_LABEL, DataDirNames, PROJECT_LABEL};
use crate::{
    Capabilities, Channel, ContainerId, ContainerSpec, ContainerStatus, ImageSource, Network,
    Program, Progress, ProtectedPath, Result, RunState, Runtime, RuntimeError, protected_mounts,
};
use engine::{EngineClient, EngineEnv, QUERY_TIMEOUT, RETRY_INTERVAL, status_code, with_timeout};

/// For calls that start or end processes: with a hundred at once an engine takes half a minute.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// If the name is taken again each time, another program is creating containers with it.
const MAX_CREATE_ATTEMPTS: usize = 5;
const MAX_LOG_BYTES: usize = 256 << 10;

/// The section `[docker]` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DockerSettings {
    /// Connects containers to the server through the engine even where a socket could be mounted.
    pub channel: bool,
}

/// A container engine that answered once; it may be restarted at any time.
#[derive(Debug)]
pub struct Docker {
    engine: EngineClient,
    capabilities: Capabilities,
    names: DataDirNames,
}

impl Docker {
    /// Finds an engine: at `DOCKER_HOST` if that is set, otherwise at the default sockets of Docker
    /// and Podman.
    pub async fn connect(names: DataDirNames, settings: &DockerSettings) -> Result<Self> {
        let (engine, mut capabilities) = EngineClient::find(&EngineEnv::from_process()).await?;
        capabilities.host_sockets &= !settings.channel;
        capabilities.networks.policy = capabilities.host_sockets;
        if !capabilities.networks.policy {
            capabilities.notes.push(NO_POLICY_NOTE.to_owned());
        }
        Ok(Self {
            engine,
            capabilities,
            names,
        })
    }

    /// The engine and its socket, for example `Docker 20.10.24 at /var/run/docker.sock`.
    pub fn description(&self) -> String {
        format!(
            "{} at {}",
            self.engine.version,
            self.engine.socket().display()
        )
    }

    async fn inspect_by_name(&self, name: &str) -> Result<Option<ContainerStatus>> {
        let inspect = || {
            let options = None::<InspectContainerOptions>;
            self.engine.api.inspect_container(name, options)
        };
        let found = match self.engine.query(inspect).await {
            Ok(found) => found,
            Err(error) if status_code(&error) == Some(404) => return Ok(None),
            Err(error) => return Err(self.engine.to_runtime_error(error)),
        };
        let labels = found.config.and_then(|config| config.labels);
        let pid = found.state.as_ref().and_then(|state| state.pid);
        let state = found.state.and_then(|state| state.status);
        let status =
            self.status_from_labels(&labels.unwrap_or_default(), state_from_inspect(state));
        Ok(status.map(|status| ContainerStatus {
            memory_events: memory_events::find(pid, found.id.as_deref()),
            ..status
        }))
    }

    /// None if the container does not belong to this data directory.
    fn status_from_labels(
        &self,
        labels: &HashMap<String, String>,
        state: RunState,
    ) -> Option<ContainerStatus> {
        if labels.get(DATA_DIR_LABEL)? != self.names.hash() {
            return None;
        }
        Some(ContainerStatus {
            id: ContainerId::new(labels.get(CONTAINER_LABEL)?.as_str())?,
            project: labels.get(PROJECT_LABEL)?.clone(),
            state,
            memory_events: None,
            can_take_server_port: false,
        })
    }

    /// Removes a container by name; without `force` only a stopped one. Returns whether it is gone.
    async fn remove_container(&self, name: &str, force: bool) -> Result<bool> {
        let options = RemoveContainerOptionsBuilder::default()
            .force(force)
            // Volumes that the image declares; directories mounted from the host stay.
            .v(true)
            .build();
        let removal = self.engine.api.remove_container(name, Some(options));
        match with_timeout(CHANGE_TIMEOUT, removal).await {
            Ok(()) => Ok(true),
            Err(error) => match status_code(&error) {
                Some(404) => Ok(true),
                Some(409) => Ok(false),
                _ => Err(self.engine.to_runtime_error(error)),
            },
        }
    }

    /// Retries while the container is between two states: Podman fails where Docker waits.
    async fn retry_in_transition<F>(
        &self,
        timeout: Duration,
        call: impl Fn() -> F + Send,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>> + Send,
    {
        let retrying = async {
            loop {
                match call().await {
                    Err(Error::DockerResponseServerError { message, .. })
                        if message.contains("container state improper") =>
                    {
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                    outcome => return outcome,
                }
            }
        };
        with_timeout(timeout, retrying).await
    }

    async fn read_logs(&self, name: &str, lines: usize) -> Result<String, Error> {
        let options = LogsOptionsBuilder::default()
            .stdout(true)
            .stderr(true)
            .tail(&lines.to_string())
            .build();
        let mut output = std::pin::pin!(self.engine.api.logs(name, Some(options)));
        let mut bytes = Vec::new();
        while let Some(chunk) = output.next().await {
            bytes.extend_from_slice(chunk?.as_ref());
            let excess = bytes.len().saturating_sub(MAX_LOG_BYTES);
            bytes.drain(..excess);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[async_trait]
impl Runtime for Docker {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<()> {
        if spec.network == Network::Policy && !self.capabilities.networks.policy {
            return Err(RuntimeError::Unsupported(
                "This engine has no network `policy`: no socket of this machine can be mounted into its \
                 containers (with `docker.channel`, and where the engine is on another machine); use `bridge` or \
                 `none`."
                    .to_owned(),
            ));
        }
        let spec = &protected_mounts::resolve(spec)?;
        let image = self.names.image_name(&spec.image)?;
        let body = create_request::build(spec, &image, &self.names, (&self.engine).into())?;
        let name = self.names.container_name(&spec.id);
        check_mount_sources(spec).await?;
        for _ in 0..MAX_CREATE_ATTEMPTS {
            let options = CreateContainerOptionsBuilder::default().name(&name).build();
            let creation = self
                .engine
                .api
                .create_container(Some(options), body.clone());
            match with_timeout(CHANGE_TIMEOUT, creation).await {
                Ok(_) => return Ok(()),
                Err(error) if is_name_conflict(&error) => {}
                Err(error) if status_code(&error) == Some(404) => {
                    return Err(RuntimeError::NoImage(image));
                }
                Err(error) => return Err(self.engine.to_runtime_error(error)),
            }
            let gone = match self.inspect_by_name(&name).await? {
                Some(existing) if existing.state == RunState::Running => return Ok(()),
                // Without force: it may have been started since.
                Some(_) => self.remove_container(&name, false).await?,
                None => false,
            };
            if !gone {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
        Err(RuntimeError::Failed(format!(
            "Another container keeps taking the name {name}."
        )))
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        let name = self.names.container_name(id);
        let start = || {
            let options = None::<StartContainerOptions>;
            self.engine.api.start_container(&name, options)
        };
        match self.retry_in_transition(CHANGE_TIMEOUT, start).await {
            Ok(()) => Ok(()),
            Err(error) if status_code(&error) == Some(404) => {
                // The engine also answers 404 if the program is not in the container.
                match self.inspect_by_name(&name).await? {
                    Some(_) => Err(self.engine.to_runtime_error(error)),
                    None => Err(RuntimeError::NoContainer(id.to_string())),
                }
            }
            Err(error) => Err(self.engine.to_runtime_error(error)),
        }
    }

    async fn protect(&self, _: &ContainerId, _: &[ProtectedPath]) -> Result<()> {
        Err(RuntimeError::Unsupported(
            "a running container gets no new mounts".to_owned(),
        ))
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let name = self.names.container_name(id);
        // The engine counts in seconds.
        let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
        let options = StopContainerOptionsBuilder::default()
            .t(i32::try_from(seconds).unwrap_or(i32::MAX))
            .build();
        let stop = || {
            let options = Some(options.clone());
            self.engine.api.stop_container(&name, options)
        };
        match self
            .retry_in_transition(CHANGE_TIMEOUT.saturating_add(grace), stop)
            .await
        {
            Ok(()) => Ok(()),
            Err(error) if status_code(&error) == Some(404) => Ok(()),
            // It ended after the engine had looked it up and before it sent the signal.
            Err(Error::DockerResponseServerError { message, .. })
                if message.contains("is not running") =>
            {
                Ok(())
            }
            Err(error) => Err(self.engine.to_runtime_error(error)),
        }
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        let name = self.names.container_name(id);
        let removing = async {
            while !self.remove_container(&name, true).await? {
                // Another call is removing it; wait until it is gone.
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Ok(())
        };
        tokio::time::timeout(CHANGE_TIMEOUT, removing)
            .await
            .unwrap_or_else(|_| Err(self.engine.to_runtime_error(Error::RequestTimeoutError)))
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        self.inspect_by_name(&self.names.container_name(id)).await
    }

    async fn list(&self) -> Result<Vec<ContainerStatus>> {
        let label = format!("{DATA_DIR_LABEL}={}", self.names.hash());
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&HashMap::from([("label", vec![label])]))
            .build();
        let listing = || self.engine.api.list_containers(Some(options.clone()));
        let listed = self
            .engine
            .query(listing)
            .await
            .map_err(|error| self.engine.to_runtime_error(error))?;
        let statuses = listed.into_iter().filter_map(|summary| {
            let state = summary.state.map(state_from_listing);
            self.status_from_labels(
                &summary.labels.unwrap_or_default(),
                state.unwrap_or(RunState::Stopped),
            )
        });
        Ok(statuses.collect())
    }

    async fn logs(&self, id: &ContainerId, lines: usize) -> Result<String> {
        let name = self.names.container_name(id);
        if lines == 0 {
            return Ok(String::new());
        }
        let read = with_timeout(QUERY_TIMEOUT, self.read_logs(&name, lines)).await;
        let mut text = match read {
            Ok(text) => text,
            Err(error) if status_code(&error) == Some(404) => {
                return Err(RuntimeError::NoContainer(id.to_string()));
            }
            Err(error) => return Err(self.engine.to_runtime_error(error)),
        };
        // PID 1 cannot write why it was not started; the engine knows.
        let inspection = self
            .engine
            .api
            .inspect_container(&name, None::<InspectContainerOptions>);
        let found = with_timeout(QUERY_TIMEOUT, inspection).await.ok();
        let error = found.and_then(|found| found.state?.error);
        if let Some(error) = error.filter(|error| !error.is_empty()) {
            text.push_str(&error);
            text.push('\n');
        }
        Ok(text)
    }

    async fn channel(&self, id: &ContainerId, program: &Program) -> Result<Box<dyn Channel>> {
        channel::open(&self.engine, &self.names.container_name(id), program).await
    }

    async fn build_image(&self, source: &ImageSource, progress: Progress<'_>) -> Result<String> {
        images::build_or_pull(&self.engine, &self.names, source, progress).await
    }

    async fn take_ownership(&self, directory: &Path, client: &Path) -> Result<bool> {
        self.give_to_server(directory, client).await
    }

    async fn remove_images(&self) -> Result<()> {
        images::remove_all(&self.engine, &self.names).await
    }
}

/// Fails if a path of the host is missing: Podman would create it as a directory of root's.
async fn check_mount_sources(spec: &ContainerSpec) -> Result<()> {
    let mounts = spec.mounts.iter().map(|mount| &mount.host);
    for path in mounts.chain([&spec.init.binary]) {
        if !tokio::fs::try_exists(path).await.unwrap_or(false) {
            return Err(RuntimeError::Failed(format!(
                "Cannot mount {}: it does not exist.",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Whether the container's name is in use; Podman has no status code for that.
fn is_name_conflict(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError {
            status_code,
            message,
        } => *status_code == 409 || message.contains("is already in use"),
        _ => false,
    }
}

fn state_from_inspect(state: Option<ContainerStateStatusEnum>) -> RunState {
    use ContainerStateStatusEnum as Engine;
    match state {
        Some(Engine::CREATED) => RunState::Created,
        Some(Engine::RUNNING | Engine::PAUSED | Engine::RESTARTING | Engine::STOPPING) => {
            RunState::Running
        }
        _ => RunState::Stopped,
    }
}

fn state_from_listing(state: ContainerSummaryStateEnum) -> RunState {
    use ContainerSummaryStateEnum as Engine;
    match state {
        Engine::CREATED => RunState::Created,
        Engine::RUNNING | Engine::PAUSED | Engine::RESTARTING | Engine::STOPPING => {
            RunState::Running
        }
        _ => RunState::Stopped,
    }
}
