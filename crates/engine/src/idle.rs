//! Whether anything is at work, for a server that ends itself when nothing is.

use crate::{Engine, Result};

impl Engine {
    /// Whether a session has a live agent or work to do, a container runs, or a schedule will run.
    pub async fn has_work(&self) -> Result<bool> {
        Ok(self.sessions().count_tasks() > 0
            || self.containers().count_connected() > 0
            || self.store().next_due_at().await?.is_some())
    }
}
