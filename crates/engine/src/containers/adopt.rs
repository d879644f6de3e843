//! What a server finds that one before it left: containers that run, doors of some that do not.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oubliette_runtime::{ContainerId, Runtime, State, Status};
use oubliette_store::Container;

use super::Place;
use crate::{Doors, Engine, Result};

/// How soon, and how seldom in the end, a runtime is asked again that did not answer.
const SOON: Duration = Duration::from_secs(2);
const SELDOM: Duration = Duration::from_secs(60);

impl Engine {
    /// Lets containers in, and settles what a server before this one left running.
    pub fn open_doors(&self, doors: Arc<dyn Doors>) {
        // Before the first door can be opened: one that is being made looks the same.
        if let Err(error) = self.clear_unfinished_doors() {
            tracing::warn!(%error, "unfinished doors could not be removed");
        }
        self.containers().set_doors(doors);
        let (engine, now) = (self.clone(), self.now());
        self.spawn(async move {
            tokio::select! {
                () = async {
                    engine.adopt_all(now).await;
                    if let Err(error) = engine.sessions().adopt().await {
                        tracing::warn!(%error, "sessions could not be adopted");
                    }
                    tokio::join!(engine.stop_idle_ones(), engine.measure_disks());
                } => {}
                () = engine.stopping() => {}
            }
        });
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

    /// Adopts as soon as there is a runtime that answers.
    async fn adopt_all(&self, before: Timestamp) {
        let mut pause = SOON;
        while let Err(error) = self.adopt(before).await {
            tracing::warn!(%error, "containers could not be adopted yet");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SELDOM);
        }
    }

    /// Opens the doors of containers that run, and removes those that belong to no project or
    /// workspace. What was made after `before` is not looked at: somebody is making it.
    async fn adopt(&self, before: Timestamp) -> Result<()> {
        let runtime = self.containers().any_runtime().await?;
        for status in runtime.list().await? {
            // One container that cannot be settled must not keep the others from it.
            if let Err(error) = self.adopt_one(&*runtime, &status, before).await {
                tracing::warn!(container = %status.id, %error, "could not be adopted");
            }
        }
        // Those whose workspace went while they did not run.
        for stored in self.store().containers().await? {
            let Some(id) = ContainerId::new(stored.id.as_str()) else {
                continue;
            };
            if stored.created_at < before
                && !self.has_place(&stored).await?
                && let Err(error) = self.discard_container(&id).await
            {
                tracing::warn!(container = %id, %error, "could not be removed");
            }
        }
        for id in self.door_names()?.into_iter().filter_map(ContainerId::new) {
            if let Err(error) = self.clear_door(&id).await {
                tracing::warn!(container = %id, %error, "its door could not be removed");
            }
        }
        Ok(())
    }

    async fn adopt_one(
        &self,
        runtime: &dyn Runtime,
        status: &Status,
        before: Timestamp,
    ) -> Result<()> {
        let turn = self.containers().turn(&status.id);
        let _turn = turn.lock().await;
        let Some(stored) = self.store().container(status.id.as_str()).await? else {
            tracing::info!(container = %status.id, "removing a container of no project");
            return Ok(runtime.remove(&status.id).await?);
        };
        if stored.created_at >= before {
            return Ok(());
        }
        if !self.has_place(&stored).await? {
            tracing::info!(container = %status.id, "removing a container of no workspace");
            return self.discard_in_turn(&status.id).await;
        }
        if status.state == State::Running {
            self.open_door(&status.id).await?;
            self.keep_channel(&status.id).await?;
            drop(self.containers().using(&status.id));
            tracing::info!(container = %status.id, "adopted");
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
