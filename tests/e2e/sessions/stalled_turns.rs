//! Turns in which the agent makes no progress: they end, and the session goes on.

use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::relay::{RECORDER_CONFIG, keys_of_session};
use support::{Modern, Relay, Server, ServerOptions};

async fn with_settings(settings: &str) -> (Server, Modern, String) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n[sessions]\n{settings}\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    (server, admin, project)
}

/// The end of a turn that was ended because nothing happened in it.
async fn stalled(admin: &Modern, session: &str, turn: usize) -> Value {
    let completion = admin.turn(session, turn).await;
    assert_eq!(completion["stop_reason"], "error", "{completion}");
    let error = completion["error"].as_str().unwrap();
    assert!(error.contains("`sessions.stalled_seconds`"), "{error}");
    // The session goes on, and a caller that only polls sees why.
    let seen = admin.status(session, "idle").await;
    assert_eq!(seen["error"], error);
    completion
}

async fn logged(admin: &Modern, session: &str, text: &str) -> bool {
    let log = admin.log(session).await;
    let contains = |event: &Value| {
        let message = event["message"].as_str();
        event["type"] == "log" && message.is_some_and(|message| message.contains(text))
    };
    log.iter().any(contains)
}

#[test(needs(sandbox))]
async fn a_turn_without_progress_fails_and_the_session_goes_on() {
    let (_server, admin, project) = with_settings("stalled_seconds = 4\ncancel_seconds = 8").await;
    let session = admin.spawn(&project, "/say half\n/sleep 600").await;
    assert_eq!(stalled(&admin, &session, 1).await["text"], "half");
    assert!(!logged(&admin, &session, "was killed").await);
    admin.message(&session, "/say better").await;
    let completion = admin.turn(&session, 2).await;
    assert_eq!(
        (&completion["text"], &completion["stop_reason"]),
        (&json!("better"), &json!("end_turn"))
    );
    assert_eq!(admin.session(&session).await["error"], Value::Null);
    // An agent that does not stop is killed, and started again for the next message.
    admin.message(&session, "/hang").await;
    stalled(&admin, &session, 3).await;
    assert!(logged(&admin, &session, "was killed").await);
    admin.message(&session, "/say up again").await;
    assert_eq!(admin.turn(&session, 4).await["text"], "up again");
}

#[test(needs(sandbox))]
async fn retries_are_no_progress_and_their_reason_is_in_the_error() {
    let (_server, admin, project) = with_settings("stalled_seconds = 5").await;
    let error = json!({ "message": "HTTP 529", "willRetry": true });
    let update = json!({
        "sessionUpdate": "session_info_update", "_meta": { "codex": { "error": error } },
    });
    let params = json!({ "sessionId": "s", "update": update });
    let retry = json!({ "jsonrpc": "2.0", "method": "session/update", "params": params });
    let prompt = format!("/garbage {retry}\n/sleep 0.3\n").repeat(100);
    let session = admin.spawn(&project, &prompt).await;
    let completion = stalled(&admin, &session, 1).await;
    let error = completion["error"].as_str().unwrap();
    assert!(error.contains("HTTP 529"), "{error}");
}

#[test(needs(sandbox))]
async fn a_stalled_turn_is_ended_by_the_next_server() {
    let (mut server, admin, project) =
        with_settings("stalled_seconds = 5\ncancel_seconds = 3").await;
    let session = admin.spawn(&project, "/say half\n/hang").await;
    let said = |event: &Value| event["type"] == "delta" || event["type"] == "message";
    admin.follow(&session, said).await;
    server.kill();
    server.start_again();
    // The second time it dies while the agent is being stopped.
    let ending = |event: &Value| {
        let message = event["message"].as_str().unwrap_or_default();
        message.contains("its turn is being ended")
    };
    admin.follow(&session, ending).await;
    server.kill();
    server.start_again();
    assert_eq!(stalled(&admin, &session, 1).await["text"], "half");
    admin.message(&session, "/say on").await;
    assert_eq!(admin.turn(&session, 2).await["text"], "on");
}

#[test(needs(sandbox), mostly_waits)]
async fn a_turn_that_waits_or_runs_a_tool_is_not_stalled() {
    // Longer than an agent takes for its first turn, on a busy machine too.
    let stalled = scaled(Duration::from_secs(6)).as_secs();
    let (server, admin, project) = with_settings(&format!("stalled_seconds = {stalled}")).await;
    let asked = admin
        .spawn_with(
            &project,
            "/sh echo allowed",
            json!({ "autonomy": "low", "new_session": true }),
        )
        .await;
    let tool = json!({ "name": "ping", "description": "x", "inputSchema": { "type": "object" } });
    let context = json!({ "caller_id": "app", "caller_tools": [tool] });
    let calling = admin
        .spawn_with(
            &project,
            "/tool app_ping {}",
            json!({ "context": context, "new_session": true }),
        )
        .await;
    let is_call = |event: &Value| event["type"] == "caller_tool_request";
    let call = admin.follow(&calling, is_call).await.pop().unwrap();
    let question = admin.status(&asked, "waiting").await;

    // A call that the agent does not report, from its own client.
    let recorder = json!({ "agent": "recorder", "new_session": true });
    let silent = admin.spawn_with(&project, "/say hello", recorder).await;
    admin.turn(&silent, 1).await;
    let keys = keys_of_session(&server, &project, &silent);
    let mut relay = Relay::attached(&server, &project, &keys).await;
    let child = "/sh until [ -e go ]; do sleep 0.1; done";
    let child = json!({ "agent": "demo", "prompt": child });
    relay.begin(1, "session_message", child).await;
    let is_child = |event: &Value| event["type"] == "child_spawned";
    admin.follow(&silent, is_child).await;
    let sleep = format!("/sleep {}\n/say awake", stalled + 3);
    admin.message(&silent, &sleep).await;
    assert_eq!(admin.turn(&silent, 2).await["text"], "awake");

    // All of them have waited for longer than the limit.
    std::fs::write(server.workspace(&project).join("go"), "").unwrap();
    relay.reply(1).await;
    let answer = json!({
        "session_id": calling, "request_id": call["request_id"], "result": "pong",
    });
    admin.call("caller_tool_response", answer).await.ok();
    let answer = json!({
        "session_id": asked, "request_id": question["waiting_for"]["request_id"],
        "decision": "allow",
    });
    admin.call("session_permit", answer).await.ok();
    for session in [&calling, &asked] {
        let completion = admin.turn(session, 1).await;
        assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    }
}
