//! The way to containers into which no socket of ours can be mounted: a program that the runtime
//! runs in them connects us to their supervisor, and over that come all their connections.

use std::time::Duration;

use oubliette_runtime::{ContainerId, Program, State};
use oubliette_wire::mux::{MuxSession, answer_challenge};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::lock;
use super::making::{CLIENT, KEY};
use crate::{Engine, EngineError, Result};

/// A supervisor that was just started is there within this time.
const GREETING: Duration = Duration::from_secs(20);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Connections that came and were not looked at yet.
const WAITING: usize = 64;

impl Engine {
    /// Opens the door of a container: nobody comes through before it runs.
    pub(super) async fn open_door(&self, id: &ContainerId) -> Result<()> {
        let directory = self.relay_dir(id)?;
        let mounted = self.mounts_sockets().await?;
        let doors = self.containers().doors()?;
        Ok(doors.open(id, mounted.then_some(&*directory)).await?)
    }

    pub(super) async fn mounts_sockets(&self) -> Result<bool> {
        let runtime = self.containers().runtime().await?;
        Ok(runtime.capabilities().host_sockets)
    }

    /// Sees that a container that runs has its way to us, for as long as it runs.
    pub(super) async fn keep_channel(&self, id: &ContainerId) -> Result<()> {
        if self.mounts_sockets().await? {
            return Ok(());
        }
        let ended = CancellationToken::new();
        {
            let mut channels = lock(&self.containers().channels);
            if channels.get(id).is_some_and(|kept| !kept.is_cancelled()) {
                return Ok(());
            }
            channels.insert(id.clone(), ended.clone());
        }
        let (engine, id) = (self.clone(), id.clone());
        self.spawn(async move {
            tokio::select! {
                () = engine.renew_channel(&id) => {}
                () = ended.cancelled() => {}
                () = engine.stopping() => {}
            }
            ended.cancel();
        });
        Ok(())
    }

    /// Connects, and connects again, until the container does not run any more.
    async fn renew_channel(&self, id: &ContainerId) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.use_channel(id).await {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => tracing::debug!(container = %id, %error, "no channel"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let Ok(runtime) = self.containers().runtime().await else {
                return;
            };
            // An engine that does not answer may come back; one that says it is gone is believed.
            if let Ok(status) = runtime.inspect(id).await
                && status.is_none_or(|status| status.state != State::Running)
            {
                return;
            }
        }
    }

    /// Connects once, and serves what comes until the connection ends.
    async fn use_channel(&self, id: &ContainerId) -> Result<()> {
        let stored = self.store().container(id.as_str()).await?;
        let stored = stored.ok_or_else(|| EngineError::fault("a container without a key"))?;
        let runtime = self.containers().runtime().await?;
        let program = Program {
            argv: vec![CLIENT.to_owned(), "carry".to_owned()],
            without: vec![KEY.to_owned()],
        };
        let mut channel = runtime.channel(id, &program).await?;
        let introduced = answer_challenge(&mut channel, stored.key.as_bytes());
        tokio::time::timeout(GREETING, introduced)
            .await
            .map_err(EngineError::fault)??;
        tracing::debug!(container = %id, "channel open");
        let (sender, mut arrivals) = mpsc::channel(WAITING);
        let (_carrier, carrying) = MuxSession::new(channel, Some(sender));
        let doors = self.containers().doors()?;
        let receiving = async {
            while let Some(connection) = arrivals.recv().await {
                doors.admit(id, Box::new(connection));
            }
        };
        tokio::select! {
            ended = carrying => ended?,
            () = receiving => {}
        }
        Ok(())
    }
}
