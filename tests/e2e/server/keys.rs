//! Keys: what is accepted, what ends them, and how wrong ones are slowed.

use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use serde_json::json;
use support::{Legacy, Server, http};

#[test]
async fn missing_unknown_malformed_and_revoked_keys_get_401_and_a_hint() {
    let server = Server::start();
    let unknown = format!("oub_{}", "A".repeat(43));
    for key in ["", "x", "oub_", &unknown, "oub_\u{7f}"] {
        let response = http()
            .post(server.url())
            .header("accept", "application/json, text/event-stream")
            .header("authorization", format!("Bearer {key}"))
            .json(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }))
            .send()
            .await;
        let Ok(response) = response else { continue };
        assert_eq!(response.status(), 401, "{key:?}");
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        let text = response.text().await.unwrap();
        assert!(text.contains("Authorization"), "{text}");
        assert!(key.len() < 5 || !text.contains(key));
    }
    let none = http().post(server.url()).send().await.unwrap();
    assert_eq!(none.status(), 401);
    let basic = http()
        .post(server.url())
        .basic_auth("admin", Some("x"))
        .send()
        .await
        .unwrap();
    assert_eq!(basic.status(), 401);
}

#[test]
async fn a_revoked_token_fails_on_its_next_call_and_loses_its_streams() {
    let server = Server::start();
    let admin = server.admin();
    let made = admin
        .call("token_create", json!({ "name": "short", "scope": "read" }))
        .await;
    let (id, key) = (
        made.ok()["token_id"].clone(),
        made.ok()["key"].as_str().unwrap().to_owned(),
    );
    let caller = server.with_key(&key);
    caller.call("project_list", json!({})).await.ok();
    let session = Legacy::connect(server.url(), &key).await;
    let stream = session.stream().await;
    assert_eq!(stream.status(), 200);

    let base = admin.slowest_call().await;
    admin
        .call("token_revoke", json!({ "token_id": id }))
        .await
        .ok();
    let revoked = Instant::now();
    let ended = tokio::time::timeout(scaled(Duration::from_secs(60)), stream.bytes()).await;
    ended
        .expect("the stream of a revoked token stays open")
        .ok();
    // Within a second, and what a busy machine adds to that.
    let (elapsed, limit) = (
        revoked.elapsed(),
        scaled(Duration::from_secs(1)) + 20 * base,
    );
    assert!(elapsed < limit, "it ended after {elapsed:?}, not {limit:?}");
    assert_eq!(caller.call("project_list", json!({})).await.status, 401);
    assert_eq!(session.call("project_list", json!({})).await.status, 401);
    let again = admin.call("token_revoke", json!({ "token_id": id })).await;
    assert!(
        again.sentence().contains("already been revoked"),
        "{}",
        again.sentence()
    );
}

#[test]
async fn an_expired_token_fails_and_its_stream_ends_by_itself() {
    let server = Server::start();
    let admin = server.admin();
    // The shortest lifetime in which this machine opens a stream.
    let mut opened = None;
    for seconds in [1.0, 4.0, 16.0] {
        let hours = seconds / 3600.0;
        let made = json!({ "name": "t", "scope": "read", "expires_in_hours": hours });
        let made = admin.call("token_create", made).await;
        let key = made.ok()["key"].as_str().unwrap().to_owned();
        if let Some(session) = Legacy::try_connect(server.url(), &key).await {
            let stream = session.stream().await;
            if stream.status() == 200 {
                opened = Some((key, stream));
                break;
            }
        }
    }
    let (key, stream) = opened.expect("no stream was opened in time");
    let ended = tokio::time::timeout(scaled(Duration::from_secs(60)), stream.bytes()).await;
    ended
        .expect("the stream of an expired token stays open")
        .ok();
    assert_eq!(
        server
            .with_key(&key)
            .call("project_list", json!({}))
            .await
            .status,
        401
    );
    let listed = admin.call("token_list", json!({})).await;
    let listed = listed.ok()["tokens"].as_array().unwrap().clone();
    assert_eq!(listed.last().unwrap()["status"], "expired");
    for (parameters, expected) in [
        (json!({ "expires_at": "2020-01-01T00:00:00Z" }), "past"),
        (json!({ "expires_at": "soon" }), "not a time"),
        (json!({ "expires_in_hours": -1 }), "more than 0"),
        (
            json!({ "expires_in_hours": 1, "expires_at": "2099-01-01T00:00:00Z" }),
            "either",
        ),
        (
            json!({ "scope": "project:00000000-0000-4000-8000-000000000404" }),
            "not found",
        ),
        (json!({ "scope": "root" }), "admin:ro"),
    ] {
        let mut parameters = parameters;
        parameters["name"] = json!("t");
        if parameters.get("scope").is_none() {
            parameters["scope"] = json!("read");
        }
        let refused = admin.call("token_create", parameters).await;
        assert!(
            refused.sentence().contains(expected),
            "{}",
            refused.sentence()
        );
    }
}

#[test]
async fn a_flood_of_wrong_keys_is_slowed_and_a_valid_key_is_not() {
    let server = Server::start();
    let wrong = server.with_key(&format!("oub_{}", "B".repeat(43)));
    let mut statuses = Vec::new();
    for _ in 0..40 {
        statuses.push(wrong.call("project_list", json!({})).await.status);
    }
    assert_eq!(statuses[0], 401);
    assert_eq!(*statuses.last().unwrap(), 429);
    let response = wrong.request("tools/list", json!({})).send().await.unwrap();
    assert!(response.headers().contains_key("retry-after"));
    for _ in 0..50 {
        server.admin().call("project_list", json!({})).await.ok();
    }
}

#[test]
async fn the_last_admin_token_cannot_be_revoked_and_keys_are_never_shown_again() {
    let server = Server::start();
    let admin = server.admin();
    let listed = admin.call("token_list", json!({})).await;
    assert!(!listed.text.contains(&server.admin_key()));
    let id = listed.ok()["tokens"][0]["token_id"].clone();
    let refused = admin.call("token_revoke", json!({ "token_id": id })).await;
    assert!(
        refused.sentence().contains("last valid admin"),
        "{}",
        refused.sentence()
    );
    let second = server.with_key(&admin.token("admin").await);
    second
        .call("token_revoke", json!({ "token_id": id }))
        .await
        .ok();
    assert_eq!(admin.call("token_list", json!({})).await.status, 401);
}

#[test]
async fn keys_and_secrets_are_in_no_log_and_not_in_the_database() {
    let server = Server::start();
    let admin = server.admin();
    let key = admin.token("read").await;
    server
        .with_key(&key)
        .call("project_list", json!({}))
        .await
        .ok();
    server
        .with_key(&format!("{key}x"))
        .call("project_list", json!({}))
        .await;
    let database = std::fs::read(server.home().join("oubliette.db")).unwrap();
    let wal = std::fs::read(server.home().join("oubliette.db-wal")).unwrap_or_default();
    for secret in [&key, &server.admin_key()] {
        let found = |bytes: &[u8]| bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
        assert!(
            !found(&database) && !found(&wal),
            "a key is stored in clear"
        );
        assert!(
            !server.log().contains(secret.as_str()),
            "a key is in the log"
        );
    }
}
