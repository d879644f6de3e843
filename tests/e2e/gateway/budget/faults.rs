//! The server or the gate is killed while calls with reservations are open.

use serde_json::Value;
use support::eventually;

use super::{Bench, COST, RESERVED, WAIT, ask};
use crate::gateway::faults::kill_gate;

#[test(needs(sandbox), limit = 240)]
async fn a_server_that_is_started_again_knows_what_open_calls_could_cost() {
    let mut bench = Bench::start(2.0 * RESERVED - 0.05, "").await;
    let script = format!(
        "({}) & while [ ! -e go ]; do sleep 0.1; done; {}; wait",
        ask("held", "first"),
        ask("plain", "second")
    );
    let session = bench.spawn(&script).await;
    assert!(eventually(WAIT, async || bench.llm.requests().len() == 1).await);
    bench.server.kill();
    // It is asked for while there is no server.
    bench.write("go", "");
    bench.server.start_again();
    bench.admin = bench.server.admin();
    bench.budget_request(&session).await;
    assert_eq!(
        bench.llm.requests().len(),
        1,
        "the open call is still counted"
    );
    // Killed once more, while the call is held.
    bench.server.kill();
    bench.server.start_again();
    bench.admin = bench.server.admin();
    bench.budget_request(&session).await;
    assert_eq!(bench.llm.requests().len(), 1);
    bench.llm.release();
    assert_eq!(bench.status("first").await, "200");
    assert_eq!(bench.status("second").await, "200");
    bench.admin.turn(&session, 1).await;
    bench.assert_cost(&session, 2.0 * COST).await;
}

#[test(needs(sandbox), limit = 240)]
async fn a_call_that_ends_without_a_server_is_counted_by_the_next_one() {
    let mut bench = Bench::start(COST + RESERVED, "").await;
    let names = ["second", "third"].map(|name| ask("plain", name));
    let script = format!("{}; {}", ask("held", "first"), names.join("; "));
    let session = bench.spawn(&script).await;
    assert!(eventually(WAIT, async || bench.llm.requests().len() == 1).await);
    bench.server.kill();
    bench.llm.release();
    assert_eq!(bench.status("first").await, "200");
    bench.server.start_again();
    bench.admin = bench.server.admin();
    // Neither lost nor kept: there is room for exactly one more.
    assert_eq!(bench.status("second").await, "200");
    let request = bench.budget_request(&session).await;
    assert_eq!(bench.llm.requests().len(), 2);
    bench.permit(&session, &request, "deny", None).await;
    assert_eq!(bench.status("third").await, "403");
    bench.admin.turn(&session, 1).await;
    bench.assert_cost(&session, 2.0 * COST).await;
}

#[test(needs(sandbox), limit = 240)]
async fn calls_of_a_killed_gate_are_charged_once_and_keep_nothing_reserved() {
    let bench = Bench::start(2.0 * RESERVED, "").await;
    let next = ask("plain", "second");
    let last = ask("plain", "third");
    let script = format!(
        "{}; while [ ! -e go ]; do sleep 0.1; done; {next}; {last}",
        ask("held", "first")
    );
    let session = bench.spawn(&script).await;
    assert!(eventually(WAIT, async || bench.llm.requests().len() == 1).await);
    kill_gate(&bench.server);
    // What the call cost is not known, so it is as much as it could.
    let charged = eventually(WAIT, async || {
        let found = bench.admin.session(&session).await;
        found["cost_usd"].as_f64().is_some_and(|cost| cost > 0.0)
    });
    assert!(charged.await);
    bench.assert_cost(&session, RESERVED).await;
    let log = bench.admin.log(&session).await;
    let usage = log.iter().rfind(|event| event["type"] == "usage");
    assert_eq!(usage.unwrap()["is_estimate"], true, "{usage:?}");
    bench.write("go", "");
    assert_eq!(bench.status("second").await, "200");
    let request = bench.budget_request(&session).await;
    bench.permit(&session, &request, "deny", None).await;
    assert_eq!(bench.status("third").await, "403");
    bench.admin.turn(&session, 1).await;
    bench.assert_cost(&session, RESERVED + COST).await;
    let asked = |event: &&Value| event["type"] == "permission_request";
    let log = bench.admin.log(&session).await;
    assert_eq!(log.iter().filter(asked).count(), 1, "{log:?}");
}
