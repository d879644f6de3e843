//! The official conformance suite of the protocol, both revisions, against two servers: the
//! product, and the product's transport with a handler that has all the suite asks for.
//!
//! What each may fail is in a file beside this one, every line with its reason; a line that is no
//! longer true fails the test.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

mod fixture;
mod proxy;
mod suite;
mod transport;

use support::Server;

use suite::Suite;
use transport::Transport;

#[tokio::test(flavor = "multi_thread")]
async fn product_conforms_to_2025_11_25() {
    product("2025-11-25").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn product_conforms_to_2026_07_28() {
    product("2026-07-28").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transport_conforms_to_2025_11_25() {
    transport("2025-11-25").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transport_conforms_to_2026_07_28() {
    transport("2026-07-28").await;
}

async fn product(revision: &str) {
    let Some(suite) = Suite::installed() else {
        return;
    };
    let server = Server::start();
    let address = server.base().trim_start_matches("http://").parse().unwrap();
    let proxy = proxy::start(address, &server.admin_key()).await;
    suite.run(proxy, revision, "product").await;
}

async fn transport(revision: &str) {
    let Some(suite) = Suite::installed() else {
        return;
    };
    let transport = Transport::start().await;
    let proxy = proxy::start(transport.address, &transport.key).await;
    suite.run(proxy, revision, "transport").await;
}
