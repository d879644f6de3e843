//! Channels to containers into which no socket of the host can be mounted: the runtime runs a program
//! in the container, and all connections of the container travel over its input and output.

use std::path::PathBuf;
use std::time::Duration;

use oubliette_model::Network;
use oubliette_runtime::{ContainerId, Program, RunState};
use oubliette_store::Project;
use oubliette_wire::CLIENT_PATH;
use oubliette_wire::mux::{MuxSession, answer_challenge};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Containers;
use super::spec::CONTAINER_KEY_VARIABLE;
use crate::{EngineError, Result};

/// How long a supervisor that was just started may take to prove that it knows the key.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
const FIRST_RECONNECT_INTERVAL: Duration = Duration::from_millis(50);
const MAX_RECONNECT_INTERVAL: Duration = Duration::from_secs(2);
const MAX_QUEUED_CONNECTIONS: usize = 64;

impl Containers<'_> {
    /// Listens for the connections of a container, which may start later.
    pub(super) async fn listen(self, id: &ContainerId) -> Result<()> {
        let directory = self.make_relay_dir(id)?;
        let mounts_socket = self.mounts_sockets().await?;
        let listeners = self.state().relay_listeners()?;
        listeners
            .open(id, mounts_socket.then_some(&*directory))
            .await?;
        if mounts_socket {
            self.open_gate(id, directory).await?;
        }
        Ok(())
    }

    /// Has the gate take the connections of a container with the network `policy`.
    async fn open_gate(self, id: &ContainerId, directory: PathBuf) -> Result<()> {
        let Some(project) = self.project_of(id).await? else {
            return Ok(());
        };
        if self.network_setting(&project).await? == Network::Policy {
            let network = self.engine.network();
            network.register(id, &project, directory).await?;
        }
        Ok(())
    }

    /// The project of a container in the store.
    pub(crate) async fn project_of(self, id: &ContainerId) -> Result<Option<Project>> {
        let store = self.engine.store();
        match store.container(id.as_str()).await? {
            Some(stored) => Ok(store.project(stored.project_id).await?),
            None => Ok(None),
        }
    }

    pub(super) async fn mounts_sockets(self) -> Result<bool> {
        Ok(self.runtime().await?.capabilities().host_sockets)
    }

    /// Keeps a channel to a container open while it runs, if the runtime mounts no sockets.
    pub(super) async fn keep_channel(self, id: &ContainerId) -> Result<()> {
        if self.mounts_sockets().await? {
            return Ok(());
        }
        let ended = CancellationToken::new();
        {
            let mut channels = self.state().channels.lock();
            if channels.get(id).is_some_and(|ended| !ended.is_cancelled()) {
                return Ok(());
            }
            channels.insert(id.clone(), ended.clone());
        }
        let (engine, id) = (self.engine.clone(), id.clone());
        self.engine.spawn(async move {
            tokio::select! {
                () = engine.containers().reopen_channel(&id) => {}
                () = ended.cancelled() => {}
                () = engine.stopping() => {}
            }
            ended.cancel();
        });
        Ok(())
    }

    /// Opens a channel again and again until the container does not run any more.
    async fn reopen_channel(self, id: &ContainerId) {
        let mut pause = FIRST_RECONNECT_INTERVAL;
        loop {
            match self.serve_channel(id).await {
                Ok(()) => pause = FIRST_RECONNECT_INTERVAL,
                Err(error) => tracing::debug!(container = %id, %error, "no channel"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_RECONNECT_INTERVAL);
            let Ok(runtime) = self.runtime().await else {
                return;
            };
            // A runtime that does not answer proves nothing.
            if let Ok(status) = runtime.inspect(id).await
                && status.is_none_or(|status| status.state != RunState::Running)
            {
                return;
            }
        }
    }

    /// Opens a channel and serves the connections in it until it ends.
    async fn serve_channel(self, id: &ContainerId) -> Result<()> {
        let stored = self.engine.store().container(id.as_str()).await?;
        let stored = stored.ok_or_else(|| EngineError::fault("the container has no key"))?;
        let runtime = self.runtime().await?;
        let program = Program {
            argv: vec![CLIENT_PATH.to_owned(), "carry".to_owned()],
            unset_env: vec![CONTAINER_KEY_VARIABLE.to_owned()],
        };
        let mut channel = runtime.channel(id, &program).await?;
        let handshake = answer_challenge(&mut channel, stored.key.as_bytes());
        tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
            .await
            .map_err(EngineError::fault)??;
        tracing::debug!(container = %id, "channel open");
        let (sender, mut connections) = mpsc::channel(MAX_QUEUED_CONNECTIONS);
        let (_session, running) = MuxSession::new(channel, Some(sender));
        let listeners = self.state().relay_listeners()?;
        let admitting = async {
            while let Some(connection) = connections.recv().await {
                listeners.admit(id, Box::new(connection));
            }
        };
        tokio::select! {
            ended = running => ended?,
            () = admitting => {}
        }
        Ok(())
    }
}
