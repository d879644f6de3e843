//! MCP sessions: whose they are, that they survive, and that nobody can hold one up.

use std::time::Duration;

use serde_json::json;
use support::{Legacy, Server};

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
async fn a_reader_that_stops_reading_does_not_hold_up_its_session() {
    let server = Server::start();
    let session = Legacy::connect(server.url(), &server.admin_key()).await;
    // Opened and never read.
    let _stalled = session.stream().await;
    let _also = session.stream().await;
    let work = async {
        for _ in 0..100 {
            session.call("project_list", json!({})).await.ok();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), work)
        .await
        .expect("the session is held up");
}

#[tokio::test]
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

#[tokio::test]
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
        let reply = support::Reply::of(response).await;
        assert_eq!(reply.body["result"]["protocolVersion"], version);
        assert_eq!(reply.body["result"]["serverInfo"]["name"], "oubliette");
    }
}
