//! One container of the suite and its directories on the host.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oubliette_wire::CLIENT_PATH;
use tempfile::TempDir;

use super::{Fixture, RelayServer, Supervisor, within_timeout};
use crate::{
    ContainerId, ContainerLimits, ContainerSpec, ContainerStatus, Init, Mount, Network, RunState,
    Runtime,
};

pub(super) const GRACE: Duration = Duration::from_secs(1);

/// A container and the server that its supervisor connects to.
#[derive(Debug)]
pub struct TestContainer<'a> {
    pub runtime: &'a dyn Runtime,
    pub spec: ContainerSpec,
    pub server: RelayServer,
    directory: TempDir,
}

impl<'a> TestContainer<'a> {
    /// Makes the directories and the spec, but no container yet.
    pub fn new(runtime: &'a dyn Runtime, fixture: &Fixture) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut mounts = Vec::new();
        for name in ["workspace", "mcp"] {
            let host = directory.path().join(name);
            std::fs::create_dir(&host).unwrap();
            // Root in the container may be any user on the host.
            std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o777)).unwrap();
            mounts.push(Mount {
                host,
                inside: Path::new("/").join(name),
                read_only: false,
                owner: None,
            });
        }
        let id = format!("c-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        let env = [
            ("OUBLIETTE_CONTAINER_ID", id.as_str()),
            ("OUBLIETTE_CONTAINER_KEY", "key of the suite"),
        ];
        let networks = runtime.capabilities().networks;
        let spec = ContainerSpec {
            id: ContainerId::new(id.as_str()).unwrap(),
            project: "a-project".to_owned(),
            image: fixture.image.clone(),
            mounts,
            protected: Vec::new(),
            hostname: "a-host".to_owned(),
            network: if networks.none {
                Network::None
            } else {
                Network::Bridge
            },
            limits: ContainerLimits {
                memory_bytes: Some(512 << 20),
                cpus: Some(1.0),
                processes: Some(256),
                disk_bytes: Some(1 << 30),
            },
            users_of: None,
            init: Init {
                binary: fixture.client.clone(),
                inside: CLIENT_PATH.into(),
                args: vec!["init".to_owned()],
                env: env.map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
            },
        };
        Self {
            runtime,
            spec,
            server: RelayServer::open(&directory.path().join("mcp")),
            directory,
        }
    }

    pub async fn create_and_start(&mut self) -> Supervisor {
        self.runtime.create(&self.spec).await.unwrap();
        self.start().await
    }

    pub async fn start(&mut self) -> Supervisor {
        self.runtime.start(&self.spec.id).await.unwrap();
        self.server.supervisor().await
    }

    pub async fn stop(&self) {
        self.runtime.stop(&self.spec.id, GRACE).await.unwrap();
    }

    /// Removes the container and checks that the runtime has forgotten it.
    pub async fn remove(&self) {
        self.runtime.remove(&self.spec.id).await.unwrap();
        assert_eq!(self.status().await, None);
        let listed = self.runtime.list().await.unwrap();
        assert!(
            listed.iter().all(|status| status.id != self.spec.id),
            "{listed:?}"
        );
    }

    pub async fn status(&self) -> Option<ContainerStatus> {
        self.runtime.inspect(&self.spec.id).await.unwrap()
    }

    pub async fn state(&self) -> Option<RunState> {
        self.status().await.map(|status| status.state)
    }

    /// Waits until the container has exited.
    pub async fn wait_until_ended(&self) {
        within_timeout("the container's exit", async {
            while self.state().await == Some(RunState::Running) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// The host's path of a file in the workspace.
    pub fn workspace_path(&self, name: &str) -> PathBuf {
        self.directory.path().join("workspace").join(name)
    }

    /// The host's path of the directory with the relay socket.
    pub fn relay_dir(&self) -> PathBuf {
        self.directory.path().join("mcp")
    }

    pub fn env(&mut self) -> &mut BTreeMap<String, String> {
        &mut self.spec.init.env
    }
}
