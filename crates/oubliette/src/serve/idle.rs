//! The end of a server that a command has started: when nothing is at work for a while.

use std::time::Duration;

use oubliette_engine::Engine;
use oubliette_server::ConnectionCounts;
use tokio::time::Instant;

use crate::home::{Home, ServerMode};

const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Returns when there was no client and no work for that long.
pub(super) async fn wait(
    engine: &Engine,
    connections: &ConnectionCounts,
    home: &Home,
    idle_time: Duration,
) {
    let interval = (idle_time / 10).min(MAX_CHECK_INTERVAL);
    let mut accepted = connections.accepted();
    let mut idle_since = Instant::now();
    loop {
        tokio::time::sleep(interval).await;
        // A store that cannot be read is no reason to end.
        let is_in_use = connections.accepted() != accepted
            || connections.open() > 0
            || engine.has_work().await.unwrap_or(true)
            || is_kept(home);
        if is_in_use {
            idle_since = Instant::now();
            accepted = connections.accepted();
        } else if idle_since.elapsed() >= idle_time {
            return;
        }
    }
}

/// Whether `oubliette up` has asked this server to stay.
fn is_kept(home: &Home) -> bool {
    let info = home.server_info();
    info.is_none_or(|info| info.mode != ServerMode::UntilIdle)
}
