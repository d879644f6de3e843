//! What a server that died leaves behind, and how the next one repairs it, in order.
//!
//! A container, session or request that cannot be repaired does not stop the others. It is tried again, with
//! pauses that grow up to a minute, until it succeeds or the engine stops. Three things are repaired where
//! they are used: leftover credential files of git when [`crate::git`] opens, commands without a caller when
//! their supervisor connects (`containers/supervise.rs`), and push bindings when a client reconnects.

use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;
use oubliette_model::{ProjectId, SessionId};
use oubliette_store::VisibleProjects;
use tokio::sync::SetOnce;

use crate::{Engine, Result};

const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct RecoveryState {
    /// When the relay began to let containers in. What was created since is not left over.
    relay_attached: SetOnce<Timestamp>,
    /// Set when the actors of all sessions with work to do run.
    sessions_recovered: SetOnce<()>,
}

impl Engine {
    /// Repairs what a dead server left behind, in this order. Steps 1 to 4 are done when this
    /// returns, before the first call; the others wait for what they need in the background.
    pub(crate) async fn recover(&self) -> Result<()> {
        // 1. Projects whose creation or deletion was interrupted.
        self.recover_projects().await?;
        // 2. Files that were moved to the trash and not yet deleted, and homes of deleted sessions.
        self.recover_trash().await?;
        // 3. Calls of callers' tools that wait for a response.
        self.callers().recover_requests().await?;
        // 4. Forks, which are undone, and rewinds, whose workspaces wait for their end.
        let rewinds = self.checkpoints().recover_unfinished().await;
        self.spawn_until_stopping(|engine| async move {
            // 5. Containers, once the relay lets them in and a runtime works.
            let attached_at = *engine.parts.recovery.relay_attached.wait().await;
            let containers = engine.containers();
            engine
                .retry("containers", || containers.recover(attached_at))
                .await;
            // 6. Rewinds, in containers.
            engine.checkpoints().finish_rewinds(rewinds);
            // 7. Sessions with work to do, once their containers can connect.
            engine.retry("sessions", || engine.recover_sessions()).await;
            // Only the first time counts.
            let _ = engine.parts.recovery.sessions_recovered.set(());
            tokio::join!(containers.stop_idle(), containers.measure_disk_usage());
        });
        self.spawn_until_stopping(|engine| async move {
            // 8. Runs of schedules, once the server runs schedules.
            let schedules = engine.schedules();
            schedules.wait_until_started().await;
            engine.retry("runs", || schedules.recover_runs()).await;
            schedules.run_scheduler().await;
        });
        Ok(())
    }

    /// Lets recovery go on to containers: the relay can let them in.
    pub(crate) fn set_relay_attached(&self) {
        // Only the first time counts.
        let _ = self.parts.recovery.relay_attached.set(self.now());
    }

    /// Waits until the actors of all sessions with work to do run.
    pub(crate) async fn wait_until_sessions_recovered(&self) {
        self.parts.recovery.sessions_recovered.wait().await;
    }

    async fn recover_projects(&self) -> Result<()> {
        for (id, state) in self.store().unfinished_projects().await? {
            tracing::info!(project = %id, ?state, "removing an unfinished project");
            if !self.store().project_containers(id).await?.is_empty() {
                self.projects().purge_in_background(id);
            } else if let Err(error) = self.discard_files_and_row(id).await {
                tracing::warn!(project = %id, %error, "could not remove an unfinished project");
                self.projects().purge_in_background(id);
            }
        }
        Ok(())
    }

    /// Frees the project's name without waiting until its files are deleted.
    async fn discard_files_and_row(&self, id: ProjectId) -> Result<()> {
        self.files().move_project_to_trash(id).await?;
        Ok(self.store().delete_project(id).await?)
    }

    async fn recover_trash(&self) -> Result<()> {
        let trash = self.files().trash_entries().await?;
        self.spawn_until_stopping(|engine| async move {
            engine.files().purge_trash(trash).await;
            if let Err(error) = engine.containers().recover_foreign_trash().await {
                tracing::warn!(%error, "could not remove deleted files of containers");
            }
            let sessions = engine.sessions();
            sessions.remove_orphaned_homes(VisibleProjects::All).await;
        });
        Ok(())
    }

    pub(crate) async fn recover_sessions(&self) -> Result<()> {
        let unfinished = self.store().unfinished_sessions().await?;
        let wake = |engine: Self, id: SessionId| async move {
            if let Some(session) = engine.store().session(id).await? {
                engine.sessions().wake(id, session.project_id);
            }
            Ok(())
        };
        self.repair_each("session", unfinished, wake).await;
        Ok(())
    }

    /// Repairs each item. A task of its own retries an item that fails.
    pub(crate) async fn repair_each<T, Fut>(
        &self,
        what: &'static str,
        items: impl IntoIterator<Item = T>,
        repair: impl Fn(Self, T) -> Fut + Copy + Send + Sync + 'static,
    ) where
        T: Debug + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        for item in items {
            if let Err(error) = repair(self.clone(), item.clone()).await {
                tracing::warn!(?item, %error, "could not recover the {what}; trying again");
                self.spawn_until_stopping(|engine| async move {
                    tokio::time::sleep(MIN_RETRY_DELAY).await;
                    let name = format!("{what} {item:?}");
                    engine
                        .retry(&name, || repair(engine.clone(), item.clone()))
                        .await;
                });
            }
        }
    }

    /// Repeats an attempt until it succeeds or the engine stops.
    pub(crate) async fn retry<Fut>(&self, what: &str, attempt: impl Fn() -> Fut)
    where
        Fut: Future<Output = Result<()>>,
    {
        let mut delay = MIN_RETRY_DELAY;
        while let Err(error) = attempt().await {
            tracing::warn!(what, %error, "recovery failed; trying again");
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = self.stopping() => return,
            }
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }
}

#[cfg(test)]
mod tests;
