//! Containers of a Docker engine, or of Podman through the same interface.
//!
//! Everything made here bears the labels of its data directory, and only that is ever listed or
//! touched. Every call has a time in which it answers or fails.

mod body;
mod channel;
mod context;
mod engine;
mod image;
mod layers;
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

use crate::home::{CONTAINER_LABEL, HOME_LABEL, Home, PROJECT_LABEL};
use crate::{
    Capabilities, Channel, ContainerId, ContainerSpec, ImageSource, Program, Progress, Result,
    Runtime, RuntimeError, State, Status,
};
use engine::{Engine, LOOK, PAUSE, Surroundings, status};

/// For what makes or ends processes: with a hundred at once an engine takes half a minute.
const WORK: Duration = Duration::from_secs(120);
/// A name that is taken again and again is somebody's who does the same as we.
const ATTEMPTS: usize = 5;
/// The end of the logs is what is wanted; more of it is no help.
const MOST_LOGS: usize = 256 << 10;

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
    engine: Engine,
    capabilities: Capabilities,
    home: Home,
}

impl Docker {
    /// Finds an engine: at `DOCKER_HOST` if that is set, else at the usual sockets of Docker and
    /// Podman.
    pub async fn connect(home: Home, settings: &DockerSettings) -> Result<Self> {
        let (engine, mut capabilities) = Engine::find(&Surroundings::read()).await?;
        capabilities.host_sockets &= !settings.channel;
        Ok(Self {
            engine,
            capabilities,
            home,
        })
    }

    /// Which engine it is and where, as in `Docker 20.10.24 at /var/run/docker.sock`.
    pub fn about(&self) -> String {
        format!(
            "{} at {}",
            self.engine.about,
            self.engine.socket().display()
        )
    }

    async fn find(&self, name: &str) -> Result<Option<Status>> {
        let look = || {
            let options = None::<InspectContainerOptions>;
            self.engine.api.inspect_container(name, options)
        };
        let found = match self.engine.look(look).await {
            Ok(found) => found,
            Err(error) if status(&error) == Some(404) => return Ok(None),
            Err(error) => return Err(self.engine.explain(error)),
        };
        let labels = found.config.and_then(|config| config.labels);
        let state = found.state.and_then(|state| state.status);
        Ok(self.status(&labels.unwrap_or_default(), state_of(state)))
    }

    /// A container by its labels; none if it is not ours.
    fn status(&self, labels: &HashMap<String, String>, state: State) -> Option<Status> {
        if labels.get(HOME_LABEL)? != self.home.hash() {
            return None;
        }
        Some(Status {
            id: ContainerId::new(labels.get(CONTAINER_LABEL)?.as_str())?,
            project: labels.get(PROJECT_LABEL)?.clone(),
            state,
        })
    }

    /// Removes by name; without `force` only what does not run. Whether it is gone.
    async fn take_away(&self, name: &str, force: bool) -> Result<bool> {
        let options = RemoveContainerOptionsBuilder::default()
            .force(force)
            // The volumes that the image asked for; what is mounted from the host stays.
            .v(true)
            .build();
        let removal = self.engine.api.remove_container(name, Some(options));
        match self.engine.ask(WORK, removal).await {
            Ok(()) => Ok(true),
            Err(error) => match status(&error) {
                Some(404) => Ok(true),
                Some(409) => Ok(false),
                _ => Err(self.engine.explain(error)),
            },
        }
    }

    /// Asks again while the container is between two states: Podman refuses what Docker waits for.
    async fn once_settled<F>(
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
                        tokio::time::sleep(PAUSE).await;
                    }
                    outcome => return outcome,
                }
            }
        };
        self.engine.ask(limit, asking).await
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
            let excess = bytes.len().saturating_sub(MOST_LOGS);
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
        let image = self.home.image(&spec.image)?;
        let body = body::of(spec, &image, &self.home, (&self.engine).into())?;
        let name = self.home.container(&spec.id);
        all_there(spec).await?;
        for _ in 0..ATTEMPTS {
            let options = CreateContainerOptionsBuilder::default().name(&name).build();
            let creation = self
                .engine
                .api
                .create_container(Some(options), body.clone());
            match self.engine.ask(WORK, creation).await {
                Ok(_) => return Ok(()),
                Err(error) if is_taken(&error) => {}
                Err(error) if status(&error) == Some(404) => {
                    return Err(RuntimeError::NoImage(image));
                }
                Err(error) => return Err(self.engine.explain(error)),
            }
            let gone = match self.find(&name).await? {
                Some(there) if there.state == State::Running => return Ok(()),
                // Not by force: it may have been started since.
                Some(_) => self.take_away(&name, false).await?,
                None => false,
            };
            if !gone {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Err(RuntimeError::Failed(format!(
            "The name {name} stays taken by another container."
        )))
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        let name = self.home.container(id);
        let start = || {
            let options = None::<StartContainerOptions>;
            self.engine.api.start_container(&name, options)
        };
        match self.once_settled(WORK, start).await {
            Ok(()) => Ok(()),
            Err(error) if status(&error) == Some(404) => {
                // The engine also says so of a program that is not in the container.
                match self.find(&name).await? {
                    Some(_) => Err(self.engine.explain(error)),
                    None => Err(RuntimeError::NoContainer(id.to_string())),
                }
            }
            Err(error) => Err(self.engine.explain(error)),
        }
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let name = self.home.container(id);
        // The engine counts in seconds.
        let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
        let options = StopContainerOptionsBuilder::default()
            .t(i32::try_from(seconds).unwrap_or(i32::MAX))
            .build();
        let stop = || {
            let options = Some(options.clone());
            self.engine.api.stop_container(&name, options)
        };
        match self.once_settled(WORK.saturating_add(grace), stop).await {
            Ok(()) => Ok(()),
            Err(error) if status(&error) == Some(404) => Ok(()),
            // It ended between the engine's look at it and its signal.
            Err(Error::DockerResponseServerError { message, .. })
                if message.contains("is not running") =>
            {
                Ok(())
            }
            Err(error) => Err(self.engine.explain(error)),
        }
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        let name = self.home.container(id);
        let removing = async {
            while !self.take_away(&name, true).await? {
                // Somebody else removes it; done is when it is gone.
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        tokio::time::timeout(WORK, removing)
            .await
            .unwrap_or_else(|_| Err(self.engine.explain(Error::RequestTimeoutError)))
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<Status>> {
        self.find(&self.home.container(id)).await
    }

    async fn list(&self) -> Result<Vec<Status>> {
        let label = format!("{HOME_LABEL}={}", self.home.hash());
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&HashMap::from([("label", vec![label])]))
            .build();
        let listing = || self.engine.api.list_containers(Some(options.clone()));
        let found = self.engine.look(listing).await;
        let found = found.map_err(|error| self.engine.explain(error))?;
        let ours = found.into_iter().filter_map(|one| {
            let state = one.state.map(listed_state);
            self.status(
                &one.labels.unwrap_or_default(),
                state.unwrap_or(State::Stopped),
            )
        });
        Ok(ours.collect())
    }

    async fn logs(&self, id: &ContainerId, lines: usize) -> Result<String> {
        let name = self.home.container(id);
        if lines == 0 {
            return Ok(String::new());
        }
        let read = self.engine.ask(LOOK, self.read_logs(&name, lines)).await;
        let mut text = match read {
            Ok(text) => text,
            Err(error) if status(&error) == Some(404) => {
                return Err(RuntimeError::NoContainer(id.to_string()));
            }
            Err(error) => return Err(self.engine.explain(error)),
        };
        // Why it could not be started is the engine's to say, not in what PID 1 wrote.
        let look = self
            .engine
            .api
            .inspect_container(&name, None::<InspectContainerOptions>);
        let found = self.engine.ask(LOOK, look).await.ok();
        let error = found.and_then(|found| found.state?.error);
        if let Some(error) = error.filter(|error| !error.is_empty()) {
            text.push_str(&error);
            text.push('\n');
        }
        Ok(text)
    }

    async fn channel(&self, id: &ContainerId, program: &Program) -> Result<Box<dyn Channel>> {
        channel::open(&self.engine, &self.home.container(id), program).await
    }

    async fn build_image(&self, source: &ImageSource, progress: Progress<'_>) -> Result<String> {
        image::make(&self.engine, &self.home, source, progress).await
    }

    async fn remove_images(&self) -> Result<()> {
        image::remove_all(&self.engine, &self.home).await
    }
}

/// Podman would make what is missing, as a directory of root's.
async fn all_there(spec: &ContainerSpec) -> Result<()> {
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
fn is_taken(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError {
            status_code,
            message,
        } => *status_code == 409 || message.contains("is already in use"),
        _ => false,
    }
}

fn state_of(state: Option<ContainerStateStatusEnum>) -> State {
    use ContainerStateStatusEnum as Engine;
    match state {
        Some(Engine::CREATED) => State::Created,
        Some(Engine::RUNNING | Engine::PAUSED | Engine::RESTARTING | Engine::STOPPING) => {
            State::Running
        }
        _ => State::Stopped,
    }
}

fn listed_state(state: ContainerSummaryStateEnum) -> State {
    use ContainerSummaryStateEnum as Engine;
    match state {
        Engine::CREATED => State::Created,
        Engine::RUNNING | Engine::PAUSED | Engine::RESTARTING | Engine::STOPPING => State::Running,
        _ => State::Stopped,
    }
}
