//! Callers, agents and declarations that break the protocol or its limits.

use std::time::Duration;

use serde_json::{Value, json};
use support::{Relay, eventually};

use super::{SEND, answer, asked, context, notification, recorder, server_with, spawn};

/// Waits until a session has so many requests that wait; them.
async fn pending(caller: &support::Modern, session: &str, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    let enough = eventually(Duration::from_secs(60), async || {
        let seen = caller.session(session).await;
        found = seen["pending_caller_requests"].as_array().unwrap().clone();
        found.len() == count
    });
    assert!(enough.await, "{count} were expected");
    found
}

#[test(needs(sandbox))]
async fn an_answer_that_is_too_long_is_refused_and_another_still_counts() {
    let (server, admin, project) = server_with("").await;
    // Megabytes take their time on a busy machine.
    let tools = json!([{ "name": "x", "timeout_seconds": 600 }]);
    let agent_keys = recorder(&server, &admin, &project, tools).await;
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    relay
        .begin("asked", "caller_tool", json!({ "tool": "x" }))
        .await;
    let request = asked(&admin, &agent_keys.session_id).await;
    for long in [
        json!({ "result": "x".repeat(10 << 20) }),
        json!({ "error": "x".repeat(10 << 20) }),
    ] {
        let refused = answer(&admin, &request, long).await;
        assert!(
            refused.sentence().contains("the maximum is"),
            "{:.300}",
            refused.text
        );
    }
    let huge = answer(&admin, &request, json!({ "result": "x".repeat(17 << 20) })).await;
    assert_eq!(huge.status, 413);
    let wrong = answer(&admin, &request, json!({ "error": 7 })).await;
    assert!(wrong.sentence().contains("error"), "{}", wrong.text);
    let megabytes = "y".repeat(3 << 20);
    answer(&admin, &request, json!({ "result": { "long": megabytes } }))
        .await
        .ok();
    let reply = relay.reply("asked").await;
    let long = reply["result"]["long"].as_str().unwrap();
    assert_eq!(long.len(), 3 << 20);
}

#[test(needs(sandbox))]
async fn arguments_that_are_too_long_are_rejected_before_the_caller() {
    let (server, admin, project) = server_with("").await;
    let agent_keys = recorder(&server, &admin, &project, json!([{ "name": "x" }])).await;
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    let long = json!({ "tool": "x", "arguments": { "text": "x".repeat(10 << 20) } });
    let refused = relay.request("caller_tool", long).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused:.300}");
    let shape = json!({ "tool": "x", "arguments": [1] });
    let refused = relay.request("caller_tool", shape).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused:.300}");
    let name = json!({ "tool": "x", "call_id": "not one" });
    let refused = relay.request("caller_tool", name).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused:.300}");
    pending(&admin, &agent_keys.session_id, 0).await;
}

#[test(needs(sandbox))]
async fn five_hundred_tools_are_accepted_and_one_more_is_refused() {
    let (_server, admin, project) = server_with("").await;
    let tools = |count: usize| -> Value {
        let tool = |n| json!({ "name": format!("tool_{n}"), "description": "One of many." });
        (0..count).map(tool).collect()
    };
    let many = json!({
        "project_id": project, "prompt": "/tool myapp_tool_499 {}", "context": context(tools(501)),
    });
    let refused = admin.call("session_spawn", many).await;
    assert!(
        refused.sentence().contains("the maximum is 500"),
        "{:.300}",
        refused.text
    );
    let session = spawn(&admin, &project, "/tool myapp_tool_499 {}", tools(500)).await;
    let request = asked(&admin, &session).await;
    assert_eq!(request["tool"], "tool_499");
    answer(&admin, &request, json!({ "result": "the last" }))
        .await
        .ok();
    assert_eq!(admin.turn(&session, 1).await["text"], "the last");
}

#[test(needs(sandbox))]
async fn tools_with_invalid_or_long_names_get_valid_ones_and_can_be_called() {
    let (server, admin, project) = server_with("").await;
    let long = "n".repeat(200);
    let tools = json!([{ "name": "send it!" }, { "name": long }, { "name": "über" }]);
    let agent_keys = recorder(&server, &admin, &project, tools).await;
    let mut relay = Relay::connect(&server, &project).await;
    relay
        .attach(&agent_keys.session_id, &agent_keys.session_key)
        .await;
    let config = relay.next().await.unwrap();
    assert_eq!(config["params"]["tools"][0]["name"], "send it!");
    let sent = admin
        .message(&agent_keys.session_id, "what can you do?")
        .await;
    assert!(sent["session_id"].is_string());
    let text = admin.turn(&agent_keys.session_id, 2).await["text"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut names: Vec<&str> = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'))
        .filter(|word| word.starts_with("myapp_"))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.iter().all(|name| name.len() <= 64), "{names:?}");
    assert!(names.contains(&"myapp_send_it_"), "{names:?}");
    let shortened = names.iter().find(|name| name.starts_with("myapp_nnn"));
    let shortened = (*shortened.unwrap()).to_owned();
    assert_eq!(shortened.len(), 64);
    for (turn, (name, tool)) in [
        ("myapp_send_it_", "send it!"),
        (shortened.as_str(), long.as_str()),
    ]
    .into_iter()
    .enumerate()
    {
        let call = format!("/tool {name} {{}}");
        let since = admin.message(&agent_keys.session_id, &call).await["last_event_index"].clone();
        let wanted = |event: &Value| event["type"] == "caller_tool_request";
        let since = since.as_i64().unwrap();
        let log = admin
            .follow_from(&agent_keys.session_id, since, wanted)
            .await;
        let request = log.last().unwrap();
        assert_eq!(request["tool"], tool);
        answer(&admin, request, json!({ "result": "found" }))
            .await
            .ok();
        let completion = admin.turn(&agent_keys.session_id, 3 + turn).await;
        assert_eq!(completion["text"], "found");
    }
}

#[test(needs(sandbox))]
async fn an_interrupted_turn_cancels_its_caller_requests() {
    let (_server, admin, project) = server_with("").await;
    let session = spawn(&admin, &project, SEND, json!([notification()])).await;
    let request = asked(&admin, &session).await;
    let stop = json!({ "session_id": session });
    let stopped = admin.call("session_interrupt", stop).await;
    assert_eq!(stopped.ok()["status"], "idle");
    let cancelled = |event: &Value| event["type"] == "caller_tool_cancelled";
    let log = admin.follow(&session, cancelled).await;
    assert_eq!(log.last().unwrap()["request_id"], request["request_id"]);
    assert_eq!(log.last().unwrap()["tool"], "send_notification");
    let late = answer(&admin, &request, json!({ "result": 1 })).await;
    assert!(late.sentence().contains("not found"), "{}", late.text);
    assert_eq!(admin.turn(&session, 1).await["stop_reason"], "cancelled");
    let seen = admin.session(&session).await;
    assert_eq!(seen["status"], "idle", "{seen}");
    // The session still works.
    admin.message(&session, SEND).await;
    let another = |event: &Value| {
        event["type"] == "caller_tool_request" && event["request_id"] != request["request_id"]
    };
    let log = admin.follow(&session, another).await;
    answer(&admin, log.last().unwrap(), json!({ "result": "again" }))
        .await
        .ok();
    assert_eq!(admin.turn(&session, 2).await["text"], "again");
}

#[test(needs(sandbox))]
async fn a_slow_response_blocks_no_other_call_and_reaches_a_half_closed_socket() {
    let (server, admin, project) = server_with("").await;
    let agent_keys = recorder(&server, &admin, &project, json!([{ "name": "x" }])).await;
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    let call = |n: usize| json!({ "tool": "x", "arguments": { "n": n } });
    for n in 0..200 {
        relay.begin(n, "caller_tool", call(n)).await;
    }
    let waiting = pending(&admin, &agent_keys.session_id, 200).await;
    // The newest first, and other methods in between.
    let newest = waiting.iter().find(|asked| asked["arguments"]["n"] == 199);
    answer(&admin, newest.unwrap(), json!({ "result": 199 }))
        .await
        .ok();
    assert_eq!(relay.reply(199).await["result"], 199);
    let limits = relay.request("config_limits", json!({})).await;
    assert!(limits["result"].is_object(), "{limits}");

    let mut half = Relay::attached(&server, &project, &agent_keys).await;
    half.begin("last", "caller_tool", call(1000)).await;
    half.shutdown_write().await;
    let waiting = pending(&admin, &agent_keys.session_id, 200).await;
    let last = waiting.iter().find(|asked| asked["arguments"]["n"] == 1000);
    answer(&admin, last.unwrap(), json!({ "result": "received" }))
        .await
        .ok();
    assert_eq!(half.reply("last").await["result"], "received");
}

#[test(needs(sandbox))]
async fn a_client_that_floods_and_reads_nothing_blocks_no_other_client() {
    let (server, admin, project) = server_with("").await;
    let agent_keys = recorder(&server, &admin, &project, json!([{ "name": "x" }])).await;
    let mut unread = Relay::attached(&server, &project, &agent_keys).await;
    let flood = tokio::spawn(async move {
        for n in 0..50_000 {
            unread.begin(n, "config_limits", json!({})).await;
        }
    });
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    for n in 0..20 {
        relay.begin(n, "caller_tool", json!({ "tool": "x" })).await;
        let request = pending(&admin, &agent_keys.session_id, 1).await.remove(0);
        answer(&admin, &request, json!({ "result": n })).await.ok();
        assert_eq!(relay.reply(n).await["result"], n);
    }
    assert!(!flood.is_finished(), "the flood was read completely");
    flood.abort();
}

#[test(needs(sandbox))]
async fn an_agent_answers_neither_itself_nor_for_its_callers() {
    let (server, admin, project) = server_with("").await;
    // Even the caller's own key does not make the agent its caller.
    let agent_keys = recorder(&server, &admin, &project, json!([{ "name": "x" }])).await;
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    relay
        .begin("asked", "caller_tool", json!({ "tool": "x" }))
        .await;
    let request = pending(&admin, &agent_keys.session_id, 1).await.remove(0);
    let inside = async |relay: &mut Relay, tool: &str, arguments: Value| {
        let call = json!({ "api_key": server.admin_key(), "tool": tool, "arguments": arguments });
        relay.request("oubliette_call_tool", call).await
    };
    let own = json!({
        "session_id": agent_keys.session_id, "request_id": request["request_id"], "result": "mine",
    });
    let refused = inside(&mut relay, "caller_tool_response", own).await;
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    let own = json!({
        "session_id": agent_keys.session_id, "request_id": request["request_id"], "result": "mine",
    });
    let mut unattached = Relay::connect(&server, &project).await;
    let refused = inside(&mut unattached, "caller_tool_response", own).await;
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    let declare = json!({
        "session_id": agent_keys.session_id, "prompt": "x", "context": context(json!([])),
    });
    let refused = inside(&mut relay, "session_message", declare).await;
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    answer(&admin, &request, json!({ "result": "yours" }))
        .await
        .ok();
    assert_eq!(relay.reply("asked").await["result"], "yours");
}
