//! A grant is as alive as its giver, and no agent leaves its tree with any key.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::relay::keys_of_session;
use support::{Modern, Relay, Server};

use crate::agents::oubliette_tools::{call, code, project, recorder, server_with_project};

struct Giver {
    client: Modern,
    token_id: Value,
}

/// A token that is going to end.
async fn giver(server: &Server, admin: &Modern, scope: &str, more: Value) -> Giver {
    let mut parameters = more;
    parameters["name"] = json!("giver");
    parameters["scope"] = json!(scope);
    let made = admin.call("token_create", parameters).await;
    Giver {
        client: server.with_key(made.ok()["key"].as_str().unwrap()),
        token_id: made.ok()["token_id"].clone(),
    }
}

async fn revoke(admin: &Modern, giver: &Giver) {
    let parameters = json!({ "token_id": giver.token_id });
    admin.call("token_revoke", parameters).await.ok();
}

async fn admin_tokens(admin: &Modern) -> usize {
    let listed = admin.call("token_list", json!({})).await;
    let tokens = listed.ok()["tokens"].as_array().unwrap().clone();
    let is_admin = |token: &&Value| token["scope"] == "admin" && token["name"] == "stolen";
    tokens.iter().filter(is_admin).count()
}

const STEAL: &str = r#"/tool oubliette_token_create {"name": "stolen", "scope": "admin"}"#;

#[test(needs(sandbox))]
async fn a_session_resumed_after_its_giver_was_revoked_has_no_key() {
    let (server, admin, alpha) = server_with_project("", json!({})).await;
    let giver = giver(&server, &admin, "admin", json!({})).await;
    let more = json!({ "new_session": true, "agent_scope": "admin", "agent": "demo" });
    let session = giver.client.spawn_with(&alpha, "/say hello", more).await;
    giver.client.turn(&session, 1).await;
    let end = json!({ "session_id": session });
    admin.call("session_end", end).await.ok();
    revoke(&admin, &giver).await;

    let writer = server.with_key(&admin.token(&format!("project:{alpha}")).await);
    writer.message(&session, STEAL).await;
    let completion = writer.turn(&session, 2).await;
    assert_eq!(admin_tokens(&admin).await, 0, "{completion}");
    let log = writer.log(&session).await;
    let explains = |event: &Value| {
        let text = event["message"].as_str();
        event["type"] == "log" && text.is_some_and(|text| text.contains("gets no key"))
    };
    assert!(log.iter().any(explains), "{log:?}");
}

#[test(needs(sandbox))]
async fn only_a_sender_who_may_do_what_the_agent_may_directs_it() {
    let (server, admin, alpha) = server_with_project("", json!({})).await;
    let more = json!({ "new_session": true, "agent_scope": "admin", "agent": "demo" });
    let session = admin.spawn_with(&alpha, "/say hello", more).await;
    admin.turn(&session, 1).await;
    for ended in [false, true] {
        if ended {
            let end = json!({ "session_id": session });
            admin.call("session_end", end).await.ok();
        }
        for scope in [format!("project:{alpha}"), "write".to_owned()] {
            let sender = server.with_key(&admin.token(&scope).await);
            let message = json!({ "session_id": session, "prompt": STEAL });
            let refused = sender.call("session_message", message).await;
            let text = refused.sentence();
            assert!(text.contains("wider than your scope"), "{text}");
            // What joins the newest session passes over one that it may not direct.
            let spawn = json!({ "project_id": alpha, "prompt": "/say own", "agent": "demo" });
            let spawned = sender.call("session_spawn", spawn).await;
            assert_ne!(spawned.ok()["session_id"], *session, "{}", spawned.text);
        }
    }
    assert_eq!(admin_tokens(&admin).await, 0);
    // Who may do as much continues it.
    admin.message(&session, "/say again").await;
    assert_eq!(admin.turn(&session, 2).await["text"], "again");
}

#[test(needs(sandbox))]
async fn the_key_of_a_running_agent_ends_with_its_giver() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let lifetime = Duration::from_secs(20);
    let started = Instant::now();
    let expires = json!({ "expires_in_hours": lifetime.as_secs_f64() / 3600.0 });
    for (more, is_revoked) in [(json!({}), true), (expires, false)] {
        let giver = giver(&server, &admin, "admin", more).await;
        let granted = json!({ "agent_scope": "admin" });
        let keys = recorder(&server, &giver.client, &two, granted).await;
        let key = keys.api_key.clone().unwrap();
        let made = json!({ "name": "handed on", "scope": "admin" });
        let mut relay = Relay::attached(&server, &two, &keys).await;
        let handed = call(&mut relay, &key, "token_create", made).await;
        let handed = handed["result"]["structuredContent"]["key"].as_str();
        let handed = handed.unwrap().to_owned();
        for key in [&key, &handed] {
            let listed = server.with_key(key).call("token_list", json!({})).await;
            listed.ok();
        }
        if is_revoked {
            revoke(&admin, &giver).await;
        } else {
            let left = lifetime.saturating_sub(started.elapsed()) + Duration::from_secs(120);
            let deadline = Instant::now() + left;
            while server.with_key(&key).tools().await.len() > 1 {
                assert!(Instant::now() < deadline, "the key is still valid");
                support::pause().await;
            }
        }
        for key in [&key, &handed] {
            let refused = server.with_key(key).call("token_list", json!({})).await;
            assert_eq!(refused.status, 401, "{}", refused.text);
            let refused = call(&mut relay, key, "token_list", json!({})).await;
            assert_eq!(code(&refused), -32001, "{refused}");
        }
    }
}

#[test(needs(sandbox))]
async fn an_agent_sends_messages_only_to_sessions_below_its_own() {
    let (server, admin, alpha) = server_with_project("", json!({})).await;
    let more = json!({ "new_session": true, "agent_scope": "admin", "agent": "demo" });
    let privileged = admin.spawn_with(&alpha, "/say hello", more).await;
    admin.turn(&privileged, 1).await;
    let plain = json!({ "new_session": true, "agent": "demo" });
    let plain = admin.spawn_with(&alpha, "/say hello", plain).await;
    let own = json!({ "agent_scope": format!("project:{alpha}") });
    let keys = recorder(&server, &admin, &alpha, own).await;
    let key = keys.api_key.clone().unwrap();
    let mut relay = Relay::attached(&server, &alpha, &keys).await;
    for target in [&privileged, &plain, &keys.session_id] {
        let message = json!({ "session_id": target, "prompt": STEAL });
        let refused = call(&mut relay, &key, "session_message", message.clone()).await;
        assert_eq!(code(&refused), -32002, "{refused}");
        let refused = server.with_key(&key).call("session_message", message).await;
        assert_eq!(refused.code(), -32002, "{}", refused.text);
    }
    assert_eq!(admin_tokens(&admin).await, 0);
    let child = json!({ "project_id": alpha, "prompt": "/say one", "agent": "demo" });
    let child = call(&mut relay, &key, "session_spawn", child).await;
    let child = &child["result"]["structuredContent"]["session_id"];
    let message = json!({ "session_id": child, "prompt": "/say two" });
    let sent = call(&mut relay, &key, "session_message", message).await;
    assert_eq!(sent["result"]["isError"], false, "{sent}");
}

#[test(needs(sandbox))]
async fn a_parent_whose_scope_was_lowered_no_longer_directs_a_child_with_a_wider_one() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({ "agent_scope": "admin" })).await;
    let keys = recorder(&server, &admin, &two, json!({})).await;
    let mut relay = Relay::attached(&server, &two, &keys).await;
    let child = json!({ "prompt": "/say hello", "agent": "demo", "agent_scope": "admin" });
    let child = relay.request("session_message", child).await;
    let child = child["result"]["session_id"].as_str().unwrap().to_owned();
    let message = json!({ "session_id": child, "prompt": "/say again" });
    let sent = relay.request("session_message", message).await;
    assert_eq!(sent["result"]["text"], "again", "{sent}");

    let lowered = json!({ "project_id": two, "agent_scope": "read" });
    admin.call("project_update", lowered).await.ok();
    let message = json!({ "session_id": child, "prompt": STEAL });
    let refused = relay.request("session_message", message).await;
    let text = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(text.contains("wider than your scope `read`"), "{refused}");
    assert_eq!(admin_tokens(&admin).await, 0);
}

#[test(needs(sandbox))]
async fn a_narrow_token_of_an_agent_gives_its_children_no_more_than_it_has() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let keys = recorder(&server, &admin, &two, json!({ "agent_scope": "admin" })).await;
    let mut relay = Relay::attached(&server, &two, &keys).await;
    let own = format!("project:{two}");
    let narrow = json!({ "name": "narrow", "scope": own });
    let minted = keys.api_key.clone().unwrap();
    let narrow = call(&mut relay, &minted, "token_create", narrow).await;
    let narrow = narrow["result"]["structuredContent"]["key"]
        .as_str()
        .unwrap();
    let narrow = server.with_key(narrow);
    let spawn = json!({ "project_id": two, "prompt": "/say hello", "agent": "recorder" });
    let mut wider = spawn.clone();
    wider["agent_scope"] = json!("admin");
    let refused = narrow.call("session_spawn", wider).await;
    assert_eq!(refused.code(), -32002, "{}", refused.text);
    let spawned = narrow.call("session_spawn", spawn).await;
    let child = spawned.ok()["session_id"].as_str().unwrap().to_owned();
    admin.turn(&child, 1).await;
    let key = keys_of_session(&server, &two, &child).api_key.unwrap();
    let child = server.with_key(&key);
    assert_eq!(child.call("token_list", json!({})).await.code(), -32002);
    child
        .call("project_get", json!({ "project_id": two }))
        .await
        .ok();
}

#[test(needs(sandbox))]
async fn a_key_from_the_environment_is_held_to_an_agents_rules_on_every_connection() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let key = admin.token("admin").await;
    let env = json!({ "env": { "OUBLIETTE_API_KEY": key }, "autonomy": "off" });
    let two = project(&admin, "two", env).await;
    let more = json!({ "new_session": true, "agent": "recorder" });
    let session = admin.spawn_with(&two, "/ask may I?", more).await;
    let asked = |event: &Value| event["type"] == "permission_request";
    let log = admin.follow(&session, asked).await;
    let request = log.last().unwrap()["request_id"].clone();
    let keys = keys_of_session(&server, &two, &session);
    assert_eq!(keys.api_key.as_deref(), Some(key.as_str()));
    let permit = json!({ "session_id": session, "request_id": request, "decision": "allow" });
    let target = json!([{ "project_id": two }]);
    let schedule = json!({ "name": "x", "cron_expr": "@daily", "prompt": "x", "targets": target });
    let mut unattached = Relay::connect(&server, &two).await;
    for (name, arguments) in [
        ("session_permit", permit.clone()),
        (
            "project_update",
            json!({ "project_id": two, "max_agents_per_session": 1000 }),
        ),
        (
            "project_update",
            json!({ "project_id": two, "agent_scope": "admin" }),
        ),
        (
            "session_spawn",
            json!({ "project_id": two, "prompt": "/say x", "new_session": true }),
        ),
        (
            "session_message",
            json!({ "project_id": two, "prompt": "/say x" }),
        ),
        (
            "session_message",
            json!({ "session_id": session, "prompt": "/say x" }),
        ),
        ("schedule_create", schedule),
        ("token_create", json!({ "name": "x", "scope": "admin" })),
        ("session_diff", json!({ "session_id": session })),
        ("session_fork", json!({ "session_id": session })),
        (
            "session_rewind",
            json!({ "session_id": session, "turn": 0, "what": "files" }),
        ),
    ] {
        let refused = call(&mut unattached, &key, name, arguments).await;
        assert_eq!(code(&refused), -32002, "{name} {refused}");
    }
    // It still reads, and on the agent's own connection it starts sessions in the agent's tree.
    let read = call(&mut unattached, &key, "project_list", json!({})).await;
    assert_eq!(read["result"]["isError"], false, "{read}");
    let mut attached = Relay::attached(&server, &two, &keys).await;
    let refused = call(&mut attached, &key, "session_permit", permit.clone()).await;
    assert_eq!(code(&refused), -32002, "{refused}");
    let spawn = json!({ "project_id": two, "prompt": "/say x", "agent": "demo" });
    let spawned = call(&mut attached, &key, "session_spawn", spawn).await;
    let child = spawned["result"]["structuredContent"]["session_id"].as_str();
    let child = admin.session(child.unwrap()).await;
    assert_eq!(child["parent_id"], *session);
    admin.call("session_permit", permit).await.ok();
}

#[test(needs(sandbox))]
async fn a_project_token_takes_no_credential_that_its_project_was_not_given() {
    let config = "[credentials.own]\nkind = \"anthropic\"\nvalue = \"sk-own\"\n\
         [credentials.second]\nkind = \"openai\"\nvalue = \"sk-second\"\n\
         [credentials.prod]\nkind = \"anthropic\"\nvalue = \"sk-CANARY-prod\"\n";
    let (server, admin, _) = server_with_project(config, json!({})).await;
    let given = json!({ "credential_refs": ["own", "second"] });
    let two = project(&admin, "two", given).await;
    let writer = server.with_key(&admin.token(&format!("project:{two}")).await);
    let names = |reply: &Value| -> Vec<String> {
        let accounts = reply["accounts"].as_array().unwrap().iter();
        accounts
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let seen = writer.call("project_options", json!({})).await;
    assert_eq!(names(seen.ok()), ["own", "second"]);
    let seen = admin.call("project_options", json!({})).await;
    assert_eq!(names(seen.ok()).len(), 3);
    let update = |refs: Value| json!({ "project_id": two, "credential_refs": refs });
    for refs in [json!(["prod"]), json!(["own", "prod"]), json!(["proud"])] {
        let refused = writer.call("project_update", update(refs)).await;
        assert_eq!(refused.code(), -32002, "{}", refused.text);
        assert!(!refused.text.contains("prod`"), "{}", refused.text);
    }
    // An agent may not add one either, whatever its scope.
    let keys = recorder(&server, &admin, &two, json!({ "agent_scope": "write" })).await;
    let agent = server.with_key(&keys.api_key.unwrap());
    let refused = agent.call("project_update", update(json!(["prod"]))).await;
    assert_eq!(refused.code(), -32002, "{}", refused.text);
    let taken = writer.call("project_update", update(json!(["own"]))).await;
    assert_eq!(taken.ok()["credential_refs"], json!(["own"]));
    let again = writer
        .call("project_update", update(json!(["own", "second"])))
        .await;
    assert_eq!(again.code(), -32002, "{}", again.text);
}
