//! Removes the data of projects that are marked as deleted.

use std::time::Duration;

use oubliette_model::ProjectId;

use super::Projects;
use crate::Result;

const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

impl Projects<'_> {
    /// Removes the containers, files and row of a project, which must be hidden already.
    pub(super) async fn purge(self, id: ProjectId) -> Result<()> {
        self.engine.discard_containers(id).await?;
        self.engine.files().remove_project(id).await?;
        Ok(self.engine.store().erase(id).await?)
    }

    /// Purges a project in a task that retries until it succeeds.
    pub(crate) fn purge_in_background(self, id: ProjectId) {
        let engine = self.engine.clone();
        self.engine.spawn(async move {
            let mut delay = MIN_RETRY_DELAY;
            while let Err(error) = engine.projects().purge(id).await {
                tracing::warn!(project = %id, %error, "could not delete a project yet");
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = engine.stopping() => return,
                }
                delay = (delay * 2).min(MAX_RETRY_DELAY);
            }
        });
    }
}
