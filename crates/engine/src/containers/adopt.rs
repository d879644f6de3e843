//! Containers and sockets that an earlier server left behind.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oubliette_runtime::{ContainerId, Runtime, State, Status};
use oubliette_store::Container;

use super::{ContainerScope, Containers, RelayListeners};
use crate::Result;

/// The first and the longest pause before a runtime that did not answer is asked again.
const FIRST_RETRY_INTERVAL: Duration = Duration::from_secs(2);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

impl Containers<'_> {
    /// Accepts connections of containers, and adopts what an earlier server left running.
    pub fn accept_connections(self, listeners: Arc<dyn RelayListeners>) {
        // Before the first listener is opened: a directory that is being made looks the same.
        if let Err(error) = self.remove_unfinished_relay_dirs() {
            tracing::warn!(%error, "could not remove unfinished socket directories");
        }
        self.state().set_relay_listeners(listeners);
        let (engine, now) = (self.engine.clone(), self.engine.now());
        self.engine.spawn(async move {
            let containers = engine.containers();
            let maintenance = async {
                containers.adopt_with_retry(now).await;
                if let Err(error) = engine.adopt_sessions().await {
                    tracing::warn!(%error, "could not adopt sessions");
                }
                tokio::join!(containers.stop_idle(), containers.measure_disk_usage());
            };
            tokio::select! {
                () = maintenance => {}
                () = engine.stopping() => {}
            }
        });
    }

    fn remove_unfinished_relay_dirs(self) -> io::Result<()> {
        for name in self.relay_dir_names()? {
            if name.starts_with('.') {
                fs::remove_dir_all(self.relay_dirs().join(name))?;
            }
        }
        Ok(())
    }

    fn relay_dir_names(self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.relay_dirs()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    /// Adopts containers as soon as a runtime answers.
    async fn adopt_with_retry(self, before: Timestamp) {
        let mut pause = FIRST_RETRY_INTERVAL;
        while let Err(error) = self.adopt_all(before).await {
            tracing::warn!(%error, "could not adopt containers yet");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY_INTERVAL);
        }
    }

    /// Listens for containers that run, and removes containers without a project or workspace.
    /// Containers created after `before` are left alone: a call of this server is creating them.
    async fn adopt_all(self, before: Timestamp) -> Result<()> {
        let runtime = self.state().available_runtime().await?;
        for status in runtime.list().await? {
            // A failure with one container must not keep the others from being adopted.
            if let Err(error) = self.adopt(&*runtime, &status, before).await {
                tracing::warn!(container = %status.id, %error, "could not adopt a container");
            }
        }
        // Containers that did not run when their workspace was deleted.
        for stored in self.engine.store().containers().await? {
            let Some(id) = ContainerId::new(stored.id.as_str()) else {
                continue;
            };
            if stored.created_at < before
                && !self.has_workspace(&stored).await?
                && let Err(error) = self.remove(&id).await
            {
                tracing::warn!(container = %id, %error, "could not remove a container");
            }
        }
        for id in self
            .relay_dir_names()?
            .into_iter()
            .filter_map(ContainerId::new)
        {
            if let Err(error) = self.remove_orphaned_relay_dir(&id).await {
                tracing::warn!(container = %id, %error, "could not remove a socket directory");
            }
        }
        Ok(())
    }

    async fn adopt(self, runtime: &dyn Runtime, status: &Status, before: Timestamp) -> Result<()> {
        let id = &status.id;
        let _lock = self.state().lock_container(id).await;
        let Some(stored) = self.engine.store().container(id.as_str()).await? else {
            tracing::info!(container = %id, "removing a container without a project");
            return Ok(runtime.remove(id).await?);
        };
        if stored.created_at >= before {
            return Ok(());
        }
        if !self.has_workspace(&stored).await? {
            tracing::info!(container = %id, "removing a container without a workspace");
            return self.remove_locked(id).await;
        }
        if status.state == State::Running {
            self.listen(id).await?;
            self.keep_channel(id).await?;
            // Its idle time starts now.
            drop(self.mark_in_use(id));
            tracing::info!(container = %id, "adopted a container");
        }
        Ok(())
    }

    /// Whether the project or workspace of a container exists. A container that only created a
    /// workspace has another id than the scope, and counts as one without.
    async fn has_workspace(self, stored: &Container) -> Result<bool> {
        if ContainerScope::of_stored(stored).container_id().as_str() != stored.id {
            return Ok(false);
        }
        match &stored.workspace_id {
            Some(id) => {
                let workspace = self.engine.store().workspace(stored.project_id, id);
                Ok(workspace.await?.is_some())
            }
            None => Ok(true),
        }
    }

    /// Removes the socket directory of a container that is not in the store.
    async fn remove_orphaned_relay_dir(self, id: &ContainerId) -> Result<()> {
        let _lock = self.state().lock_container(id).await;
        if self.engine.store().container(id.as_str()).await?.is_none() {
            fs::remove_dir_all(self.relay_dirs().join(id.as_str()))?;
            self.state().forget_container(id);
        }
        Ok(())
    }
}
