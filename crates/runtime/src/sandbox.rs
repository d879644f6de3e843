//! The embedded sandbox as a runtime: no daemon, no image.
//!
//! A container is a directory `DIR/run/s/<id>` with its spec, which is all that `start` needs, also
//! after the server was replaced.

use std::collections::HashMap;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oubliette_sandbox as sandbox;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedMutexGuard;

use crate::{
    Capabilities, Channel, ContainerId, ContainerSpec, Enforcement, ImageSource, Network, Networks,
    Program, Progress, Result, Runtime, RuntimeError, State, Status,
};

const RECORD: &str = "container.json";
const LOG: &str = "init.log";

/// Makes sandboxes.
#[derive(Debug)]
pub struct Sandbox {
    states: PathBuf,
    layers: PathBuf,
    launcher: PathBuf,
    method: sandbox::Method,
    capabilities: Capabilities,
    /// One change of a container at a time.
    turns: Mutex<HashMap<ContainerId, Arc<tokio::sync::Mutex<()>>>>,
}

/// What is remembered of a container between `create` and `remove`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    project: String,
    spec: sandbox::Spec,
}

impl Sandbox {
    /// Sandboxes of a data directory, or the sentence why there can be none. `launcher` is a binary
    /// that calls `oubliette_sandbox::launcher_main` first.
    pub fn open(home: &Path, launcher: &Path) -> Result<Self, String> {
        let scratch = home.join("run").join("probe");
        make_private(&scratch).map_err(|error| error.to_string())?;
        let probe = sandbox::probe(launcher, &scratch);
        let Some(method) = probe.method.clone() else {
            let why: Vec<String> = probe
                .items
                .iter()
                .filter(|item| !item.works)
                .map(|item| match &item.remedy {
                    Some(remedy) => format!("{}: {}; {remedy}", item.name, item.detail),
                    None => format!("{}: {}", item.name, item.detail),
                })
                .collect();
            return Err(format!(
                "the sandbox cannot be used here: {}",
                why.join("; ")
            ));
        };
        let states = home.join("run").join("s");
        settle(&states);
        Ok(Self {
            states,
            layers: home.join("layers"),
            launcher: launcher.to_owned(),
            method,
            capabilities: capabilities(&probe),
            turns: Mutex::default(),
        })
    }

    async fn turn(&self, id: &ContainerId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.entry(id.clone()).or_default().clone()
        };
        turn.lock_owned().await
    }

    async fn end(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let directory = self.state_dir(id);
        blocking(move || Ok(sandbox::running(&directory).map(|running| running.stop(grace))))
            .await?
            .transpose()
            .map(drop)
            .map_err(told)
    }

    fn state_dir(&self, id: &ContainerId) -> PathBuf {
        self.states.join(id.as_str())
    }

    fn record(&self, id: &ContainerId) -> Result<Option<Record>> {
        match std::fs::read(self.state_dir(id).join(RECORD)) {
            // What cannot be read cannot be started; it is made anew.
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn status(&self, id: &ContainerId) -> Result<Option<Status>> {
        let Some(record) = self.record(id)? else {
            return Ok(None);
        };
        let state = match sandbox::running(&self.state_dir(id)) {
            Some(running) if running.is_alive() => State::Running,
            // The log is made by the first start.
            _ if self.state_dir(id).join(LOG).exists() => State::Stopped,
            _ => State::Created,
        };
        Ok(Some(Status {
            id: id.clone(),
            project: record.project,
            state,
        }))
    }

    fn specify(&self, spec: &ContainerSpec) -> Result<sandbox::Spec> {
        let network = match spec.network {
            Network::None => sandbox::Network::None,
            Network::Host => sandbox::Network::Host,
            Network::Bridge => {
                return Err(RuntimeError::Unsupported(
                    "the sandbox has no bridge network; use `host` or `none`".to_owned(),
                ));
            }
        };
        let bind = |mount: &crate::Mount| sandbox::Bind {
            host: mount.host.clone(),
            inside: mount.inside.clone(),
            read_only: mount.read_only,
        };
        Ok(sandbox::Spec {
            id: spec.id.to_string(),
            state_dir: self.state_dir(&spec.id),
            layers_dir: self.layers.join(spec.id.as_str()),
            binds: spec.mounts.iter().map(bind).collect(),
            hostname: spec.hostname.clone(),
            network,
            limits: sandbox::Limits {
                memory_bytes: spec.limits.memory_bytes,
                cpus: spec.limits.cpus,
                processes: spec.limits.processes.map(u64::from),
            },
            users_of: spec.users_of.as_ref().map(ToString::to_string),
            nested: false,
            init: sandbox::Init {
                binary: spec.init.binary.clone(),
                inside: spec.init.inside.clone(),
                args: spec.init.args.clone(),
                env: spec.init.env.clone().into_iter().collect(),
            },
            method: self.method.clone(),
        })
    }
}

#[async_trait]
impl Runtime for Sandbox {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<()> {
        let _turn = self.turn(&spec.id).await;
        if self
            .status(&spec.id)?
            .is_some_and(|status| status.state == State::Running)
        {
            return Ok(());
        }
        let record = Record {
            project: spec.project.clone(),
            spec: self.specify(spec)?,
        };
        record.spec.validate().map_err(told)?;
        let directory = self.state_dir(&spec.id);
        let text = serde_json::to_vec(&record).map_err(RuntimeError::fault)?;
        blocking(move || {
            make_private(&directory)?;
            match std::fs::remove_file(directory.join(LOG)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // The environment of PID 1 is in it, and with it the container's key.
            let draft = directory.join(".draft");
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&draft)?;
            std::io::Write::write_all(&mut file, &text)?;
            file.sync_all()?;
            std::fs::rename(draft, directory.join(RECORD))
        })
        .await
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        let _turn = self.turn(id).await;
        let Some(record) = self.record(id)? else {
            return Err(RuntimeError::NoContainer(id.to_string()));
        };
        if self
            .status(id)?
            .is_some_and(|status| status.state == State::Running)
        {
            return Ok(());
        }
        let (launcher, layers) = (self.launcher.clone(), self.layers.clone());
        blocking(move || {
            make_private(&layers)?;
            Ok(sandbox::launch(&record.spec, &launcher))
        })
        .await?
        .map(drop)
        .map_err(told)
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let _turn = self.turn(id).await;
        self.end(id, grace).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        let _turn = self.turn(id).await;
        self.end(id, Duration::ZERO).await?;
        let (state, layers) = (self.state_dir(id), self.layers.join(id.as_str()));
        blocking(move || Ok(sandbox::remove(&state, &layers)))
            .await?
            .map_err(told)
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<Status>> {
        self.status(id)
    }

    async fn list(&self) -> Result<Vec<Status>> {
        let entries = match std::fs::read_dir(&self.states) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let ids = entries
            .flatten()
            .filter_map(|entry| ContainerId::new(entry.file_name().to_string_lossy().into_owned()));
        ids.filter_map(|id| self.status(&id).transpose()).collect()
    }

    async fn logs(&self, id: &ContainerId, lines: usize) -> Result<String> {
        if self.record(id)?.is_none() {
            return Err(RuntimeError::NoContainer(id.to_string()));
        }
        let path = self.state_dir(id).join(LOG);
        let text = match std::fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let all: Vec<&str> = text.lines().collect();
        Ok(all[all.len().saturating_sub(lines)..].join("\n"))
    }

    async fn channel(&self, _: &ContainerId, _: &Program) -> Result<Box<dyn Channel>> {
        Err(RuntimeError::Unsupported(
            "the sandbox has no channel and needs none: sockets of the host are mounted".to_owned(),
        ))
    }

    async fn build_image(&self, _: &ImageSource, _: Progress<'_>) -> Result<String> {
        Err(RuntimeError::Unsupported(
            "the sandbox has no images: it shows the host's own programs".to_owned(),
        ))
    }
}

fn capabilities(probe: &sandbox::Probe) -> Capabilities {
    let limit = |name: &str| match probe
        .items
        .iter()
        .any(|item| item.name == name && item.works)
    {
        true => Enforcement::Enforced,
        false => Enforcement::NotEnforced,
    };
    Capabilities {
        name: "sandbox",
        images: false,
        networks: Networks {
            none: true,
            host: true,
            bridge: false,
        },
        memory_limit: limit("memory_limit"),
        cpu_limit: limit("cpu_limit"),
        process_limit: limit("process_limit"),
        disk_limit: Enforcement::NotEnforced,
        host_sockets: true,
        notes: vec![
            "network `host` lets a container reach services on this machine's loopback address"
                .to_owned(),
            "`disk_mb` is measured and reported: bounding it takes a quota of the filesystem, which \
             the sandbox does not set up"
                .to_owned(),
        ],
    }
}

/// Clears what launches and stops left that were cut short.
fn settle(states: &Path) {
    for entry in std::fs::read_dir(states).into_iter().flatten().flatten() {
        if let Err(error) = sandbox::settle(&entry.path()) {
            tracing::warn!(sandbox = ?entry.file_name(), %error, "could not be settled");
        }
    }
}

fn make_private(directory: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

fn told(error: sandbox::Error) -> RuntimeError {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    RuntimeError::Failed(text)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T> {
    Ok(tokio::task::spawn_blocking(work)
        .await
        .map_err(RuntimeError::fault)??)
}
