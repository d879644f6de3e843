//! Docker as if its engine ran in a virtual machine: the directory with the relay socket is not
//! mounted, and connections go through the engine.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oubliette_runtime::{
    Capabilities, Channel, ContainerId, ContainerSpec, ContainerStatus, Docker, ImageSource,
    Program, Progress, ProtectedPath, Result, RunState, Runtime,
};
use oubliette_wire::CLIENT_PATH;
use oubliette_wire::mux::{MuxSession, answer_challenge, hash_key};
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

#[derive(Debug)]
pub(crate) struct ChannelDocker {
    docker: Arc<Docker>,
    /// The suite's socket and the hash of the container's key.
    relays: Mutex<HashMap<ContainerId, (PathBuf, [u8; 32])>>,
    bridges: Mutex<HashMap<ContainerId, JoinHandle<()>>>,
}

impl ChannelDocker {
    pub(crate) fn new(docker: Docker) -> Self {
        Self {
            docker: Arc::new(docker),
            relays: Mutex::default(),
            bridges: Mutex::default(),
        }
    }
}

/// Forwards a container's connections to the suite while the container runs.
async fn bridge(docker: Arc<Docker>, id: ContainerId, socket: PathBuf, key: [u8; 32]) {
    let argv = [CLIENT_PATH, "carry"];
    let program = Program {
        argv: argv.map(str::to_owned).to_vec(),
        unset_env: vec!["OUBLIETTE_CONTAINER_KEY".to_owned()],
    };
    let is_running = async || {
        let status = docker.inspect(&id).await.unwrap();
        status.is_some_and(|status| status.state == RunState::Running)
    };
    while is_running().await {
        if let Ok(mut channel) = docker.channel(&id, &program).await
            && answer_challenge(&mut channel, &key).await.is_ok()
        {
            let (sender, mut arrivals) = mpsc::channel(64);
            let (_carrier, carrying) = MuxSession::new(channel, Some(sender));
            let receiving = async {
                while let Some(mut connection) = arrivals.recv().await {
                    let socket = socket.clone();
                    tokio::spawn(async move {
                        // The suite may not be listening, like a server that is stopped.
                        if let Ok(mut relay) = UnixStream::connect(socket).await {
                            let _ =
                                tokio::io::copy_bidirectional(&mut connection, &mut relay).await;
                        }
                    });
                }
            };
            tokio::select! {
                _ = carrying => {}
                () = receiving => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[async_trait]
impl Runtime for ChannelDocker {
    fn capabilities(&self) -> &Capabilities {
        self.docker.capabilities()
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<()> {
        let mut spec = spec.clone();
        let relay = Path::new("/mcp");
        let mount = spec.mounts.iter().find(|mount| mount.inside == relay);
        let socket = mount.unwrap().host.join("relay.sock");
        spec.mounts.retain(|mount| mount.inside != relay);
        let env = &mut spec.init.env;
        // One case starts a container without a key.
        let key = hash_key(
            env.get("OUBLIETTE_CONTAINER_KEY")
                .map_or("", String::as_str),
        );
        env.insert("OUBLIETTE_CARRIED".to_owned(), "1".to_owned());
        self.relays.lock().insert(spec.id.clone(), (socket, key));
        self.docker.create(&spec).await
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        self.docker.start(id).await?;
        let (socket, key) = self.relays.lock()[id].clone();
        let mut bridges = self.bridges.lock();
        if bridges.get(id).is_none_or(JoinHandle::is_finished) {
            let bridge = bridge(self.docker.clone(), id.clone(), socket, key);
            bridges.insert(id.clone(), tokio::spawn(bridge));
        }
        Ok(())
    }

    async fn protect(&self, id: &ContainerId, paths: &[ProtectedPath]) -> Result<()> {
        self.docker.protect(id, paths).await
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        self.docker.stop(id, grace).await?;
        if let Some(bridge) = self.bridges.lock().remove(id) {
            bridge.abort();
        }
        Ok(())
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        if let Some(bridge) = self.bridges.lock().remove(id) {
            bridge.abort();
        }
        self.docker.remove(id).await
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        self.docker.inspect(id).await
    }

    async fn list(&self) -> Result<Vec<ContainerStatus>> {
        self.docker.list().await
    }

    async fn logs(&self, id: &ContainerId, lines: usize) -> Result<String> {
        self.docker.logs(id, lines).await
    }

    async fn channel(&self, id: &ContainerId, program: &Program) -> Result<Box<dyn Channel>> {
        self.docker.channel(id, program).await
    }

    async fn build_image(&self, source: &ImageSource, progress: Progress<'_>) -> Result<String> {
        self.docker.build_image(source, progress).await
    }

    async fn take_ownership(&self, directory: &Path, client: &Path) -> Result<bool> {
        self.docker.take_ownership(directory, client).await
    }

    async fn remove_images(&self) -> Result<()> {
        self.docker.remove_images().await
    }
}
