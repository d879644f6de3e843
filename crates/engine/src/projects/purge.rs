//! Removes the data of projects that are marked as deleted.

use oubliette_model::ProjectId;

use super::Projects;
use crate::Result;
use crate::containers::ContainerScope;

impl Projects<'_> {
    /// Removes the containers, files and row of a project, which must be hidden already.
    pub(crate) async fn purge(self, id: ProjectId) -> Result<()> {
        let containers = self.engine.containers();
        containers.remove_of_project(id).await?;
        // Waits for workspaces that are being created on the host. Later ones find no project.
        let default = ContainerScope::default_container_id(id);
        let _lock = self.engine.container_state().lock_container(&default).await;
        if let Err(error) = self.engine.files().remove_project(id).await
            && !containers.purge_foreign_trash().await?
        {
            return Err(error);
        }
        self.engine.checkpoints().forget_project(id);
        self.engine.parts.credentials.forget_project(id).await?;
        self.engine.network().remove_journal(id)?;
        self.engine.store().delete_project(id).await?;
        containers.forget_disk_usage(id);
        Ok(())
    }

    /// Purges a project in a task that retries until it succeeds.
    pub(crate) fn purge_in_background(self, id: ProjectId) {
        let engine = self.engine.clone();
        self.engine.spawn(async move {
            let purge = || engine.projects().purge(id);
            engine.retry(&format!("project {id}"), purge).await;
        });
    }
}
