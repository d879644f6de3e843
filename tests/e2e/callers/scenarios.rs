//! The scenarios of the relay's specification, each by its name.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::Relay;

use super::{
    SEND, answer, asked, context, notification, recorder, server_with, spawn,
    wait_for_disconnect_of_another_caller,
};

fn tools_of_two() -> Value {
    json!([notification(), { "name": "get_memory", "description": "Retrieve memories" }])
}

#[test(needs(sandbox))]
async fn agent_calls_caller_tool_successfully() {
    let (_server, admin, project) = server_with("").await;
    let session = spawn(&admin, &project, SEND, json!([notification()])).await;
    let request = asked(&admin, &session).await;
    let seen = admin.session(&session).await;
    assert_eq!(seen["status"], "waiting", "{seen}");
    assert_eq!(seen["waiting_for"]["kind"], "caller_tool");
    assert_eq!(seen["waiting_for"]["request_id"], request["request_id"]);
    let pending = &seen["pending_caller_requests"];
    assert_eq!(pending[0]["request_id"], request["request_id"]);
    assert_eq!(pending[0]["arguments"], json!({ "message": "hello" }));

    let sent = json!({ "result": { "status": "sent" }, "error": null });
    let accepted = answer(&admin, &request, sent).await;
    assert_eq!(accepted.ok()["accepted"], true);
    let completion = admin.turn(&session, 1).await;
    let text: Value = serde_json::from_str(completion["text"].as_str().unwrap()).unwrap();
    assert_eq!(text, json!({ "status": "sent" }));
    let log = admin.log(&session).await;
    let at = |kind: &str| log.iter().position(|event| event["type"] == kind).unwrap();
    assert!(at("caller_tool_request") < at("caller_tool_response"));
    assert!(at("caller_tool_response") < at("completion"));
    let response = &log[at("caller_tool_response")];
    assert_eq!(
        (&response["outcome"], &response["result"]),
        (&json!("answered"), &json!({ "status": "sent" }))
    );
    let statuses: Vec<&Value> = log
        .iter()
        .filter(|event| event["type"] == "status")
        .map(|event| &event["status"])
        .collect();
    assert_eq!(
        statuses,
        ["created", "running", "waiting", "running", "idle"]
    );
    let seen = admin.session(&session).await;
    assert_eq!(seen["pending_caller_requests"], json!([]));
}

#[test(needs(sandbox))]
async fn caller_tool_request_times_out() {
    let (_server, admin, project) = server_with("").await;
    let slow = json!({ "name": "slow_tool", "timeout_seconds": 2 });
    let session = spawn(&admin, &project, "/tool myapp_slow_tool {}", json!([slow])).await;
    let request = asked(&admin, &session).await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(
        completion["text"],
        "caller tool \"slow_tool\" timed out after 2 s"
    );
    let late = answer(&admin, &request, json!({ "result": 1 })).await;
    assert!(late.sentence().contains("not found"), "{}", late.text);
    let log = admin.log(&session).await;
    let response = log
        .iter()
        .find(|e| e["type"] == "caller_tool_response")
        .unwrap();
    assert_eq!(response["outcome"], "timeout");
    assert!(response["duration_ms"].as_u64().unwrap() >= 2000);
}

#[test(needs(sandbox), mostly_waits)]
async fn caller_disconnected_before_response() {
    let config = "[caller_tools]\ngrace_seconds = 1\npresence_seconds = 2\n";
    let (server, admin, project) = server_with(config).await;
    let caller = server.with_key(&admin.token("write").await);
    // The agent runs before the caller's time counts: only the container's start takes long.
    let session = spawn(&caller, &project, "/say ready", json!([notification()])).await;
    admin.turn(&session, 1).await;
    // The caller waits for something else until its tool is called, however long that takes, and goes.
    let waits = tokio::spawn({
        let (caller, session) = (caller.clone(), session.clone());
        async move {
            loop {
                let wait = json!({
                    "session_id": session, "since_index": 100_000, "wait_seconds": 50,
                    "types": ["completion"],
                });
                caller.call("session_events", wait).await;
            }
        }
    });
    caller.message(&session, SEND).await;
    let is_asked = |event: &Value| event["type"] == "caller_tool_request";
    admin.follow(&session, is_asked).await;
    waits.abort();
    // From now on only the administrator reads the log, who is not the caller.
    let completion = admin.turn(&session, 2).await;
    assert_eq!(completion["text"], "caller \"myapp\" is disconnected");
    // A call while the caller is absent makes no request.
    let more = json!({ "session_id": session, "prompt": SEND });
    admin.call("session_message", more).await.ok();
    let completion = admin.turn(&session, 3).await;
    assert_eq!(completion["text"], "caller \"myapp\" is disconnected");
    let log = admin.log(&session).await;
    let requests = log.iter().filter(|e| e["type"] == "caller_tool_request");
    assert_eq!(requests.count(), 1);

    // A caller that waits for events is present while it waits.
    let message = json!({ "session_id": session, "prompt": format!("/sleep 4\n{SEND}") });
    let since = caller.call("session_message", message).await.ok()["last_event_index"].clone();
    let since = since.as_i64().unwrap();
    let wanted = |event: &Value| event["type"] == "caller_tool_request";
    let log = caller.follow_from(&session, since, wanted).await;
    let request = log.last().unwrap();
    // A caller with an unanswered request stays connected.
    wait_for_disconnect_of_another_caller(&server, &admin, &project).await;
    answer(&caller, request, json!({ "result": "at last" }))
        .await
        .ok();
    let completion = admin.turn(&session, 4).await;
    assert_eq!(completion["text"], "at last");
}

#[test(needs(sandbox))]
async fn caller_declares_tools_at_session_start() {
    let (server, admin, project) = server_with("").await;
    let tools = json!([{ "name": "send_notification", "description": "Send notification" }]);
    let session = spawn(&admin, &project, "what can you do?", tools).await;
    let completion = admin.turn(&session, 1).await;
    let text = completion["text"].as_str().unwrap();
    assert!(text.contains("myapp_send_notification"), "{text}");

    // They stay until others are declared, and go with an empty list.
    let declare = async |turn: usize, context: Value| {
        let message =
            json!({ "session_id": session, "prompt": "what can you do?", "context": context });
        admin.call("session_message", message).await.ok();
        let completion = admin.turn(&session, turn).await;
        completion["text"].as_str().unwrap().to_owned()
    };
    let text = declare(2, json!({ "caller_id": "myapp" })).await;
    assert!(text.contains("myapp_send_notification"), "{text}");
    let text = declare(3, context(json!([{ "name": "other" }]))).await;
    assert!(
        text.contains("myapp_other") && !text.contains("send_notification"),
        "{text}"
    );
    let text = declare(4, context(json!([]))).await;
    assert!(!text.contains("myapp"), "{text}");

    // Children do not inherit them.
    let agent_keys = recorder(&server, &admin, &project, tools_of_two()).await;
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    let child = json!({ "prompt": "what can you do?", "agent": "demo" });
    let child = relay.request("session_message", child).await;
    let text = child["result"]["text"].as_str().unwrap();
    assert!(
        text.contains("session_message") && !text.contains("myapp"),
        "{text}"
    );
    let context = json!({ "prompt": "x", "context": context(json!([])) });
    let refused = relay.request("session_message", context).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
}

#[test(needs(sandbox))]
async fn tools_include_input_schema() {
    let (server, admin, project) = server_with("").await;
    let agent_keys = recorder(&server, &admin, &project, tools_of_two()).await;
    let mut relay = Relay::connect(&server, &project).await;
    relay
        .attach(&agent_keys.session_id, &agent_keys.session_key)
        .await;
    let config = relay.next().await.unwrap();
    assert_eq!(config["params"]["caller_id"], "myapp");
    let tools = config["params"]["tools"].as_array().unwrap();
    assert_eq!(tools[0], notification());
    assert_eq!(tools[1]["name"], "get_memory");
    // A new declaration is sent to the agent's client.
    let message = json!({
        "session_id": agent_keys.session_id, "prompt": "/say x", "context": context(json!([])),
    });
    admin.call("session_message", message).await.ok();
    let config = relay.next().await.unwrap();
    assert_eq!(
        (&config["type"], &config["params"]["tools"]),
        (&json!("caller_tools_config"), &json!([]))
    );
    // Arguments that the schema does not allow make no request.
    let agent_keys = recorder(&server, &admin, &project, json!([notification()])).await;
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    let wrong = json!({ "tool": "send_notification", "arguments": { "message": 7 } });
    let refused = relay.request("caller_tool", wrong).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains("message")
    );
    let unknown = relay
        .request("caller_tool", json!({ "tool": "nothing" }))
        .await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    let log = admin.log(&agent_keys.session_id).await;
    assert!(
        log.iter()
            .all(|event| event["type"] != "caller_tool_request")
    );
}

#[test(needs(sandbox))]
async fn tool_request_event_format() {
    let (_server, admin, project) = server_with("").await;
    let hi = "/tool myapp_send_notification {\"message\": \"hi\"}";
    let session = spawn(
        &admin,
        &project,
        &format!("{hi}\n{hi}"),
        json!([notification()]),
    )
    .await;
    let request = asked(&admin, &session).await;
    assert_eq!(request["type"], "caller_tool_request");
    assert_eq!(request["session_id"], *session);
    assert_eq!(request["tool"], "send_notification");
    assert_eq!(request["arguments"], json!({ "message": "hi" }));
    let id = request["request_id"].as_str().unwrap();
    assert_eq!((id.len(), &id[14..15]), (36, "4"), "a version 4 UUID");
    let expires: jiff::Timestamp = request["expires_at"].as_str().unwrap().parse().unwrap();
    let asked: jiff::Timestamp = request["timestamp"].as_str().unwrap().parse().unwrap();
    assert_eq!(expires.duration_since(asked).as_secs(), 60);
    answer(&admin, &request, json!({ "result": null, "error": null }))
        .await
        .ok();
    let another = |event: &Value| {
        event["type"] == "caller_tool_request" && event["request_id"] != request["request_id"]
    };
    let log = admin.follow(&session, another).await;
    answer(&admin, log.last().unwrap(), json!({})).await.ok();
    assert_eq!(admin.turn(&session, 1).await["text"], "null");
}

#[test(needs(sandbox))]
async fn successful_tool_response() {
    let (server, admin, project) = server_with("").await;
    let agent_keys = recorder(&server, &admin, &project, json!([notification()])).await;
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    // The agent gets any JSON that the caller answers.
    for result in [
        json!({ "status": "sent" }),
        json!([1, "two"]),
        json!("x"),
        json!(0),
        json!(false),
    ] {
        let since = admin.session(&agent_keys.session_id).await["last_index"]
            .as_i64()
            .unwrap();
        relay
            .begin("ask", "caller_tool", json!({ "tool": "send_notification" }))
            .await;
        let wanted = |event: &Value| event["type"] == "caller_tool_request";
        let log = admin
            .follow_from(&agent_keys.session_id, since, wanted)
            .await;
        answer(&admin, log.last().unwrap(), json!({ "result": result }))
            .await
            .ok();
        assert_eq!(relay.reply("ask").await["result"], result);
    }
    // MCP content passes through the client as it is.
    let session = spawn(&admin, &project, SEND, json!([notification()])).await;
    let request = asked(&admin, &session).await;
    let content = json!([{ "type": "text", "text": "as it is" }]);
    answer(
        &admin,
        &request,
        json!({ "result": { "content": content } }),
    )
    .await
    .ok();
    assert_eq!(admin.turn(&session, 1).await["text"], "as it is");
}

#[test(needs(sandbox))]
async fn tool_execution_error_response() {
    let (_server, admin, project) = server_with("").await;
    let session = spawn(&admin, &project, SEND, json!([notification()])).await;
    let request = asked(&admin, &session).await;
    let both = json!({ "result": 1, "error": "x" });
    let both = answer(&admin, &request, both).await;
    assert!(both.sentence().contains("not both"));
    let failed = json!({ "result": null, "error": "recipient not found" });
    answer(&admin, &request, failed).await.ok();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "recipient not found");
    let log = admin.log(&session).await;
    let tool = log
        .iter()
        .find(|event| event["type"] == "tool_result")
        .unwrap();
    assert_eq!(tool["status"], "failed", "{tool}");
}

#[test(needs(sandbox))]
async fn socket_request_and_response() {
    let (server, admin, project) = server_with("").await;
    let agent_keys = recorder(
        &server,
        &admin,
        &project,
        json!([{ "name": "x", "timeout_seconds": 1 }]),
    )
    .await;
    let other = recorder(&server, &admin, &project, json!([{ "name": "x" }])).await;
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    let mut neighbour = Relay::attached(&server, &project, &other).await;
    // Many at once, each answered with its own; the neighbour's are the neighbour's.
    for n in 0..5 {
        let call = json!({ "tool": "x", "arguments": { "n": n } });
        neighbour.begin(n, "caller_tool", call).await;
    }
    let mut answered = BTreeSet::new();
    support::wait_until("all five requests", async || {
        let seen = admin.session(&other.session_id).await;
        for request in seen["pending_caller_requests"].as_array().unwrap() {
            let n = request["arguments"]["n"].as_i64().unwrap();
            if answered.insert(n) {
                answer(&admin, request, json!({ "result": { "n": n } }))
                    .await
                    .ok();
            }
        }
        answered.len() == 5
    })
    .await;
    for n in 0..5 {
        assert_eq!(neighbour.reply(n).await["result"], json!({ "n": n }));
    }
    let timed_out = relay
        .request("caller_tool", json!({ "tool": "x", "arguments": {} }))
        .await;
    assert_eq!(timed_out["error"]["code"], -32000);
    assert_eq!(timed_out["error"]["data"]["kind"], "timeout", "{timed_out}");
    // The agent's cancel is an event, and the answer after it is too late.
    neighbour
        .begin("given up", "caller_tool", json!({ "tool": "x" }))
        .await;
    let request = support::wait_for("the request", async || {
        let seen = admin.session(&other.session_id).await;
        seen["pending_caller_requests"].get(0).cloned()
    })
    .await;
    neighbour
        .send(&json!({ "method": "cancel", "params": { "id": "given up" } }))
        .await;
    let cancelled = neighbour.reply("given up").await;
    assert_eq!(
        cancelled["error"]["data"]["kind"], "cancelled",
        "{cancelled}"
    );
    let log = admin.log(&other.session_id).await;
    let event = log
        .iter()
        .find(|event| event["type"] == "caller_tool_cancelled");
    assert_eq!(event.unwrap()["request_id"], request["request_id"]);
    let late = answer(&admin, &request, json!({ "result": 1 })).await;
    assert!(late.sentence().contains("not found"));
}
