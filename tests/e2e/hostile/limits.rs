//! Agents that try to spend more than their tree may.

use std::time::Duration;

use serde_json::{Value, json};
use support::relay::{RECORDER_CONFIG, keys_of_session};
use support::{Modern, Relay, Server, ServerOptions, eventually};

/// Reports a cost, so that the cost of the session is known.
const FREE_TURN: &str = "/say hello\n/usage 0 0 0";

async fn server_with_project(settings: Value) -> (Server, Modern, String) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = project(&admin, "one", settings).await;
    (server, admin, project)
}

async fn project(admin: &Modern, name: &str, mut settings: Value) -> String {
    settings["name"] = json!(name);
    settings["agent"] = json!("recorder");
    settings["init_git"] = json!(false);
    let project = admin.call("project_create", settings).await;
    project.ok()["project_id"].as_str().unwrap().to_owned()
}

#[test(needs(sandbox))]
async fn a_child_in_a_project_with_a_higher_limit_is_held_to_the_limit_of_its_root() {
    let (server, admin, one) = server_with_project(json!({ "max_cost_usd": 1.0 })).await;
    let scope = json!({ "agent_scope": "write", "new_session": true });
    let root = admin.spawn_with(&one, FREE_TURN, scope).await;
    admin.turn(&root, 1).await;
    let keys = keys_of_session(&server, &one, &root);
    let mut relay = Relay::attached(&server, &one, &keys).await;
    let call = |name: &str, arguments: Value| json!({ "tool": name, "arguments": arguments, "api_key": keys.api_key.clone() });
    let rich = json!({ "name": "rich", "init_git": false, "agent": "demo", "max_cost_usd": 1e6 });
    let made = relay
        .request("oubliette_call_tool", call("project_create", rich))
        .await;
    let rich = made["result"]["structuredContent"]["project_id"].clone();
    assert!(rich.is_string(), "{made}");
    let spend = json!({ "project_id": rich, "prompt": "/usage 1 1 10\n/sh sleep 1000" });
    let spawned = relay
        .request("oubliette_call_tool", call("session_spawn", spend))
        .await;
    let child = spawned["result"]["structuredContent"]["session_id"].as_str();
    let child = child.unwrap_or_else(|| panic!("{spawned}")).to_owned();
    assert_eq!(admin.session(&child).await["parent_id"], *root);
    let completion = admin.turn(&child, 1).await;
    assert_eq!(completion["stop_reason"], "limit", "{completion}");
    let waiting = admin.status(&child, "waiting").await;
    assert_eq!(waiting["waiting_for"]["kind"], "budget");
    let log = admin.log(&child).await;
    let request = log
        .iter()
        .find(|event| event["type"] == "permission_request");
    assert_eq!(request.unwrap()["input"]["max_cost_usd"], 1.0);
}

#[test(needs(sandbox))]
async fn a_session_that_waits_is_stopped_with_its_tree() {
    let (server, admin, one) = server_with_project(json!({ "max_cost_usd": 1.0 })).await;
    let root = admin.spawn(&one, FREE_TURN).await;
    admin.turn(&root, 1).await;
    let keys = keys_of_session(&server, &one, &root);
    let mut relay = Relay::attached(&server, &one, &keys).await;
    let ask = json!({ "prompt": "/ask may I?\n/usage 1 1 0.5", "autonomy": "off",
        "wait_seconds": 0, "agent": "demo" });
    let child = relay.request("session_message", ask).await;
    let child = child["result"]["session_id"].as_str().unwrap().to_owned();
    let waiting = admin.status(&child, "waiting").await;
    assert_eq!(waiting["waiting_for"]["kind"], "permission");
    admin.message(&root, "/usage 1 1 2\n/sh sleep 1000").await;
    assert_eq!(admin.turn(&root, 2).await["stop_reason"], "limit");
    let stopped = admin.turn(&child, 1).await;
    assert_eq!(stopped["stop_reason"], "cancelled", "{stopped}");
    let answer = json!({ "session_id": child, "decision": "allow",
        "request_id": waiting["waiting_for"]["request_id"] });
    let late = admin.call("session_permit", answer).await;
    assert!(late.is_error(), "{}", late.text);
}

#[test(needs(sandbox))]
async fn an_unknown_cost_is_null_and_said_once() {
    let (_server, admin, one) = server_with_project(json!({ "max_cost_usd": 1.0 })).await;
    let session = admin.spawn(&one, "/say hello").await;
    admin.turn(&session, 1).await;
    admin.message(&session, "/say again").await;
    admin.turn(&session, 2).await;
    let seen = admin.session(&session).await;
    for field in [
        "cost_usd",
        "tree_cost_usd",
        "parent_id",
        "waiting_for",
        "error",
    ] {
        assert_eq!(seen.get(field), Some(&Value::Null), "{field}: {seen}");
    }
    assert_eq!(seen["usage"]["unpriced_turns"], 2);
    let limits = admin
        .call("config_limits", json!({ "session_id": session }))
        .await;
    assert_eq!(limits.ok()["used"]["cost_usd"], Value::Null);
    let log = admin.log(&session).await;
    let said = log.iter().filter(|event| {
        let message = event["message"].as_str().unwrap_or_default();
        event["type"] == "log" && message.contains("max_cost_usd")
    });
    assert_eq!(said.count(), 1, "{log:?}");
}

#[test(needs(sandbox))]
async fn an_agent_sends_no_message_to_a_child_whose_project_is_over_its_disk_limit() {
    let (server, admin, project) = server_with_project(json!({ "disk_mb": 64 })).await;
    let root = admin.spawn(&project, FREE_TURN).await;
    admin.turn(&root, 1).await;
    let keys = keys_of_session(&server, &project, &root);
    let mut relay = Relay::attached(&server, &project, &keys).await;
    let child = relay
        .request("session_message", json!({ "prompt": "/say one" }))
        .await;
    let again = json!({ "session_id": child["result"]["session_id"], "prompt": "/say two" });
    admin
        .exec(&project, "head -c 74000000 /dev/zero | tr '\\0' x > big")
        .await;
    let measured = eventually(Duration::from_secs(60), async || {
        let shown = admin
            .call("project_get", json!({ "project_id": project }))
            .await;
        shown.ok()["disk_used_mb"]
            .as_u64()
            .is_some_and(|used| used >= 68)
    });
    assert!(measured.await);
    let refused = relay.request("session_message", again.clone()).await;
    assert!(
        refused["error"].to_string().contains("`disk_mb`"),
        "{refused}"
    );
    admin.exec(&project, "rm big").await;
    let answered = eventually(Duration::from_secs(60), async || {
        let reply = relay.request("session_message", again.clone()).await;
        reply["result"]["text"] == "two"
    });
    assert!(answered.await);
}
