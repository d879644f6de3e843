//! Containers and sockets that an earlier server left behind.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use oubliette_runtime::{ContainerId, RunState};
use oubliette_store::Container;

use super::{ContainerScope, Containers, RelayListeners};
use crate::{Engine, Result};

impl Containers<'_> {
    /// Accepts connections of containers, and lets recovery go on to those an earlier server left running.
    pub fn accept_connections(self, listeners: Arc<dyn RelayListeners>) {
        // Before the first listener is opened: a directory that is being made looks the same.
        if let Err(error) = self.remove_unfinished_relay_dirs() {
            tracing::warn!(%error, "could not remove unfinished socket directories");
        }
        self.state().set_relay_listeners(listeners);
        self.engine.set_relay_attached();
    }

    fn remove_unfinished_relay_dirs(self) -> io::Result<()> {
        for name in self.relay_dir_names()? {
            if name.starts_with('.') {
                oubliette_trees::remove_tree(&self.relay_root().join(name))?;
            }
        }
        Ok(())
    }

    fn relay_dir_names(self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.relay_root()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    /// Listens for containers that run, and removes containers and socket directories without a project or
    /// workspace. Containers created after `before` are left alone: a call of this server is creating them.
    pub(crate) async fn recover(self, before: Timestamp) -> Result<()> {
        let runtime = self.state().available_runtime().await?;
        let mut ids: BTreeSet<ContainerId> = BTreeSet::new();
        ids.extend(runtime.list().await?.into_iter().map(|status| status.id));
        // Containers that did not run when their workspace was deleted.
        let stored = self.engine.store().containers().await?;
        ids.extend(stored.into_iter().filter_map(|it| ContainerId::new(it.id)));
        let recover = move |engine: Engine, id: ContainerId| async move {
            engine.containers().recover_container(&id, before).await
        };
        self.engine.repair_each("container", ids, recover).await;
        let names = self.relay_dir_names()?.into_iter();
        let remove = |engine: Engine, id: ContainerId| async move {
            engine.containers().remove_orphaned_relay_dir(&id).await
        };
        let directories = names.filter_map(ContainerId::new);
        self.engine
            .repair_each("socket directory", directories, remove)
            .await;
        Ok(())
    }

    async fn recover_container(self, id: &ContainerId, before: Timestamp) -> Result<()> {
        let runtime = self.state().available_runtime().await?;
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
        let status = runtime.inspect(id).await?;
        if let Some(status) = status.filter(|status| status.state == RunState::Running) {
            self.listen(id).await?;
            self.keep_channel(id).await?;
            // Its idle time starts now.
            drop(self.mark_in_use(id));
            if status.can_take_server_port {
                self.state().set_outdated(id, true);
                tracing::warn!(
                    container = %id,
                    "this container was started when the server had another port, and can take this one while no \
                     server runs; it is stopped when it is not in use"
                );
            }
            tracing::info!(container = %id, "recovered a container");
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
            oubliette_trees::remove_tree(&self.relay_root().join(id.as_str()))?;
            self.state().forget_container(id);
        }
        Ok(())
    }
}
