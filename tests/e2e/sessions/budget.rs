//! The cost limit of a tree of sessions, whichever session of it spends.

use serde_json::{Value, json};
use support::{Server, ServerOptions};

#[test(needs(sandbox))]
async fn a_child_that_crosses_the_budget_of_its_tree_stops_the_whole_tree() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n[limits]\nmax_cost_usd = 1.0\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    // Neither of the two reaches the limit alone.
    let child = json!({ "prompt": "/usage 10 1 0.6\n/sh sleep 1000", "wait_seconds": 0 });
    let prompt = format!("/usage 10 1 0.6\n/tool session_message {child}\n/sh sleep 1000");
    let root = admin.spawn(&project, &prompt).await;
    let spawned = |event: &Value| event["type"] == "child_spawned";
    let log = admin.follow(&root, spawned).await;
    let child = log.last().unwrap()["child_id"].as_str().unwrap().to_owned();
    let of_child = admin.turn(&child, 1).await;
    assert_eq!(of_child["stop_reason"], "limit", "{of_child}");
    let error = of_child["error"].as_str().unwrap();
    assert!(error.contains("max_cost_usd"), "{error}");
    let of_root = admin.turn(&root, 1).await;
    assert_eq!(of_root["stop_reason"], "cancelled", "{of_root}");
    let waiting = admin.status(&child, "waiting").await;
    assert_eq!(waiting["waiting_for"]["kind"], "budget", "{waiting}");
    assert_eq!(admin.session(&root).await["tree_cost_usd"], 1.2);
}
