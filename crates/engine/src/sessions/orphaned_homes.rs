//! Removes the homes of agents whose sessions were deleted.

use oubliette_store::VisibleProjects;

use super::Sessions;
use crate::Result;

const PAGE_PROJECTS: u32 = 100;

impl Sessions<'_> {
    /// Removes the homes of agents whose sessions no longer exist. What fails is left to the next start.
    pub(crate) async fn remove_orphaned_homes(self, projects: VisibleProjects) {
        if let Err(error) = self.try_remove_orphaned_homes(projects).await {
            tracing::warn!(%error, "could not remove the homes of deleted sessions");
        }
    }

    async fn try_remove_orphaned_homes(self, projects: VisibleProjects) -> Result<()> {
        let (store, files) = (self.engine.store(), self.engine.files());
        let mut after = None;
        loop {
            let page = store
                .projects(projects, after.as_deref(), PAGE_PROJECTS)
                .await?;
            for project in page.rows {
                // Listed before the store is asked: a session is stored before it has a home.
                for home in files.session_homes(project.id).await? {
                    if store.session(home.session).await?.is_some() {
                        continue;
                    }
                    let session = home.session;
                    if let Err(error) = files.remove_session_home(home).await {
                        tracing::warn!(%session, %error, "could not remove the home of an agent");
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}
