//! Deleted files that the server's user may not remove.

use std::time::Duration;

use super::Containers;
use crate::Result;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_ATTEMPTS: u32 = 3;

impl Containers<'_> {
    /// Does what [`Self::purge_foreign_trash`] does as soon as a runtime is available.
    pub(crate) async fn recover_foreign_trash(self) -> Result<()> {
        self.state().available_runtime().await?;
        self.purge_foreign_trash().await.map(drop)
    }

    /// Lets the runtime give everything in the trash to the server's user, and removes it. False if
    /// the runtime can do nothing about it, or something is left.
    pub(crate) async fn purge_foreign_trash(self) -> Result<bool> {
        let (files, client) = (self.engine.files(), &self.engine.settings().client);
        let Ok(runtime) = self.runtime().await else {
            return Ok(false);
        };
        for _ in 0..MAX_ATTEMPTS {
            let trash = files.trash_entries().await?;
            if trash.is_empty() {
                return Ok(true);
            }
            if !runtime.take_ownership(&files.trash_dir(), client).await? {
                return Ok(false);
            }
            files.purge_trash(trash).await;
            if files.trash_entries().await?.is_empty() {
                return Ok(true);
            }
            // Something was moved there meanwhile.
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        Ok(false)
    }
}
