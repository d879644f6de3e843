//! The audit log: every call, never a secret.

use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{Modern, Server, eventually, server_with};

async fn entries(admin: &Modern, filter: Value) -> Vec<Value> {
    admin.call("audit_list", filter).await.ok()["entries"]
        .as_array()
        .unwrap()
        .clone()
}

#[test]
async fn writes_and_refusals_are_logged_at_once_and_reads_a_little_later() {
    let server = Server::start();
    let admin = server.admin();
    let id = admin.project("one").await;
    let made = entries(&admin, json!({ "operation": "project_create" })).await;
    assert_eq!(made.len(), 1);
    assert_eq!(made[0]["outcome"], "ok");
    assert_eq!(made[0]["project_id"], json!(id));
    assert_eq!(made[0]["address"], "127.0.0.1");

    admin
        .call("project_create", json!({ "name": "one" }))
        .await
        .sentence();
    let failed = json!({ "operation": "project_create", "outcome": "error" });
    assert_eq!(entries(&admin, failed).await.len(), 1);

    let reader = server.with_key(&admin.token("read").await);
    assert_eq!(reader.call("token_list", json!({})).await.code(), -32002);
    assert_eq!(
        entries(&admin, json!({ "outcome": "refused" })).await.len(),
        1
    );

    reader
        .call("project_get", json!({ "project_id": id }))
        .await
        .ok();
    let read = Instant::now();
    support::wait_until("the entry of a read", async || {
        let reads = json!({ "operation": "project_get" });
        !entries(&admin, reads).await.is_empty()
    })
    .await;
    // Within a second, and what a busy machine adds to that.
    let elapsed = read.elapsed();
    let limit = scaled(Duration::from_secs(1)) + 20 * admin.slowest_call().await;
    assert!(elapsed < limit, "it came after {elapsed:?}, not {limit:?}");
}

#[test]
async fn the_log_is_complete_after_an_orderly_stop_and_holds_no_secret() {
    let mut server = Server::start();
    let admin = server.admin();
    let secret = json!({ "name": "x", "env": { "KEY": "hunter2" } });
    admin.call("project_create", secret).await.ok();
    for _ in 0..25 {
        admin.call("project_list", json!({})).await.ok();
    }
    assert_eq!(server.stop(), Some(0));
    server.start_again();
    let admin = server.admin();
    let reads = entries(&admin, json!({ "operation": "project_list" })).await;
    assert_eq!(reads.len(), 25, "reads noted before the stop were lost");
    let all = admin.call("audit_list", json!({ "limit": 1000 })).await;
    assert!(!all.text.contains("hunter2") && !all.text.contains(&server.admin_key()));
    let bad = admin
        .call("audit_list", json!({ "outcome": "great" }))
        .await;
    assert!(
        bad.sentence().contains("unauthenticated"),
        "{}",
        bad.sentence()
    );
}

#[test(each(sandbox))]
async fn a_command_is_in_the_log_before_it_begins_and_stays_there_through_a_kill(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let id = server.admin().project("one").await;
    for (n, name) in [Value::Null, json!("named")].into_iter().enumerate() {
        let (caller, begun) = (server.admin(), server.workspace(&id).join(format!("b{n}")));
        let arguments = json!({
            "project_id": id, "exec_id": name, "command": format!("touch b{n}; sleep 600"),
        });
        let call = json!({ "name": "container_exec", "arguments": arguments });
        let lost = tokio::spawn(async move { caller.try_send("tools/call", call).await });
        assert!(eventually(Duration::from_secs(20), async || begun.exists()).await);
        server.kill();
        server.start_again();
        lost.await.unwrap();
        let filter = json!({ "operation": "container_exec", "project_id": id });
        let logged = entries(&server.admin(), filter).await;
        assert_eq!(logged.len(), n + 1, "{logged:?}");
        assert!(logged.iter().all(|entry| entry["outcome"] == "ok"));
    }
}
