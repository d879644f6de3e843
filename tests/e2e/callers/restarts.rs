//! Servers that die between a question and its answer.

use std::time::{Duration, Instant};

use serde_json::json;
use support::Relay;

use super::{SEND, answer, asked, notification, server_with, spawn, teller};

#[tokio::test]
async fn a_restart_between_question_and_answer_loses_neither() {
    let (mut server, admin, project) = server_with("").await;
    let slow = json!({ "name": "slow_tool", "timeout_seconds": 8 });
    let tools = json!([notification(), slow]);
    let session = spawn(&admin, &project, SEND, tools.clone()).await;
    let request = asked(&admin, &session).await;
    for _ in 0..2 {
        server.kill();
        server.start_again();
    }
    let seen = admin.session(&session).await;
    assert_eq!(
        seen["pending_caller_requests"][0]["request_id"],
        request["request_id"]
    );
    answer(&admin, &request, json!({ "result": { "ok": 1 } }))
        .await
        .ok();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "{\"ok\":1}");
    let log = admin.log(&session).await;
    let of = |kind: &str| log.iter().filter(|event| event["type"] == kind).count();
    assert_eq!(
        (of("caller_tool_request"), of("caller_tool_response")),
        (1, 1)
    );

    // The deadline is that of the question, not of the server; an answer that came while the agent's
    // client was away is there when it is back.
    let session = spawn(&admin, &project, "/tool myapp_slow_tool {}", tools).await;
    asked(&admin, &session).await;
    let begun = Instant::now();
    server.kill();
    server.start_again();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(
        completion["text"],
        "caller tool \"slow_tool\" timed out after 8 s"
    );
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_call_that_is_repeated_asks_once_and_ends_with_its_session() {
    let (server, admin, project) = server_with("").await;
    let told = teller(&server, &admin, &project, json!([{ "name": "x" }])).await;
    let call = json!({ "tool": "x", "call_id": "5b0c3a52-1f0b-4a52-8f27-0c9c4f0b7a11" });
    let mut relay = Relay::attached(&server, &project, &told).await;
    relay.begin(1, "caller_tool", call.clone()).await;
    let request = asked(&admin, &told.session_id).await;
    drop(relay);
    let mut relay = Relay::attached(&server, &project, &told).await;
    relay.begin(1, "caller_tool", call.clone()).await;
    relay.begin(2, "caller_tool", call.clone()).await;
    answer(&admin, &request, json!({ "result": "once" }))
        .await
        .ok();
    assert_eq!(relay.reply(1).await["result"], "once");
    assert_eq!(relay.reply(2).await["result"], "once");
    assert_eq!(relay.request("caller_tool", call).await["result"], "once");
    let log = admin.log(&told.session_id).await;
    let requests = log.iter().filter(|e| e["type"] == "caller_tool_request");
    assert_eq!(requests.count(), 1);

    relay.begin(3, "caller_tool", json!({ "tool": "x" })).await;
    let pending = loop {
        let seen = admin.session(&told.session_id).await;
        if seen["pending_caller_requests"].get(0).is_some() {
            break seen;
        }
    };
    assert_eq!(
        pending["pending_caller_requests"].as_array().unwrap().len(),
        1
    );
    let end = json!({ "session_id": told.session_id });
    admin.call("session_end", end).await.ok();
    let gone = relay.reply(3).await;
    assert_eq!(gone["error"]["data"]["kind"], "cancelled", "{gone}");
    let seen = admin.session(&told.session_id).await;
    assert_eq!(seen["pending_caller_requests"], json!([]));
}
