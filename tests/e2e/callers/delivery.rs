//! The four ways to deliver a tool request to its caller. All deliver the same event, and each of them
//! counts as a sign that the caller is connected.

use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{Legacy, Modern, Server};

use super::{
    SEND, answer, context, notification, server_with, spawn, wait_for_disconnect_of_another_caller,
};
use crate::server::push::until;

/// Without the delivery under test, the server soon counts the caller as disconnected.
const SHORT_PRESENCE: &str = "[caller_tools]\ngrace_seconds = 1\npresence_seconds = 1\n";

fn is_request(message: &Value) -> bool {
    message["params"]["data"]["type"] == "caller_tool_request"
}

/// A session that belongs to an MCP session of the older era.
async fn spawn_from(caller: &Legacy, project: &str, prompt: &str) -> String {
    let spawn = json!({
        "project_id": project, "prompt": prompt, "new_session": true,
        "context": context(json!([notification()])),
    });
    let spawned = caller.call("session_spawn", spawn).await;
    spawned.ok()["session_id"].as_str().unwrap().to_owned()
}

async fn respond(caller: &Legacy, request: &Value, result: Value) -> support::Reply {
    let answer = json!({
        "session_id": request["session_id"], "request_id": request["request_id"], "result": result,
    });
    caller.call("caller_tool_response", answer).await
}

/// The request's event in the log.
async fn in_log(reader: &Modern, request: &Value) -> Value {
    let log = reader.log(request["session_id"].as_str().unwrap()).await;
    let mut found = log
        .into_iter()
        .filter(|event| event["request_id"] == request["request_id"]);
    found.next().unwrap()
}

async fn owner(server: &Server, admin: &Modern) -> (Legacy, Modern) {
    let key = admin.token("write").await;
    (
        Legacy::connect(server.url(), &key).await,
        server.with_key(&key),
    )
}

#[test(needs(sandbox))]
async fn a_caller_gets_requests_on_its_stream_and_is_connected_while_it_reads() {
    let (server, admin, project) = server_with(SHORT_PRESENCE).await;
    let (caller, _) = owner(&server, &admin).await;
    let mut stream = caller.stream().await;
    let session = spawn_from(&caller, &project, &format!("/sleep 3\n{SEND}\n{SEND}")).await;
    // Its last call is too old to count: only the open stream keeps the caller connected.
    let message = until(&mut stream, is_request).await.pop().unwrap();
    assert_eq!(message["method"], "notifications/message");
    let params = &message["params"];
    assert_eq!(
        (&params["logger"], &params["level"]),
        (&json!("oubliette.session"), &json!("info"))
    );
    let request = params["data"].clone();
    assert_eq!(request, in_log(&admin, &request).await);
    respond(&caller, &request, json!("pushed")).await.ok();

    // First it reconnects within the grace period, and the request stays; then it does not reconnect.
    until(&mut stream, is_request).await;
    drop(stream);
    let again = caller.stream().await;
    wait_for_disconnect_of_another_caller(&server, &admin, &project).await;
    let seen = admin.session(&session).await;
    assert_eq!(seen["status"], "waiting", "{seen}");
    drop(again);
    let gone = Instant::now();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "caller \"myapp\" is disconnected");
    assert!(gone.elapsed() < scaled(Duration::from_secs(20)));
}

#[test(needs(sandbox))]
async fn a_caller_that_waits_for_events_gets_requests_on_the_stream_of_that_call() {
    let (server, admin, project) = server_with(SHORT_PRESENCE).await;
    let caller = server.with_key(&admin.token("write").await);
    let session = spawn(&caller, &project, SEND, json!([notification()])).await;
    let mut since = -1;
    let request = loop {
        let arguments = json!({ "session_id": session, "since_index": since, "wait_seconds": 20 });
        let params = json!({
            "name": "session_events", "arguments": arguments,
            "_meta": { "io.modelcontextprotocol/logLevel": "info" },
        });
        let mut stream = caller.request("tools/call", params).send().await.unwrap();
        let messages = until(&mut stream, |message| !message["result"].is_null()).await;
        if let Some(message) = messages.iter().find(|message| is_request(message)) {
            break message["params"]["data"].clone();
        }
        let page = &messages.last().unwrap()["result"]["structuredContent"];
        since = page["last_index"].as_i64().unwrap();
    };
    assert_eq!(request, in_log(&admin, &request).await);
    answer(&caller, &request, json!({ "result": "delivered" }))
        .await
        .ok();
    assert_eq!(admin.turn(&session, 1).await["text"], "delivered");
}

#[test(needs(sandbox))]
async fn a_subscribed_caller_is_notified_of_requests_and_is_connected_while_it_listens() {
    let (server, admin, project) = server_with(SHORT_PRESENCE).await;
    let caller = server.with_key(&admin.token("write").await);
    let prompt = format!("/sleep 3\n{SEND}\n{SEND}");
    let session = spawn(&caller, &project, &prompt, json!([notification()])).await;
    let uri = format!("oubliette://sessions/{session}/events");
    let listen = json!({ "notifications": { "resourceSubscriptions": [uri] } });
    let listening = caller.request("subscriptions/listen", listen).send();
    let mut stream = listening.await.unwrap();
    let request = loop {
        until(&mut stream, |message| {
            message["method"] == "notifications/resources/updated"
        })
        .await;
        let read = caller.send("resources/read", json!({ "uri": uri })).await;
        let page = read.body["result"]["contents"][0]["text"].as_str().unwrap();
        let page: Value = serde_json::from_str(page).unwrap();
        let mut events = page["events"].as_array().unwrap().iter();
        if let Some(request) = events.find(|event| event["type"] == "caller_tool_request") {
            let pending = &page["pending_caller_requests"][0];
            assert_eq!(pending["request_id"], request["request_id"]);
            break request.clone();
        }
    };
    answer(&caller, &request, json!({ "result": "notified" }))
        .await
        .ok();
    // The second one is not read: when the subscription ends, the caller is absent.
    let second = |event: &Value| {
        event["type"] == "caller_tool_request" && event["request_id"] != request["request_id"]
    };
    admin.follow(&session, second).await;
    drop(stream);
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "caller \"myapp\" is disconnected");
}

#[test(needs(sandbox))]
async fn a_caller_with_a_new_mcp_session_finds_its_pending_requests() {
    let (server, admin, project) = server_with("").await;
    let (first, plain) = owner(&server, &admin).await;
    let mut stream = first.stream().await;
    let session = spawn_from(&first, &project, &format!("{SEND}\n{SEND}")).await;
    let message = until(&mut stream, is_request).await.pop().unwrap();
    let request = message["params"]["data"].clone();
    drop(stream);
    first.delete().await;

    let key = plain.key().to_owned();
    let second = Legacy::connect(server.url(), &key).await;
    let mut stream = second.stream().await;
    let found = second
        .call("session_get", json!({ "session_id": session }))
        .await;
    let pending = found.ok()["pending_caller_requests"][0].clone();
    assert_eq!(pending["request_id"], request["request_id"]);
    assert_eq!(pending["arguments"], json!({ "message": "hello" }));
    respond(&second, &pending, json!(1)).await.ok();
    // The next request is sent on the new stream. Of two answers with one token, the first counts.
    let next = until(&mut stream, |message| {
        is_request(message) && message["params"]["data"]["request_id"] != request["request_id"]
    });
    let message = next.await.pop().unwrap();
    let request = message["params"]["data"].clone();
    let (one, other) = tokio::join!(
        respond(&second, &request, json!("one")),
        answer(&plain, &request, json!({ "result": "other" })),
    );
    assert_ne!(one.is_error(), other.is_error());
    let expected = if one.is_error() { "other" } else { "one" };
    assert_eq!(admin.turn(&session, 1).await["text"], expected);
}

#[test(needs(sandbox))]
async fn a_caller_that_only_reads_its_stream_gets_requests_after_restarts() {
    let (mut server, admin, project) = server_with(SHORT_PRESENCE).await;
    let (caller, _) = owner(&server, &admin).await;
    let stream = caller.stream().await;
    let session = spawn_from(&caller, &project, &format!("{SEND}\n/sleep 3\n{SEND}")).await;
    let request = super::asked(&admin, &session).await;
    for kill in [true, false] {
        if kill {
            server.kill();
        } else {
            assert_eq!(server.stop(), Some(0));
        }
        server.start_again();
    }
    drop(stream);
    let mut stream = caller.stream().await;
    let message = until(&mut stream, is_request).await.pop().unwrap();
    assert_eq!(message["params"]["data"], request, "the same request again");
    respond(&caller, &request, json!(1)).await.ok();
    let next = until(&mut stream, |message| {
        is_request(message) && message["params"]["data"]["request_id"] != request["request_id"]
    });
    let message = next.await.pop().unwrap();
    respond(&caller, &message["params"]["data"], json!("still there"))
        .await
        .ok();
    assert_eq!(admin.turn(&session, 1).await["text"], "still there");
}
