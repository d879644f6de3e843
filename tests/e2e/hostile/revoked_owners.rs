//! What agents made or may do ends with the token that they act for, and with what it may do.

use serde_json::{Value, json};
use support::{Modern, Relay, Server};

use crate::agents::oubliette_tools::{call, code, project, recorder, server_with_project};

const ADMIN: &str = r#"{"name": "stolen", "scope": "admin"}"#;

/// A token that is going to end: its client and its id.
async fn token(server: &Server, admin: &Modern, scope: &str) -> (Modern, Value) {
    let made = json!({ "name": "giver", "scope": scope });
    let made = admin.call("token_create", made).await;
    let client = server.with_key(made.ok()["key"].as_str().unwrap());
    (client, made.ok()["token_id"].clone())
}

/// A token with the scope `admin` that the agent with these keys creates.
async fn made_by_agent(relay: &mut Relay, api_key: &str) -> String {
    let arguments = serde_json::from_str(ADMIN).unwrap();
    let made = call(relay, api_key, "token_create", arguments).await;
    let key = made["result"]["structuredContent"]["key"].as_str();
    key.unwrap_or_else(|| panic!("{made}")).to_owned()
}

#[test(needs(sandbox))]
async fn keys_that_ended_with_an_owner_do_not_return_with_the_next_one() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let (giver, giver_id) = token(&server, &admin, "admin").await;
    let keys = recorder(&server, &giver, &two, json!({ "agent_scope": "admin" })).await;
    let minted = keys.api_key.clone().unwrap();
    let mut relay = Relay::attached(&server, &two, &keys).await;
    let planted = server.with_key(&made_by_agent(&mut relay, &minted).await);
    planted.call("token_list", json!({})).await.ok();

    let revoke = json!({ "token_id": giver_id });
    admin.call("token_revoke", revoke).await.ok();
    assert_eq!(planted.call("project_list", json!({})).await.status, 401);
    let tool = json!({ "name": "noop", "description": "x", "inputSchema": { "type": "object" } });
    let context = json!({ "caller_id": "bob", "caller_tools": [tool] });
    let message = json!({
        "session_id": keys.session_id, "prompt": "/say hello", "context": context,
    });
    admin.call("session_message", message).await.ok();
    admin.turn(&keys.session_id, 2).await;
    assert_eq!(planted.call("project_list", json!({})).await.status, 401);
    assert_eq!(
        server
            .with_key(&minted)
            .call("project_list", json!({}))
            .await
            .status,
        401
    );
}

#[test(needs(sandbox))]
async fn tokens_that_an_agent_created_may_do_no_more_than_the_agent_may_now() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({ "agent_scope": "admin" })).await;
    let keys = recorder(&server, &admin, &two, json!({})).await;
    let mut relay = Relay::attached(&server, &two, &keys).await;
    let minted = keys.api_key.clone().unwrap();
    let created = server.with_key(&made_by_agent(&mut relay, &minted).await);
    created.call("token_list", json!({})).await.ok();
    let lowered = json!({ "project_id": two, "agent_scope": "read" });
    admin.call("project_update", lowered).await.ok();
    for client in [created, server.with_key(&minted)] {
        let refused = client
            .call("token_create", serde_json::from_str(ADMIN).unwrap())
            .await;
        assert_eq!(refused.code(), -32002, "{}", refused.text);
        client.call("project_list", json!({})).await.ok();
    }
}

#[test(needs(sandbox))]
async fn an_agent_starts_no_sessions_after_its_owner_was_revoked() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let (giver, giver_id) = token(&server, &admin, "write").await;
    let keys = recorder(&server, &giver, &two, json!({})).await;
    let mut relay = Relay::attached(&server, &two, &keys).await;
    let child = json!({ "prompt": "/say one", "agent": "demo" });
    let child = relay.request("session_message", child).await;
    assert_eq!(child["result"]["text"], "one", "{child}");
    let revoke = json!({ "token_id": giver_id });
    admin.call("token_revoke", revoke).await.ok();
    let again = json!({ "prompt": "/say two", "session_id": child["result"]["session_id"] });
    for message in [again, json!({ "prompt": "/say two", "agent": "demo" })] {
        let refused = relay.request("session_message", message).await;
        let text = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(text.contains("no longer valid"), "{refused}");
    }
}

#[test(needs(sandbox))]
async fn an_agent_loosens_nothing_that_bounds_it() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let settings = json!({ "autonomy": "off", "protected_paths": ["guard"] });
    let two = project(&admin, "two", settings).await;
    let own = json!({ "agent_scope": format!("project:{two}") });
    let keys = recorder(&server, &admin, &two, own).await;
    let key = keys.api_key.clone().unwrap();
    let mut relay = Relay::attached(&server, &two, &keys).await;
    for change in [
        json!({ "autonomy": "high" }),
        json!({ "protected_paths": [] }),
    ] {
        let mut change = change;
        change["project_id"] = json!(two);
        let refused = call(&mut relay, &key, "project_update", change).await;
        assert_eq!(code(&refused), -32002, "{refused}");
    }
    let other = json!({ "project_id": two, "description": "mine" });
    let changed = call(&mut relay, &key, "project_update", other).await;
    assert_eq!(changed["result"]["isError"], false, "{changed}");
    let shown = admin
        .call("project_get", json!({ "project_id": two }))
        .await;
    assert_eq!(shown.ok()["autonomy"], "off");
    assert_eq!(shown.ok()["protected_paths"], json!(["guard"]));
}

#[test(needs(sandbox))]
async fn a_session_with_the_tools_of_another_token_is_not_joined() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({ "agent": "demo" })).await;
    let tool = json!({ "name": "deploy", "description": "x", "inputSchema": { "type": "object" } });
    let context = json!({ "caller_id": "ops", "caller_tools": [tool] });
    let session = admin
        .spawn_with(&two, "/say hello", json!({ "context": context }))
        .await;
    admin.turn(&session, 1).await;
    let again = json!({ "project_id": two, "prompt": "/say again" });
    let again = admin.call("session_spawn", again).await;
    assert_eq!(again.ok()["session_id"], *session, "{}", again.text);
    admin.turn(&session, 2).await;

    let other = server.with_key(&admin.token(&format!("project:{two}")).await);
    let prompt = r#"/tool ops_deploy {"to": "elsewhere"}"#;
    let spawn = json!({ "project_id": two, "prompt": prompt });
    let spawned = other.call("session_spawn", spawn).await;
    let joined = spawned.ok()["session_id"].as_str().unwrap().to_owned();
    assert_ne!(joined, session);
    other.turn(&joined, 1).await;
    let shown = admin.session(&session).await;
    assert_eq!(shown["pending_caller_requests"], json!([]), "{shown}");
}
