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
mod task_tools;
mod transport;

use std::time::Duration;

use serde_json::json;
use support::{Legacy, Modern, Server, ServerOptions};

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

/// The scenarios about tasks that need no tool of which the product has nothing like it: one whose failure is an error
/// of the protocol, and those that ask the client for input.
const TASK_SCENARIOS: [&str; 3] = [
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
];

#[test(needs(conformance, sandbox), multi_thread, limit = 600)]
async fn waits_for_turns_conform_to_the_tasks_extension() {
    let suite = Suite::installed();
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    server.admin().project(task_tools::PROJECT).await;
    let address = server.base().trim_start_matches("http://").parse().unwrap();
    let translate = task_tools::translate;
    let proxy = proxy::start_translating(address, &server.admin_key(), translate).await;
    for scenario in TASK_SCENARIOS {
        suite.extension(proxy, Modern::VERSION, scenario).await;
    }
}

#[test(multi_thread)]
async fn a_call_that_panics_ends_no_other_call_and_no_session() {
    let transport = Transport::start().await;
    let url = format!("http://{}/mcp", transport.address);
    let modern = Modern::new(&url, &transport.key);
    let legacy = Legacy::connect(&url, &transport.key).await;
    let stream = legacy.stream().await;
    for _ in 0..3 {
        // The product's handler answers such a call with an error; this one does not.
        let unanswered = async {
            tokio::join!(
                modern.call("panic", json!({})),
                legacy.call("panic", json!({}))
            )
        };
        let _ = tokio::time::timeout(Duration::from_millis(500), unanswered).await;
        let text = "This is a simple text response for testing.";
        for reply in [
            modern.call("test_simple_text", json!({})).await,
            legacy.call("test_simple_text", json!({})).await,
        ] {
            let content = &reply.body["result"]["content"][0];
            assert_eq!(content["text"], text, "{}", reply.text);
        }
    }
    assert_eq!(stream.status(), 200);
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
