//! Support for tests of the real binaries: a server to start, stop and kill, raw MCP clients, access to
//! installed clients and agents, and a model for the agents.
//!
//! Everything here fails by panicking: it runs only in tests and benchmarks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failure here is a failed test"
)]

mod agent_client;
pub mod agents;
mod binary;
pub mod clients;
mod containers;
mod docker;
mod docker_proxy;
mod file_server;
mod fresh_home;
mod leftovers;
mod legacy;
pub mod llm;
mod modern;
pub mod needs;
pub mod network;
pub mod process;
mod pty;
mod random;
pub mod relay;
mod reply;
mod rootless_docker;
mod runtimes;
pub mod schedules;
mod server;
mod sessions;
mod stalled_reader;

pub use agent_client::AgentClient;
pub use binary::{NO_AUTOSTART, binary, built, built_as, cli, run_cli, stderr, stdout};
pub use docker::userland;
pub use docker_proxy::{DockerProxy, DockerState};
pub use file_server::FileServer;
pub use fresh_home::{FreshHome, run};
pub use leftovers::{Leftovers, images, kill_containers};
pub use legacy::Legacy;
pub use llm::Llm;
pub use modern::Modern;
pub use pty::Pty;
pub use random::Random;
pub use relay::Relay;
pub use reply::Reply;
pub use rootless_docker::RootlessDocker;
pub use runtimes::{docker_options, runtime_name, server_with, server_with_git};
pub use server::{RunAs, Server, ServerOptions};
pub use sessions::event_types;
pub use stalled_reader::StalledReader;

use std::sync::Once;
use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;

/// A server sends something within this time. No long poll lasts as long.
const HTTP_READ_TIMEOUT: Duration = Duration::from_secs(100);
const HTTP_CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long `wait_for` waits. Nothing that works takes as long, however loaded the machine is.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// An HTTP client with a connection per request, so that none outlives its server.
pub fn http() -> reqwest::Client {
    http_builder().pool_max_idle_per_host(0).build().unwrap()
}

/// An HTTP client that keeps its connections, for measurements.
fn http_kept_alive() -> reqwest::Client {
    http_builder().build().unwrap()
}

fn http_builder() -> reqwest::ClientBuilder {
    static TLS: Once = Once::new();
    TLS.call_once(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .connect_timeout(scaled(HTTP_CONNECT_TIMEOUT))
        .read_timeout(scaled(HTTP_READ_TIMEOUT))
}

/// Checks again and again until a condition holds; false if it does not hold in time.
pub async fn eventually(limit: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let deadline = Instant::now() + scaled(limit);
    while !condition().await {
        if Instant::now() > deadline {
            return false;
        }
        pause().await;
    }
    true
}

/// Waits a moment before a condition is checked again.
pub async fn pause() {
    tokio::time::sleep(POLL_INTERVAL).await;
}

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold in time.
pub async fn wait_until(what: &str, condition: impl AsyncFnMut() -> bool) {
    assert!(
        eventually(WAIT_TIMEOUT, condition).await,
        "waited in vain for {what}"
    );
}

/// Waits for a value.
///
/// # Panics
/// If there is none in time.
pub async fn wait_for<T>(what: &str, mut value: impl AsyncFnMut() -> Option<T>) -> T {
    let mut found = None;
    wait_until(what, async || {
        found = value().await;
        found.is_some()
    })
    .await;
    found.unwrap()
}
