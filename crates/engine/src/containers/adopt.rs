//! What a server finds that one before it left: containers that run, doors of some that do not.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use oubliette_runtime::{ContainerId, State};
use oubliette_store::Container;

use super::Place;
use crate::{Doors, Engine, Result};

impl Engine {
    /// Lets containers in, and settles what a server before this one left running.
    pub fn open_doors(&self, doors: Arc<dyn Doors>) {
        // Before the first door can be opened: one that is being made looks the same.
        if let Err(error) = self.clear_unfinished_doors() {
            tracing::warn!(%error, "unfinished doors could not be removed");
        }
        self.containers().set_doors(doors);
        self.set_relay_attached();
    }

    fn clear_unfinished_doors(&self) -> io::Result<()> {
        for name in self.door_names()? {
            if name.starts_with('.') {
                fs::remove_dir_all(self.doors_dir().join(name))?;
            }
        }
        Ok(())
    }

    fn door_names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.doors_dir()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    /// Lets running containers connect, and removes containers and relay directories that belong to no
    /// project or workspace. Containers that were created after `before` are skipped.
    pub(crate) async fn recover_containers(&self, before: Timestamp) -> Result<()> {
        let runtime = self.containers().any_runtime().await?;
        let mut ids: BTreeSet<ContainerId> = BTreeSet::new();
        ids.extend(runtime.list().await?.into_iter().map(|status| status.id));
        // Containers that do not run and whose workspace was deleted.
        let stored = self.store().containers().await?;
        ids.extend(stored.into_iter().filter_map(|it| ContainerId::new(it.id)));
        let recover = move |engine: Self, id: ContainerId| async move {
            engine.recover_container(&id, before).await
        };
        self.repair_each("container", ids, recover).await;
        let directories = self.door_names()?.into_iter().filter_map(ContainerId::new);
        let clear = |engine: Self, id: ContainerId| async move { engine.clear_door(&id).await };
        self.repair_each("relay directory", directories, clear)
            .await;
        Ok(())
    }

    async fn recover_container(&self, id: &ContainerId, before: Timestamp) -> Result<()> {
        let runtime = self.containers().any_runtime().await?;
        let turn = self.containers().turn(id);
        let _turn = turn.lock().await;
        let Some(stored) = self.store().container(id.as_str()).await? else {
            tracing::info!(container = %id, "removing a container without a project");
            return Ok(runtime.remove(id).await?);
        };
        if stored.created_at >= before {
            return Ok(());
        }
        if !self.has_place(&stored).await? {
            tracing::info!(container = %id, "removing a container without a workspace");
            return self.discard_in_turn(id).await;
        }
        let status = runtime.inspect(id).await?;
        if status.is_some_and(|status| status.state == State::Running) {
            self.open_door(id).await?;
            self.keep_channel(id).await?;
            drop(self.containers().using(id));
            tracing::info!(container = %id, "recovered");
        }
        Ok(())
    }

    /// Whether a container is for a workspace that there is. One that a workspace was made in is
    /// not: it has another name.
    async fn has_place(&self, stored: &Container) -> Result<bool> {
        let place = Place::stored(stored);
        if place.container().as_str() != stored.id {
            return Ok(false);
        }
        match &stored.workspace_id {
            Some(id) => {
                let workspace = self.store().workspace(stored.project_id, id).await?;
                Ok(workspace.is_some())
            }
            None => Ok(true),
        }
    }

    /// Removes the door of a container that there is not.
    async fn clear_door(&self, id: &ContainerId) -> Result<()> {
        let turn = self.containers().turn(id);
        let _turn = turn.lock().await;
        if self.store().container(id.as_str()).await?.is_none() {
            fs::remove_dir_all(self.doors_dir().join(id.as_str()))?;
            self.containers().forget(id);
        }
        Ok(())
    }
}
