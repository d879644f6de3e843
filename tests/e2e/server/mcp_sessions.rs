//! MCP sessions: who owns them, that they survive restarts, and that no reader can block one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Legacy, Server, ServerOptions, StalledReader};
use tokio::task::JoinSet;

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

#[test(multi_thread)]
async fn requests_at_once_after_a_restart_wait_until_their_session_is_restored() {
    let mut server = Server::start();
    let owner = Arc::new(Legacy::connect(server.url(), &server.admin_key()).await);
    for _ in 0..15 {
        server.kill();
        server.start_again();
        let mut requests = JoinSet::new();
        for number in 0..24 {
            let owner = owner.clone();
            requests.spawn(async move {
                // Some arrive while the first one restores the session.
                tokio::time::sleep(Duration::from_micros(250) * number).await;
                if number % 4 == 0 {
                    owner.stream().await.status().as_u16()
                } else {
                    owner.call("project_list", json!({})).await.status
                }
            });
        }
        assert_eq!(requests.join_all().await, [200; 24]);
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
    let session = Arc::new(Legacy::connect(server.url(), &server.admin_key()).await);
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

#[test]
async fn only_clients_that_understand_them_get_events_without_data() {
    let server = Server::start();
    let key = server.admin_key();
    let request = |method: reqwest::Method, session: Option<&str>| {
        let request = support::http()
            .request(method, server.url())
            .bearer_auth(&key)
            .header("accept", "application/json, text/event-stream");
        match session {
            Some(session) => request.header("mcp-session-id", session),
            None => request,
        }
    };
    for (version, understands) in [
        ("2025-03-26", false),
        ("2025-06-18", false),
        ("2025-11-25", true),
    ] {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": {},
            "clientInfo": { "name": "raw", "version": "0" } } });
        let initialize = request(reqwest::Method::POST, None).json(&body);
        let response = initialize.send().await.unwrap();
        let session = response.headers()["mcp-session-id"].to_str().unwrap();
        let session = Some(session.to_owned());
        let session = session.as_deref();
        let initialized = response.text().await.unwrap();
        let body = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let notified = request(reqwest::Method::POST, session).json(&body);
        assert_eq!(notified.send().await.unwrap().status(), 202);

        let body = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
        let listing = request(reqwest::Method::POST, session).json(&body);
        let listed = listing.send().await.unwrap().text().await.unwrap();
        let streaming = request(reqwest::Method::GET, session).send().await.unwrap();
        let deleting = request(reqwest::Method::DELETE, session).send();
        assert_eq!(deleting.await.unwrap().status(), 204);
        let streamed = streaming.text().await.unwrap_or_default();

        let empty = |events: &str| {
            let mut lines = events.lines().filter_map(|line| line.strip_prefix("data:"));
            lines.any(|data| data.trim().is_empty())
        };
        assert!(!empty(&initialized), "{version}: {initialized}");
        assert_eq!(empty(&listed), understands, "{version}: {listed}");
        assert_eq!(empty(&streamed), understands, "{version}: {streamed}");
    }
}

#[test]
async fn hosts_and_protocols_are_those_of_the_configuration() {
    let server = Server::start_with(ServerOptions {
        config: "[server]\nallowed_hosts = [\"box.example\"]\n[mcp]\nmax_protocol = \
                 \"2025-06-18\"\n"
            .to_owned(),
        ..ServerOptions::default()
    });
    for (host, status) in [
        ("localhost", 200),
        ("box.example", 200),
        ("box.example.evil.example", 403),
        ("evil.example", 403),
    ] {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "raw", "version": "0" } } });
        let initialize = support::http()
            .post(server.url())
            .bearer_auth(server.admin_key())
            .header("host", host)
            .header("accept", "application/json, text/event-stream")
            .json(&body);
        let reply = support::Reply::read(initialize.send().await.unwrap()).await;
        assert_eq!(reply.status, status, "{host}: {}", reply.text);
        if status == 200 {
            assert_eq!(reply.body["result"]["protocolVersion"], "2025-06-18");
        }
    }
    // The newest protocol has no MCP sessions; it is not offered.
    let newest = server.admin().send("tools/list", json!({})).await;
    assert!(newest.body["result"].is_null(), "{}", newest.text);
}
