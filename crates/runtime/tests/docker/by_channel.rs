//! Docker as it is where its engine has a machine of its own: the directory with the relay socket is
//! not mounted, and what would go through it is carried by the engine.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oubliette_runtime::{
    Capabilities, Channel, ContainerId, ContainerSpec, Docker, ImageSource, Program, Progress,
    Result, Runtime, State, Status,
};
use oubliette_wire::mux::{MuxSession, answer_challenge, hash_key};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

#[derive(Debug)]
pub(crate) struct ByChannel {
    docker: Arc<Docker>,
    /// Where the suite listens, and the key of who may speak to it.
    relays: Mutex<HashMap<ContainerId, (PathBuf, [u8; 32])>>,
    carrying: Mutex<HashMap<ContainerId, JoinHandle<()>>>,
}

impl ByChannel {
    pub(crate) fn new(docker: Docker) -> Self {
        Self {
            docker: Arc::new(docker),
            relays: Mutex::default(),
            carrying: Mutex::default(),
        }
    }
}

/// Carries a container's connections to the suite for as long as it runs.
async fn bridge(docker: Arc<Docker>, id: ContainerId, socket: PathBuf, key: [u8; 32]) {
    let argv = ["/usr/local/bin/oubliette-client", "carry"];
    let program = Program {
        argv: argv.map(str::to_owned).to_vec(),
        without: vec!["OUBLIETTE_CONTAINER_KEY".to_owned()],
    };
    let is_running = async || {
        let status = docker.inspect(&id).await.unwrap();
        status.is_some_and(|status| status.state == State::Running)
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
                        // A suite that does not listen is a server that is away.
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
impl Runtime for ByChannel {
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
        // One case has a container that is told nothing.
        let key = env.get("OUBLIETTE_CONTAINER_KEY");
        let key = hash_key(key.map_or("", String::as_str));
        env.insert("OUBLIETTE_CARRIED".to_owned(), "1".to_owned());
        let relays = &self.relays;
        relays
            .lock()
            .unwrap()
            .insert(spec.id.clone(), (socket, key));
        self.docker.create(&spec).await
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        self.docker.start(id).await?;
        let (socket, key) = self.relays.lock().unwrap()[id].clone();
        let mut carrying = self.carrying.lock().unwrap();
        if carrying.get(id).is_none_or(JoinHandle::is_finished) {
            let bridging = bridge(self.docker.clone(), id.clone(), socket, key);
            carrying.insert(id.clone(), tokio::spawn(bridging));
        }
        Ok(())
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        self.docker.stop(id, grace).await?;
        if let Some(carrying) = self.carrying.lock().unwrap().remove(id) {
            carrying.abort();
        }
        Ok(())
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        if let Some(carrying) = self.carrying.lock().unwrap().remove(id) {
            carrying.abort();
        }
        self.docker.remove(id).await
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<Status>> {
        self.docker.inspect(id).await
    }

    async fn list(&self) -> Result<Vec<Status>> {
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

    async fn remove_images(&self) -> Result<()> {
        self.docker.remove_images().await
    }
}
