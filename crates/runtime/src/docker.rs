//! Containers of a Docker engine, or of Podman through the same interface.
//!
//! Everything made here bears the labels of its data directory, and only that is ever listed or
//! touched. Every call has a time in which it answers or fails.

mod build_context;
mod channel;
mod create_request;
mod disk_quota;
mod driver;
mod engine;
mod images;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
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

use crate::names::{CONTAINER_LABEL, DATA_DIR_LABEL, DataDirNames, PROJECT_LABEL};
use crate::{
    Capabilities, Channel, ContainerId, ContainerSpec, ContainerState, ContainerStatus,
    ImageSource, Program, Progress, Result, Runtime, RuntimeError,
};
use engine::{EngineClient, EngineEnv, QUERY_TIMEOUT, RETRY_INTERVAL, status_code, with_timeout};

/// For what makes or ends processes: with a hundred at once an engine takes half a minute.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// A name that is taken again and again is somebody's who does the same as we.
const MAX_CREATE_ATTEMPTS: usize = 5;
/// The end of the logs is what is wanted; more of it is no help.
const MAX_LOG_BYTES: usize = 256 << 10;

/// `[docker]`: how its containers are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DockerSettings {
    /// Whether what containers and the server say to each other goes through the engine even where a
    /// socket could be mounted.
    pub channel: bool,
}

/// A container engine that has answered once; it may be restarted at any time.
#[derive(Debug)]
pub struct Docker {
    engine: EngineClient,
    capabilities: Capabilities,
    names: DataDirNames,
}

impl Docker {
    /// Finds an engine: at `DOCKER_HOST` if that is set, else at the usual sockets of Docker and
    /// Podman.
    pub async fn connect(names: DataDirNames, settings: &DockerSettings) -> Result<Self> {
        let (engine, mut capabilities) = EngineClient::find(&EngineEnv::from_process()).await?;
        capabilities.host_sockets &= !settings.channel;
        Ok(Self {
            engine,
            capabilities,
            names,
        })
    }

    /// Which engine it is and where, as in `Docker 20.10.24 at /var/run/docker.sock`.
    pub fn description(&self) -> String {
        format!(
            "{} at {}",
            self.engine.about,
            self.engine.socket().display()
        )
    }

    async fn inspect_by_name(&self, name: &str) -> Result<Option<ContainerStatus>> {
        let look = || {
            let options = None::<InspectContainerOptions>;
            self.engine.api.inspect_container(name, options)
        };
        let found = match self.engine.query(look).await {
            Ok(found) => found,
            Err(error) if status_code(&error) == Some(404) => return Ok(None),
            Err(error) => return Err(self.engine.to_runtime_error(error)),
        };
        let labels = found.config.and_then(|config| config.labels);
        let state = found.state.and_then(|state| state.status);
        Ok(self.status_from_labels(&labels.unwrap_or_default(), state_from_inspect(state)))
    }

    /// A container by its labels; none if it is not ours.
    fn status_from_labels(
        &self,
        labels: &HashMap<String, String>,
        state: ContainerState,
    ) -> Option<ContainerStatus> {
        if labels.get(DATA_DIR_LABEL)? != self.names.hash() {
            return None;
        }
        Some(ContainerStatus {
            id: ContainerId::new(labels.get(CONTAINER_LABEL)?.as_str())?,
            project: labels.get(PROJECT_LABEL)?.clone(),
            state,
        })
    }

    /// Removes by name; without `force` only what does not run. Whether it is gone.
    async fn remove_container(&self, name: &str, force: bool) -> Result<bool> {
        let options = RemoveContainerOptionsBuilder::default()
            .force(force)
            // The volumes that the image asked for; what is mounted from the host stays.
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

    /// Asks again while the container is between two states: Podman refuses what Docker waits for.
    async fn retry_in_transition<F>(
        &self,
        limit: Duration,
        call: impl Fn() -> F + Send,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>> + Send,
    {
        let asking = async {
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
        with_timeout(limit, asking).await
    }

    async fn read_logs(&self, name: &str, lines: usize) -> Result<String, Error> {
        let options = LogsOptionsBuilder::default()
            .stdout(true)
            .stderr(true)
            .tail(&lines.to_string())
            .build();
        let mut output = std::pin::pin!(self.engine.api.logs(name, Some(options)));
        let mut bytes = Vec::new();
        while let Some(piece) = output.next().await {
            bytes.extend_from_slice(piece?.as_ref());
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
                Some(there) if there.state == ContainerState::Running => return Ok(()),
                // Not by force: it may have been started since.
                Some(_) => self.remove_container(&name, false).await?,
                None => false,
            };
            if !gone {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
        Err(RuntimeError::Failed(format!(
            "The name {name} stays taken by another container."
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
                // The engine also says so of a program that is not in the container.
                match self.inspect_by_name(&name).await? {
                    Some(_) => Err(self.engine.to_runtime_error(error)),
                    None => Err(RuntimeError::NoContainer(id.to_string())),
                }
            }
            Err(error) => Err(self.engine.to_runtime_error(error)),
        }
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
            // It ended between the engine's look at it and its signal.
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
                // Somebody else removes it; done is when it is gone.
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
        let found = self.engine.query(listing).await;
        let found = found.map_err(|error| self.engine.to_runtime_error(error))?;
        let ours = found.into_iter().filter_map(|one| {
            let state = one.state.map(state_from_listing);
            self.status_from_labels(
                &one.labels.unwrap_or_default(),
                state.unwrap_or(ContainerState::Stopped),
            )
        });
        Ok(ours.collect())
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
        // Why it could not be started is the engine's to say, not in what PID 1 wrote.
        let look = self
            .engine
            .api
            .inspect_container(&name, None::<InspectContainerOptions>);
        let found = with_timeout(QUERY_TIMEOUT, look).await.ok();
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

    async fn remove_images(&self) -> Result<()> {
        images::remove_all(&self.engine, &self.names).await
    }
}

/// Podman would make what is missing, as a directory of root's.
async fn check_mount_sources(spec: &ContainerSpec) -> Result<()> {
    let mounts = spec.mounts.iter().map(|mount| &mount.host);
    for path in mounts.chain([&spec.init.binary]) {
        if !tokio::fs::try_exists(path).await.unwrap_or(false) {
            return Err(RuntimeError::Failed(format!(
                "There is nothing at {} that could be mounted.",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Whether a container could not be made because of its name; Podman has no status for that.
fn is_name_conflict(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError {
            status_code,
            message,
        } => *status_code == 409 || message.contains("is already in use"),
        _ => false,
    }
}

fn state_from_inspect(state: Option<ContainerStateStatusEnum>) -> ContainerState {
    use ContainerStateStatusEnum as Engine;
    match state {
        Some(Engine::CREATED) => ContainerState::Created,
        Some(Engine::RUNNING | Engine::PAUSED | Engine::RESTARTING | Engine::STOPPING) => {
            ContainerState::Running
        }
        _ => ContainerState::Stopped,
    }
}

fn state_from_listing(state: ContainerSummaryStateEnum) -> ContainerState {
    use ContainerSummaryStateEnum as Engine;
    match state {
        Engine::CREATED => ContainerState::Created,
        Engine::RUNNING | Engine::PAUSED | Engine::RESTARTING | Engine::STOPPING => {
            ContainerState::Running
        }
        _ => ContainerState::Stopped,
    }
}
