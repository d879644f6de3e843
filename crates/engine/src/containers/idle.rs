//! Stops containers that are no longer in use.

use std::time::{Duration, Instant};

use oubliette_runtime::ContainerId;

use super::Containers;
use crate::Result;

const MAX_POLL_INTERVAL: Duration = Duration::from_secs(15);

impl Containers<'_> {
    /// Stops idle containers until the engine ends.
    pub(crate) async fn stop_idle(self) {
        let idle_time = Duration::from_secs(self.engine.settings().containers.idle_seconds);
        loop {
            tokio::select! {
                () = tokio::time::sleep(MAX_POLL_INTERVAL.min(idle_time)) => {}
                () = self.engine.stopping() => return,
            }
            for id in self.idle_since(idle_time) {
                match self.stop_unless_in_use(&id).await {
                    Ok(true) => tracing::info!(container = %id, "stopped an idle container"),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(container = %id, %error, "could not stop an idle container");
                    }
                }
            }
        }
    }

    fn idle_since(self, idle_time: Duration) -> Vec<ContainerId> {
        let now = Instant::now();
        let usage = self.state().usage.lock();
        let idle = usage.iter().filter(|(_, it)| {
            let is_over = it.is_outdated || now.duration_since(it.last_used) >= idle_time;
            it.users == 0 && is_over
        });
        idle.map(|(id, _)| id.clone()).collect()
    }

    /// Stops a container unless it is in use, and returns whether it ran.
    async fn stop_unless_in_use(self, id: &ContainerId) -> Result<bool> {
        let _lock = self.state().lock_container(id).await;
        if self.state().is_in_use(id) {
            return Ok(false);
        }
        self.state().usage.lock().remove(id);
        self.stop_locked(id).await
    }
}
