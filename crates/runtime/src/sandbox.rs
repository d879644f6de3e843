//! The embedded sandbox as a runtime: no daemon, no image.
//!
//! A container is a directory `DIR/run/s/<id>` with its spec, which is all that `start` needs, also
//! after the server was replaced.

mod driver;
mod record;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oubliette_sandbox as sandbox;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

pub(crate) use driver::DRIVER;
use record::{Record, create_private_dir};

use crate::{
    Capabilities, Channel, ContainerId, ContainerSpec, ContainerStatus, Enforcement, ImageSource,
    Mount, Network, Networks, Program, Progress, ProtectedPath, Result, RunState, Runtime,
    RuntimeError,
};

/// The file that the sandbox writes the output of PID 1 to; the first start creates it.
const LOG_FILE: &str = "init.log";

/// Makes sandboxes.
#[derive(Debug)]
pub struct Sandbox {
    states_dir: PathBuf,
    layers_dir: PathBuf,
    launcher: PathBuf,
    method: sandbox::Method,
    capabilities: Capabilities,
    refused_ports: Vec<u16>,
    /// One change of a container at a time.
    locks: Mutex<HashMap<ContainerId, Arc<tokio::sync::Mutex<()>>>>,
}

impl Sandbox {
    /// Sandboxes of a data directory; the error says what is missing on this machine. `launcher` is
    /// a binary that calls `oubliette_sandbox::launcher_main` first. Blocks.
    pub fn open(data_dir: &Path, launcher: &Path) -> Result<Self> {
        let scratch = data_dir.join("run").join("probe");
        create_private_dir(&scratch)?;
        let probe = sandbox::probe(launcher, &scratch);
        let Some(method) = probe.method.clone() else {
            let failed = probe.items.iter().filter(|item| !item.works);
            let reasons: Vec<String> = failed.map(describe_item).collect();
            return Err(RuntimeError::Unsupported(format!(
                "the sandbox cannot be used here: {}",
                reasons.join("; ")
            )));
        };
        Ok(Self {
            method,
            capabilities: capabilities(&probe),
            ..Self::open_to_stop(data_dir, launcher)
        })
    }

    /// The sandboxes of a data directory where none can be started: without a probe, which needs space.
    fn open_to_stop(data_dir: &Path, launcher: &Path) -> Self {
        let probe = sandbox::Probe {
            method: None,
            items: Vec::new(),
        };
        let states_dir = data_dir.join("run").join("s");
        clean_up_interrupted(&states_dir);
        Self {
            states_dir,
            layers_dir: data_dir.join("layers"),
            launcher: launcher.to_owned(),
            method: sandbox::Method::default(),
            capabilities: capabilities(&probe),
            refused_ports: Vec::new(),
            locks: Mutex::default(),
        }
    }

    /// Containers that are started from now on cannot bind these TCP ports of the host.
    #[must_use]
    pub fn refuse_ports(mut self, ports: Vec<u16>) -> Self {
        self.refused_ports = ports;
        self
    }

    async fn lock(&self, id: &ContainerId) -> OwnedMutexGuard<()> {
        let lock = self.locks.lock().entry(id.clone()).or_default().clone();
        lock.lock_owned().await
    }

    /// Forgets the lock of a container that was removed, which the caller holds, unless others wait for
    /// it.
    fn forget_lock(&self, id: &ContainerId) {
        let mut locks = self.locks.lock();
        // The map and the caller. Others are added only while the map is locked.
        if locks
            .get(id)
            .is_some_and(|lock| Arc::strong_count(lock) <= 2)
        {
            locks.remove(id);
        }
    }

    async fn stop_running(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let state_dir = self.state_dir(id);
        run_blocking(move || {
            let running = sandbox::find_running(&state_dir);
            Ok(running.map(|running| running.stop(grace)))
        })
        .await?
        .transpose()
        .map(drop)
        .map_err(from_sandbox)
    }

    fn state_dir(&self, id: &ContainerId) -> PathBuf {
        self.states_dir.join(id.as_str())
    }

    fn status(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        let state_dir = self.state_dir(id);
        let Some(record) = Record::read(&state_dir)? else {
            return Ok(None);
        };
        let running = sandbox::find_running(&state_dir).filter(sandbox::RunningSandbox::is_alive);
        let memory_events = running
            .as_ref()
            .and_then(sandbox::RunningSandbox::memory_events);
        let state = match running {
            Some(_) => RunState::Running,
            _ if state_dir.join(LOG_FILE).exists() => RunState::Stopped,
            _ => RunState::Created,
        };
        let shares_ports = record.spec.network == sandbox::NetworkNamespace::Host;
        let mut refused = self.refused_ports.iter();
        let is_refused_all = refused.all(|port| record.refused_ports.contains(port));
        Ok(Some(ContainerStatus {
            id: id.clone(),
            project: record.project,
            can_take_server_port: state == RunState::Running && shares_ports && !is_refused_all,
            state,
            memory_events,
        }))
    }

    fn is_running(&self, id: &ContainerId) -> Result<bool> {
        let status = self.status(id)?;
        Ok(status.is_some_and(|status| status.state == RunState::Running))
    }

    fn sandbox_spec(&self, spec: &ContainerSpec) -> Result<sandbox::Spec> {
        let network = match spec.network {
            Network::None => sandbox::NetworkNamespace::Private,
            Network::Host => sandbox::NetworkNamespace::Host,
            Network::Policy => sandbox::NetworkNamespace::Policy,
            Network::Bridge => {
                return Err(RuntimeError::Unsupported(
                    "the sandbox has no bridge network; use `policy`, `host` or `none`".to_owned(),
                ));
            }
        };
        let bind = |mount: &Mount| sandbox::Bind {
            host: mount.host.clone(),
            inside: mount.inside.clone(),
            read_only: mount.read_only,
            owner: mount.owner,
        };
        Ok(sandbox::Spec {
            id: spec.id.to_string(),
            state_dir: self.state_dir(&spec.id),
            layers_dir: self.layers_dir.join(spec.id.as_str()),
            binds: spec.mounts.iter().map(bind).collect(),
            protected: Vec::new(),
            hostname: spec.hostname.clone(),
            network,
            refused_ports: Vec::new(),
            limits: sandbox::ResourceLimits {
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
        let _lock = self.lock(&spec.id).await;
        if self.is_running(&spec.id)? {
            return Ok(());
        }
        let record = Record {
            project: spec.project.clone(),
            spec: self.sandbox_spec(spec)?,
            protected: spec.protected.iter().map(protected_path).collect(),
            refused_ports: Vec::new(),
        };
        record.spec.validate().map_err(from_sandbox)?;
        let state_dir = self.state_dir(&spec.id);
        run_blocking(move || {
            create_private_dir(&state_dir)?;
            match std::fs::remove_file(state_dir.join(LOG_FILE)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            record.write(&state_dir)
        })
        .await
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        let _lock = self.lock(id).await;
        let Some(mut record) = Record::read(&self.state_dir(id))? else {
            return Err(RuntimeError::NoContainer(id.to_string()));
        };
        if self.is_running(id)? {
            return Ok(());
        }
        record.refused_ports.clone_from(&self.refused_ports);
        let (launcher, layers_dir) = (self.launcher.clone(), self.layers_dir.clone());
        let state_dir = self.state_dir(id);
        run_blocking(move || {
            record.write(&state_dir)?;
            record.spec.refused_ports = std::mem::take(&mut record.refused_ports);
            record.spec.protected = std::mem::take(&mut record.protected);
            create_private_dir(&layers_dir)?;
            Ok(sandbox::launch(&record.spec, &launcher))
        })
        .await?
        .map(drop)
        .map_err(from_sandbox)
    }

    async fn protect(&self, id: &ContainerId, paths: &[ProtectedPath]) -> Result<()> {
        let _lock = self.lock(id).await;
        let (state_dir, launcher) = (self.state_dir(id), self.launcher.clone());
        let paths: Vec<_> = paths.iter().map(protected_path).collect();
        let protected = run_blocking(move || Ok(sandbox::protect(&state_dir, &launcher, &paths)));
        protected.await?.map_err(|error| match error {
            sandbox::Error::NotRunning => RuntimeError::NoContainer(id.to_string()),
            sandbox::Error::CannotProtect => RuntimeError::Unsupported(error.to_string()),
            other => from_sandbox(other),
        })
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let _lock = self.lock(id).await;
        self.stop_running(id, grace).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        let _lock = self.lock(id).await;
        self.stop_running(id, Duration::ZERO).await?;
        let (state_dir, layers_dir) = (self.state_dir(id), self.layers_dir.join(id.as_str()));
        run_blocking(move || Ok(sandbox::remove(&state_dir, &layers_dir)))
            .await?
            .map_err(from_sandbox)?;
        self.forget_lock(id);
        Ok(())
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        self.status(id)
    }

    async fn list(&self) -> Result<Vec<ContainerStatus>> {
        let entries = match std::fs::read_dir(&self.states_dir) {
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
        let state_dir = self.state_dir(id);
        if Record::read(&state_dir)?.is_none() {
            return Err(RuntimeError::NoContainer(id.to_string()));
        }
        let text = match std::fs::read(state_dir.join(LOG_FILE)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let all: Vec<&str> = text.lines().collect();
        Ok(all[all.len().saturating_sub(lines)..].join("\n"))
    }

    async fn channel(&self, _: &ContainerId, _: &Program) -> Result<Box<dyn Channel>> {
        Err(RuntimeError::Unsupported(
            "the sandbox has no channel and needs none: it mounts sockets of the host".to_owned(),
        ))
    }

    async fn take_ownership(&self, _: &Path, _: &Path) -> Result<bool> {
        Ok(false)
    }

    async fn remove_images(&self) -> Result<()> {
        Ok(())
    }

    async fn build_image(&self, _: &ImageSource, _: Progress<'_>) -> Result<String> {
        Err(RuntimeError::Unsupported(
            "the sandbox has no images: it shows the host's own programs".to_owned(),
        ))
    }
}

fn capabilities(probe: &sandbox::Probe) -> Capabilities {
    let limit = |name: &str| {
        let mut items = probe.items.iter();
        if items.any(|item| item.name == name && item.works) {
            Enforcement::Enforced
        } else {
            Enforcement::NotEnforced
        }
    };
    Capabilities {
        name: DRIVER.name,
        images: false,
        networks: Networks {
            none: true,
            host: true,
            bridge: false,
            policy: true,
        },
        memory_limit: limit("memory_limit"),
        cpu_limit: limit("cpu_limit"),
        process_limit: limit("process_limit"),
        disk_limit: Enforcement::NotEnforced,
        host_sockets: true,
        notes: vec![
            "network `host` lets a container reach services on this machine's loopback address"
                .to_owned(),
            "`disk_mb` is measured every 20 seconds: a project over it gets no new messages, and one a \
             quarter over it no commands, and its containers are stopped; no write is refused, which \
             would need a filesystem quota"
                .to_owned(),
        ],
    }
}

fn protected_path(path: &ProtectedPath) -> sandbox::ProtectedPath {
    sandbox::ProtectedPath {
        within: path.within.clone(),
        path: path.path.clone(),
    }
}

/// A finding of the probe as one line, with what would change it.
fn describe_item(item: &sandbox::ProbeItem) -> String {
    let remedy = item.remedy.iter().map(|remedy| format!("; {remedy}"));
    let remedy: String = remedy.collect();
    format!("{}: {}{remedy}", item.name, item.detail)
}

/// Removes what interrupted launches and stops left behind.
fn clean_up_interrupted(states_dir: &Path) {
    for entry in std::fs::read_dir(states_dir)
        .into_iter()
        .flatten()
        .flatten()
    {
        if let Err(error) = sandbox::clean_up(&entry.path()) {
            tracing::warn!(sandbox = ?entry.file_name(), %error, "failed to clean up a sandbox");
        }
    }
}

/// The whole chain of causes in one line.
fn from_sandbox(error: sandbox::Error) -> RuntimeError {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    RuntimeError::Failed(text)
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T> {
    Ok(tokio::task::spawn_blocking(work)
        .await
        .map_err(RuntimeError::fault)??)
}
