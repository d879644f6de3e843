//! A call that waits ends with the token that it was made with.

use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{Modern, Reply, Server, ServerOptions};

const WAIT_SECONDS: u64 = 50;
/// Much shorter than the wait, much longer than a refusal takes.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(20);

struct Revocable {
    client: Modern,
    token_id: Value,
}

async fn revocable(server: &Server, admin: &Modern, scope: &str) -> Revocable {
    let made = json!({ "name": "revocable", "scope": scope });
    let made = admin.call("token_create", made).await;
    Revocable {
        client: server.with_key(made.ok()["key"].as_str().unwrap()),
        token_id: made.ok()["token_id"].clone(),
    }
}

/// Revokes a token while its call waits; the reply to that call.
async fn revoked_during(
    admin: &Modern,
    token: Revocable,
    operation: &'static str,
    mut call: Value,
) -> Reply {
    call["wait_seconds"] = json!(WAIT_SECONDS);
    let client = token.client;
    let waiting = tokio::spawn(async move { client.call(operation, call).await });
    // The metrics count a call when it ends, so only time shows that it has begun to wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "{operation} does not wait");
    let base = admin.slowest_call().await;
    let revoked = Instant::now();
    let revoke = json!({ "token_id": token.token_id });
    admin.call("token_revoke", revoke).await.ok();
    let reply = tokio::time::timeout(REFUSAL_TIMEOUT, waiting).await;
    let reply = reply.expect("the call waits on without its token").unwrap();
    // Within a second, and what a busy machine adds to that.
    let (elapsed, limit) = (
        revoked.elapsed(),
        scaled(Duration::from_secs(1)) + 20 * base,
    );
    assert!(
        elapsed < limit,
        "{operation}: refused after {elapsed:?}, not {limit:?}"
    );
    reply
}

#[test(needs(sandbox))]
async fn a_wait_for_events_ends_with_its_token() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say hello").await;
    admin.turn(&session, 1).await;
    admin.status(&session, "idle").await;
    let last = admin.session(&session).await["last_index"].clone();
    for (scope, more) in [
        ("write".to_owned(), json!({})),
        (
            format!("project:{project}:ro"),
            json!({ "include_children": false }),
        ),
    ] {
        let token = revocable(&server, &admin, &scope).await;
        let mut call = more;
        call["session_id"] = json!(session);
        call["since_index"] = last.clone();
        let reply = revoked_during(&admin, token, "session_events", call).await;
        assert_eq!(reply.code(), -32002, "{}", reply.text);
    }
}

#[test(needs(sandbox))]
async fn a_wait_for_the_end_of_a_turn_ends_with_its_token() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say hello").await;
    admin.turn(&session, 1).await;
    for (operation, call) in [
        (
            "session_message",
            json!({ "session_id": session, "prompt": "/sleep 100" }),
        ),
        (
            "session_spawn",
            json!({ "project_id": project, "prompt": "/sleep 100", "new_session": true }),
        ),
    ] {
        let token = revocable(&server, &admin, "write").await;
        let reply = revoked_during(&admin, token, operation, call).await;
        assert_eq!(reply.code(), -32002, "{operation}: {}", reply.text);
    }
}

#[test(needs(sandbox))]
async fn a_wait_for_the_output_of_a_command_ends_with_its_token() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let token = revocable(&server, &admin, &format!("project:{project}")).await;
    let start = json!({
        "project_id": project, "exec_id": "quiet", "command": "echo ready; sleep 1000",
        "wait_seconds": WAIT_SECONDS,
    });
    let started = token.client.call("container_exec", start).await;
    assert_eq!(started.ok()["stdout"], "ready\n", "{}", started.text);
    let more = json!({
        "project_id": project, "exec_id": "quiet", "offsets": started.ok()["offsets"],
    });
    let reply = revoked_during(&admin, token, "container_exec", more).await;
    let sentence = reply.sentence();
    assert!(sentence.contains("key has ended"), "{sentence}");
}
