//! The example of the contributors' guide, which quotes this file: a runtime and its row.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oubliette_runtime::contract::{self, Fixture};
use oubliette_runtime::{
    Capabilities, Channel, ContainerId, ContainerSpec, ContainerStatus, DockerSettings,
    Enforcement, ImageSource, Networks, OpenedRuntime, Platform, ProbeFinding, Program, Progress,
    ProtectedPath, Result, RunState, Runtime, RuntimeChoice, RuntimeDriver, RuntimeError,
    RuntimeSettings, choose,
};
use parking_lot::Mutex;

// The row. In the crate it is `DRIVER` in `memory/driver.rs`, and `DRIVERS` lists it.
const MEMORY: RuntimeDriver = RuntimeDriver {
    name: "memory",
    about: "Remembers containers and runs nothing.",
    auto_on: &[Platform::Linux, Platform::MacOs],
    open,
    probe,
};

fn open(_: &RuntimeSettings) -> BoxFuture<'_, Result<OpenedRuntime>> {
    async { Ok(OpenedRuntime::new(Memory::new(), "memory 1.0")) }.boxed()
}

fn probe(_: &RuntimeSettings) -> BoxFuture<'_, Vec<ProbeFinding>> {
    async { vec![ProbeFinding::new(true, "memory: works everywhere")] }.boxed()
}

#[derive(Debug)]
struct Memory {
    capabilities: Capabilities,
    containers: Mutex<BTreeMap<ContainerId, ContainerStatus>>,
}

impl Memory {
    fn new() -> Self {
        let capabilities = Capabilities {
            name: MEMORY.name,
            images: false,
            networks: Networks {
                none: true,
                host: false,
                bridge: false,
                policy: false,
            },
            // Limits that are not enforced are reported, never passed over.
            memory_limit: Enforcement::NotEnforced,
            cpu_limit: Enforcement::NotEnforced,
            process_limit: Enforcement::NotEnforced,
            disk_limit: Enforcement::NotEnforced,
            host_sockets: true,
            notes: vec!["Nothing runs in its containers.".to_owned()],
        };
        Self {
            capabilities,
            containers: Mutex::default(),
        }
    }

    fn set_state(&self, id: &ContainerId, state: RunState) -> Result<()> {
        let mut containers = self.containers.lock();
        let status = containers.get_mut(id);
        status
            .ok_or_else(|| RuntimeError::NoContainer(id.to_string()))?
            .state = state;
        Ok(())
    }
}

#[async_trait]
impl Runtime for Memory {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<()> {
        let created = ContainerStatus {
            id: spec.id.clone(),
            project: spec.project.clone(),
            state: RunState::Created,
            memory_events: None,
            can_take_server_port: false,
        };
        let mut containers = self.containers.lock();
        let existing = containers.get(&spec.id);
        // The contract: a running container is left unchanged, any other is replaced.
        if existing.is_none_or(|status| status.state != RunState::Running) {
            containers.insert(spec.id.clone(), created);
        }
        Ok(())
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        self.set_state(id, RunState::Running)
    }

    async fn protect(&self, _: &ContainerId, _: &[ProtectedPath]) -> Result<()> {
        Ok(())
    }

    async fn stop(&self, id: &ContainerId, _grace: Duration) -> Result<()> {
        match self.set_state(id, RunState::Stopped) {
            Err(RuntimeError::NoContainer(_)) => Ok(()),
            other => other,
        }
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        self.containers.lock().remove(id);
        Ok(())
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        Ok(self.containers.lock().get(id).cloned())
    }

    async fn list(&self) -> Result<Vec<ContainerStatus>> {
        Ok(self.containers.lock().values().cloned().collect())
    }

    async fn logs(&self, id: &ContainerId, _lines: usize) -> Result<String> {
        match self.containers.lock().get(id) {
            Some(_) => Ok(String::new()),
            None => Err(RuntimeError::NoContainer(id.to_string())),
        }
    }

    async fn channel(&self, _: &ContainerId, _: &Program) -> Result<Box<dyn Channel>> {
        Err(RuntimeError::Unsupported(
            "the runtime `memory` has no channel".to_owned(),
        ))
    }

    async fn build_image(&self, _: &ImageSource, _: Progress<'_>) -> Result<String> {
        Err(RuntimeError::Unsupported(
            "the runtime `memory` has no images".to_owned(),
        ))
    }

    async fn take_ownership(&self, _: &Path, _: &Path) -> Result<bool> {
        Ok(false)
    }

    async fn remove_images(&self) -> Result<()> {
        Ok(())
    }
}

// `contract::check` runs the whole suite; this runtime starts no process and passes only one part.
#[tokio::test]
async fn the_runtime_is_chosen_by_its_row_and_passes_the_contract() -> Result<(), String> {
    const DRIVERS: &[RuntimeDriver] = &[MEMORY];
    let settings = RuntimeSettings {
        server_ports: Vec::new(),
        stop_only: false,
        data_dir: "/data".into(),
        launcher: "/usr/bin/oubliette".into(),
        docker: DockerSettings::default(),
    };
    let choice = RuntimeChoice::parse("memory", DRIVERS)?;
    let chosen = choose(choice, DRIVERS, &settings).await;
    let chosen = chosen.map_err(|error| error.to_string())?;
    assert_eq!(
        chosen.reason,
        "Using memory 1.0, because the configuration says `memory`."
    );
    let fixture = Fixture {
        image: ImageSource {
            build_args: Default::default(),
            name: "base".to_owned(),
            image: None,
            dockerfile: None,
        },
        client: "/usr/bin/oubliette-client".into(),
    };
    contract::check_part(&*chosen.runtime, &fixture, "records").await;
    Ok(())
}
