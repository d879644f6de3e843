//! The official conformance suite of the protocol, both revisions, against two servers: the
//! product, and the product's transport with a handler that has all the suite asks for.
//!
//! The expected failures of each server are in a file beside this one, every line with its reason; an
//! expected failure that passes fails the test.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[macro_use]
extern crate oubliette_test_harness;

mod fixture;
mod proxy;
mod suite;
mod transport;

use support::Server;

use suite::Suite;
use transport::Transport;

/// Scenarios that the revisions have but do not require, and both servers pass.
const OPTIONAL_SCENARIOS: [(&str, &str); 2] = [
    ("2025-11-25", "server-session-lifecycle"),
    ("2026-07-28", "http-header-validation"),
];

/// Further scenarios that need a fixture.
const OPTIONAL_SCENARIOS_WITH_FIXTURE: [(&str, &str); 3] = [
    ("2025-11-25", "json-schema-2020-12"),
    ("2026-07-28", "json-schema-2020-12"),
    ("2026-07-28", "http-custom-header-server-validation"),
];

#[test(needs(conformance), multi_thread, limit = 600)]
async fn product_conforms_to_2025_11_25() {
    product("2025-11-25").await;
}

#[test(needs(conformance), multi_thread, limit = 600)]
async fn product_conforms_to_2026_07_28() {
    product("2026-07-28").await;
}

#[test(needs(conformance), multi_thread, limit = 600)]
async fn transport_conforms_to_2025_11_25() {
    transport("2025-11-25").await;
}

#[test(needs(conformance), multi_thread, limit = 600)]
async fn transport_conforms_to_2026_07_28() {
    transport("2026-07-28").await;
}

async fn product(revision: &str) {
    let suite = Suite::installed();
    let server = Server::start();
    let address = server.base().trim_start_matches("http://").parse().unwrap();
    let proxy = proxy::start(address, &server.admin_key()).await;
    suite.requirements(proxy, revision, "product").await;
    for (_, more) in OPTIONAL_SCENARIOS.iter().filter(|(of, _)| *of == revision) {
        suite.scenario(proxy, revision, more).await;
    }
}

async fn transport(revision: &str) {
    let suite = Suite::installed();
    let transport = Transport::start().await;
    let proxy = proxy::start(transport.address, &transport.key).await;
    suite.requirements(proxy, revision, "transport").await;
    let all = OPTIONAL_SCENARIOS
        .iter()
        .chain(&OPTIONAL_SCENARIOS_WITH_FIXTURE);
    for (_, more) in all.filter(|(of, _)| *of == revision) {
        suite.scenario(proxy, revision, more).await;
    }
}

fn main() -> std::process::ExitCode {
    oubliette_test_harness::main(&support::needs::SUITE)
}
