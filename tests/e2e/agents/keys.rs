//! The keys that agents get: how long they last, what they may do, and what no key allows from inside.

use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::Relay;
use support::relay::keys_of_session;

use super::oubliette_tools::{call, code, project, recorder, server_with_project};

#[test(needs(sandbox))]
async fn a_key_is_made_for_each_start_of_an_agent_and_ends_with_it() {
    let (server, admin, _) = server_with_project("[sessions]\nidle_seconds = 1", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let own = format!("project:{two}");
    let agent_keys = recorder(&server, &admin, &two, json!({ "agent_scope": own })).await;
    let key = agent_keys.api_key.clone().unwrap();
    let tokens = admin.call("token_list", json!({})).await;
    let of_session = |tokens: &Value| {
        let tokens = tokens["tokens"].as_array().unwrap().clone();
        let mut own = tokens.into_iter();
        own.find(|token| token["session_id"] == *agent_keys.session_id)
    };
    assert!(of_session(tokens.ok()).is_some_and(|token| token["scope"] == own));
    assert!(!tokens.text.contains(&key));
    // An agent that is stopped for being idle takes its key along.
    let deadline = Instant::now() + scaled(Duration::from_secs(30));
    while server.with_key(&key).tools().await.len() > 1 {
        assert!(Instant::now() < deadline, "the key is still valid");
    }
    let tokens = admin.call("token_list", json!({})).await;
    assert!(of_session(tokens.ok()).is_none());
    admin.message(&agent_keys.session_id, "/sleep 600").await;
    let begun = |event: &Value| event["type"] == "prompt" && event["text"] == "/sleep 600";
    admin.follow(&agent_keys.session_id, begun).await;
    let again = keys_of_session(&server, &two, &agent_keys.session_id);
    let next = again.api_key.unwrap();
    assert_ne!(next, key);
    assert_eq!(
        server
            .with_key(&key)
            .call("project_list", json!({}))
            .await
            .status,
        401
    );
    let found = server.with_key(&next).call("project_list", json!({})).await;
    assert_eq!(found.ok()["projects"].as_array().unwrap().len(), 1);
    // So does one that is ended in the middle, or whose server was killed meanwhile.
    let end = json!({ "session_id": agent_keys.session_id });
    admin.call("session_end", end).await.ok();
    assert_eq!(
        server
            .with_key(&next)
            .call("project_list", json!({}))
            .await
            .status,
        401
    );
}

#[test(needs(sandbox))]
async fn an_agents_key_is_no_wider_than_the_scope_of_who_made_its_session() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({ "agent_scope": "write" })).await;
    let scope_of = async |key: Option<String>| {
        let listed = admin.call("token_list", json!({})).await;
        let tokens = listed.ok()["tokens"].as_array().unwrap().clone();
        let mut minted = tokens
            .iter()
            .filter(|token| token["session_id"].is_string());
        assert!(key.is_some());
        minted
            .next_back()
            .map(|token| token["scope"].as_str().unwrap().to_owned())
    };
    let agent_keys = recorder(&server, &admin, &two, json!({})).await;
    assert_eq!(scope_of(agent_keys.api_key).await.as_deref(), Some("write"));
    let own = format!("project:{two}");
    let narrow = server.with_key(&admin.token(&own).await);
    let agent_keys = recorder(&server, &narrow, &two, json!({})).await;
    assert_eq!(scope_of(agent_keys.api_key).await, Some(own.clone()));
    let read_only = json!({ "agent_scope": format!("{own}:ro") });
    let agent_keys = recorder(&server, &narrow, &two, read_only).await;
    assert_eq!(
        scope_of(agent_keys.api_key).await,
        Some(format!("{own}:ro"))
    );
    let wider = json!({ "project_id": two, "prompt": "x", "agent_scope": "write" });
    let refused = narrow.call("session_spawn", wider).await;
    assert!(refused.sentence().contains("wider than your own scope"));
}

#[test(needs(sandbox))]
async fn neither_its_keys_nor_its_connection_let_an_agent_decide_about_its_own_tree() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let three = project(&admin, "three", json!({})).await;
    let agent_keys = recorder(&server, &admin, &two, json!({ "agent_scope": "admin" })).await;
    let minted = agent_keys.api_key.clone().unwrap();
    let other_key = server.admin_key();
    let mut attached = Relay::attached(&server, &two, &agent_keys).await;
    let mut unattached = Relay::connect(&server, &two).await;
    // A child that asks for something, and a session of another project that does.
    let ask =
        json!({ "prompt": "/ask may I?", "autonomy": "off", "wait_seconds": 0, "agent": "demo" });
    let child = attached.request("session_message", ask).await;
    let child = child["result"]["session_id"].as_str().unwrap().to_owned();
    let more = json!({ "new_session": true, "autonomy": "off" });
    let foreign = admin.spawn_with(&three, "/ask may I?", more).await;
    let question = async |session: &str| {
        let asked = |event: &Value| event["type"] == "permission_request";
        let log = admin.follow(session, asked).await;
        let request = log.last().unwrap()["request_id"].clone();
        json!({ "session_id": session, "request_id": request, "decision": "allow" })
    };
    let (own, others) = (question(&child).await, question(&foreign).await);
    // Any key on its own connection and on one that is attached to no session, and its own key anywhere.
    let from_token = json!({ "name": "handed on", "scope": "admin" });
    let handed = call(&mut attached, &other_key, "token_create", from_token).await;
    let handed_on = handed["result"]["structuredContent"]["key"].as_str();
    let handed_on = handed_on.unwrap_or_else(|| panic!("{handed}")).to_owned();
    let raise = json!({ "project_id": two, "max_agents_per_session": 1000 });
    let widen = json!({ "project_id": two, "agent_scope": "admin" });
    let unified = json!({ "action": "update", "project_id": two, "max_cost_usd": 1000.0 });
    for (name, arguments) in [
        ("session_permit", own.clone()),
        ("project_update", raise.clone()),
        ("project_update", widen),
        ("project", unified),
    ] {
        let refused = call(&mut attached, &minted, name, arguments.clone()).await;
        assert_eq!(code(&refused), -32002, "{name} {refused}");
        let reason = refused["error"]["message"].as_str().unwrap();
        let (words, reason) = reason.split_once(": ").unwrap();
        assert_eq!(words, "tool not allowed for this token scope");
        assert!(reason.starts_with("an agent may not "), "{reason}");
        let refused = call(&mut attached, &other_key, name, arguments.clone()).await;
        assert_eq!(code(&refused), -32002, "{name} {refused}");
        let refused = call(&mut unattached, &other_key, name, arguments.clone()).await;
        assert_eq!(code(&refused), -32002, "{name} {refused}");
        for key in [&minted, &handed_on] {
            let refused = call(&mut unattached, key, name, arguments.clone()).await;
            assert_eq!(code(&refused), -32002, "{name} {refused}");
            let refused = server.with_key(key).call(name, arguments.clone()).await;
            assert_eq!(refused.code(), -32002, "{name} {}", refused.text);
        }
    }
    // Its scope allows it to decide about sessions that are not in its own tree.
    let permitted = call(&mut attached, &minted, "session_permit", others).await;
    assert_eq!(permitted["result"]["isError"], false, "{permitted}");
    let raise = json!({ "project_id": three, "max_agents_per_session": 1000 });
    let raised = call(&mut attached, &minted, "project_update", raise).await;
    assert_eq!(raised["result"]["isError"], false, "{raised}");
    // The administrator decides about the child.
    admin.call("session_permit", own).await.ok();

    // A session that it spawns by any name is below it, also in another project.
    for (key, project) in [(&minted, &two), (&minted, &three), (&other_key, &three)] {
        for (name, action) in [
            ("session_spawn", ""),
            ("session", "spawn"),
            ("session", "message"),
        ] {
            let mut spawn = json!({ "project_id": project, "prompt": "/say x", "agent": "demo" });
            if !action.is_empty() {
                spawn["action"] = json!(action);
            }
            let spawned = call(&mut attached, key, name, spawn).await;
            let result = &spawned["result"]["structuredContent"];
            assert_eq!(result["spawned"], true, "{spawned}");
            let session = admin.session(result["session_id"].as_str().unwrap()).await;
            assert_eq!(session["parent_id"], *agent_keys.session_id);
            assert_eq!(session["depth"], 1);
        }
    }
    let tenth = json!({ "project_id": three, "prompt": "/say x", "agent": "demo" });
    let over = call(&mut attached, &minted, "session_spawn", tenth).await;
    assert_eq!(over["result"]["isError"], true, "{over}");
    let over = over["result"]["content"][0]["text"].as_str().unwrap();
    assert!(over.contains("spawns_per_minute"), "{over}");

    // The key of one session is none on the connection of another; what it made ends with it.
    let other_keys = recorder(&server, &admin, &two, json!({})).await;
    let mut other = Relay::attached(&server, &two, &other_keys).await;
    let refused = call(&mut other, &minted, "project_list", json!({})).await;
    assert_eq!(code(&refused), -32001, "{refused}");
    let end = json!({ "session_id": agent_keys.session_id });
    admin.call("session_end", end).await.ok();
    let gone = call(&mut unattached, &handed_on, "project_list", json!({})).await;
    assert_eq!(code(&gone), -32001, "{gone}");
}

#[test(needs(sandbox))]
async fn a_child_gets_no_more_than_its_parent_has() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(
        &admin,
        "two",
        json!({ "agent": "recorder", "agent_scope": "write" }),
    )
    .await;
    let own = format!("project:{two}:ro");
    let agent_keys = recorder(&server, &admin, &two, json!({ "agent_scope": own })).await;
    let mut relay = Relay::attached(&server, &two, &agent_keys).await;
    let wider = json!({ "prompt": "/say x", "agent_scope": "write" });
    let refused = relay.request("session_message", wider).await;
    assert_eq!(code(&refused), -32002, "{refused}");
    assert_eq!(refused["error"]["data"]["parameter"], "agent_scope");
    let child = relay
        .request("session_message", json!({ "prompt": "/say x" }))
        .await;
    let child = child["result"]["session_id"].as_str().unwrap();
    let child = keys_of_session(&server, &two, child);
    let mut below = Relay::attached(&server, &two, &child).await;
    let key = child.api_key.unwrap();
    let listed = call(&mut below, &key, "session_list", json!({})).await;
    assert_eq!(listed["result"]["isError"], false, "{listed}");
    let spawn = json!({ "project_id": two, "prompt": "/say x" });
    let refused = call(&mut below, &key, "session_spawn", spawn).await;
    assert_eq!(code(&refused), -32002, "{refused}");

    // Without a key of its own a parent has none to give.
    let three = project(&admin, "three", json!({ "agent": "recorder" })).await;
    let agent_keys = recorder(&server, &admin, &three, json!({})).await;
    let mut relay = Relay::attached(&server, &three, &agent_keys).await;
    let wider = json!({ "prompt": "/say x", "agent_scope": format!("project:{three}:ro") });
    let refused = relay.request("session_message", wider).await;
    assert_eq!(code(&refused), -32002, "{refused}");
}
