//! Containers that nobody needs any more are stopped.

use std::time::{Duration, Instant};

use oubliette_runtime::ContainerId;

use super::lock;
use crate::{Engine, Result};

/// How often they are looked for.
const ROUND: Duration = Duration::from_secs(15);

impl Engine {
    /// Stops idle containers until the engine ends.
    pub(crate) async fn stop_idle_ones(&self) {
        let patience = Duration::from_secs(self.settings().containers.idle_seconds);
        loop {
            tokio::select! {
                () = tokio::time::sleep(ROUND.min(patience)) => {}
                () = self.stopping() => return,
            }
            for id in self.idle_ones(patience) {
                match self.stop_if_unused(&id).await {
                    Ok(true) => tracing::info!(container = %id, "stopped, idle"),
                    Ok(false) => {}
                    Err(error) => tracing::warn!(container = %id, %error, "could not be stopped"),
                }
            }
        }
    }

    fn idle_ones(&self, patience: Duration) -> Vec<ContainerId> {
        let now = Instant::now();
        let used = lock(&self.containers().used);
        let idle = used
            .iter()
            .filter(|(_, used)| used.users == 0 && now.duration_since(used.since) >= patience);
        idle.map(|(id, _)| id.clone()).collect()
    }

    /// Stops a container unless somebody uses it; whether it ran.
    async fn stop_if_unused(&self, id: &ContainerId) -> Result<bool> {
        let turn = self.containers().turn(id);
        let _turn = turn.lock().await;
        if self.containers().is_used(id) {
            return Ok(false);
        }
        lock(&self.containers().used).remove(id);
        self.stop_in_turn(id).await
    }
}
