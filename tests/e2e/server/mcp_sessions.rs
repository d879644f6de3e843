//! MCP sessions: who owns them, that they survive restarts, and that no reader can block one.

use serde_json::{Value, json};
use support::{Legacy, Server, ServerOptions, StalledReader};

#[test]
async fn a_session_is_used_read_and_ended_only_by_the_token_that_opened_it() {
    let server = Server::start();
    let admin = server.admin();
    let owner = Legacy::connect(server.url(), &server.admin_key()).await;
    let other = owner.with_key(&admin.token("admin").await);

    let foreign = other.call("project_list", json!({})).await;
    assert_eq!(foreign.status, 404, "{}", foreign.text);
    assert_eq!(other.stream().await.status(), 404);
    assert_eq!(other.delete().await.status, 404);
    let missing = Legacy::connect(server.url(), &server.admin_key()).await;
    missing.delete().await;
    let unknown = missing.call("project_list", json!({})).await;
    assert_eq!(
        (unknown.status, &unknown.text),
        (foreign.status, &foreign.text)
    );

    owner.call("project_list", json!({})).await.ok();
    assert_eq!(owner.delete().await.status, 204);
    assert_eq!(owner.call("project_list", json!({})).await.status, 404);
}

#[test]
async fn a_session_survives_a_restart_and_still_belongs_to_its_token() {
    let mut server = Server::start();
    let owner = Legacy::connect(server.url(), &server.admin_key()).await;
    let other = owner.with_key(&server.admin().token("admin").await);
    for restart in ["kill", "stop"] {
        match restart {
            "kill" => server.kill(),
            _ => assert_eq!(server.stop(), Some(0)),
        }
        server.start_again();
        assert_eq!(
            other.call("project_list", json!({})).await.status,
            404,
            "{restart}"
        );
        owner.call("project_list", json!({})).await.ok();
        assert_eq!(owner.stream().await.status(), 200, "{restart}");
    }
}

/// More messages than wait for a reader, and more bytes than fit into the kernel's buffers.
const FLOOD: &str = "/repeat 700 /sh printf '%020000d' 7";

#[test(needs(sandbox), limit = 240)]
async fn a_reader_that_stops_reading_loses_its_stream_and_holds_up_nothing() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let client = Legacy::connect(server.url(), &server.admin_key()).await;
    let mut stalled = StalledReader::connect(&server, &server.admin_key()).await;
    let headers = [
        format!("mcp-session-id: {}", client.session()),
        format!("mcp-protocol-version: {}", Legacy::VERSION),
    ];
    stalled.send("GET", &headers, None).await;
    let flood = json!({ "project_id": project, "prompt": FLOOD });
    let spawned = client.call("session_spawn", flood).await;
    let session = spawned.ok()["session_id"].as_str().unwrap().to_owned();
    // The turn ends and calls are answered, though nothing is read.
    for _ in 0..100 {
        client.call("project_list", json!({})).await.ok();
    }
    admin.turn(&session, 1).await;
    client.call("project_list", json!({})).await.ok();

    // What was in buffers can still be read, then the stream is over.
    let text = stalled.read_to_end().await;
    let received = text.matches("\"tool_result\"").count();
    assert!(0 < received && received < 700, "{received} of 700 results");

    let mut stream = client.stream().await;
    let message = json!({ "session_id": session, "prompt": "/say Again." });
    client.call("session_message", message).await.ok();
    let is_again = |message: &Value| message["params"]["data"]["text"] == "Again.";
    super::push::until(&mut stream, is_again).await;
}

#[test]
async fn many_calls_at_once_in_one_session_are_all_answered() {
    let server = Server::start();
    let session = std::sync::Arc::new(Legacy::connect(server.url(), &server.admin_key()).await);
    let calls = (0..200).map(|n| {
        let session = session.clone();
        tokio::spawn(async move {
            session
                .call("project_create", json!({ "name": format!("p{n}") }))
                .await
                .ok()
                .clone()
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let listed = session.call("project_list", json!({ "limit": 1000 })).await;
    assert_eq!(listed.ok()["projects"].as_array().unwrap().len(), 200);
}

#[test]
async fn the_oldest_protocol_with_sessions_is_spoken_too() {
    let server = Server::start();
    let key = server.admin_key();
    for version in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": {},
            "clientInfo": { "name": "raw", "version": "0" } } });
        let response = support::http()
            .post(server.url())
            .bearer_auth(&key)
            .header("accept", "application/json, text/event-stream")
            .json(&body)
            .send()
            .await
            .unwrap();
        let reply = support::Reply::read(response).await;
        assert_eq!(reply.body["result"]["protocolVersion"], version);
        assert_eq!(reply.body["result"]["serverInfo"]["name"], "oubliette");
    }
}
