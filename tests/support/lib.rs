//! What tests of the real binaries share: a server to start, stop and kill, raw MCP clients, the way
//! to real ones and to real agents, and a model for those.
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
mod chance;
pub mod clients;
mod docker;
mod engine;
mod legacy;
pub mod llm;
mod modern;
pub mod process;
mod pty;
pub mod relay;
mod reply;
mod runtimes;
pub mod schedules;
mod server;
mod sessions;
mod traces;
mod wanted;

pub use agent_client::AgentClient;
pub use binary::{binary, built, built_as, cli};
pub use chance::Chance;
pub use engine::{Engine, Mood};
pub use legacy::Legacy;
pub use llm::Llm;
pub use modern::Modern;
pub use pty::Pty;
pub use relay::Relay;
pub use reply::Reply;
pub use runtimes::{docker_options, mounted, runtime_name, runtimes, server_with};
pub use server::{Server, ServerOptions};
pub use sessions::kinds;
pub use traces::{Traces, images, kill_containers};

use std::sync::Once;
use std::time::{Duration, Instant};

/// An HTTP client as tests need it: a connection per request, so that none outlives its server.
pub fn http() -> reqwest::Client {
    static TLS: Once = Once::new();
    TLS.call_once(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .pool_max_idle_per_host(0)
        .build()
        .unwrap()
}

/// Asks again until the answer is yes, with a pause so that what is waited for gets on; false if
/// it stays no.
pub async fn eventually(limit: Duration, mut ask: impl AsyncFnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !ask().await {
        if Instant::now() > until {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}
