//! What an agent may be given becomes less: with each message from a narrower token, and with the scope of
//! the token that owns its tree.

use serde_json::{Value, json};
use support::relay::keys_of_session;
use support::{Modern, Server};

use crate::agents::oubliette_tools::{project, server_with_project};

/// Ends a session and resumes it; a client with the key that its agent gets then.
async fn restarted(server: &Server, admin: &Modern, project: &str, session: &str) -> Modern {
    let before = admin.session(session).await["turns"].as_u64().unwrap();
    let end = json!({ "session_id": session });
    admin.call("session_end", end).await.ok();
    admin.message(session, "/say again").await;
    let turn = usize::try_from(before).unwrap() + 1;
    assert_eq!(admin.turn(session, turn).await["text"], "again");
    let key = keys_of_session(server, project, session).api_key;
    server.with_key(&key.expect("the agent got no key"))
}

/// Checks that a client reaches one project and nothing else.
async fn assert_only_project(client: &Modern, project: &str, other: &str) {
    let own = client.call("project_get", json!({ "project_id": project }));
    own.await.ok();
    let refused = client.call("token_list", json!({})).await;
    assert_eq!(refused.code(), -32002, "{}", refused.text);
    let foreign = json!({ "project_id": other });
    let refused = client.call("project_get", foreign).await;
    assert!(
        refused.is_error() || refused.body["error"].is_object(),
        "{}",
        refused.text
    );
    let listed = client.call("project_list", json!({})).await;
    let names: Vec<&Value> = listed.ok()["projects"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 1, "{}", listed.text);
}

#[test(needs(sandbox))]
async fn an_agent_that_a_narrower_token_directed_gets_no_more_than_that_token_later() {
    let (server, admin, other) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let more = json!({ "new_session": true, "agent": "recorder" });
    // One that only the administrator directs, and one that gets a message from the project's token.
    let trusted = admin.spawn_with(&two, "/say hello", more.clone()).await;
    let session = admin.spawn_with(&two, "/say hello", more).await;
    admin.turn(&trusted, 1).await;
    admin.turn(&session, 1).await;
    assert_eq!(keys_of_session(&server, &two, &session).api_key, None);
    let narrower = server.with_key(&admin.token(&format!("project:{two}")).await);
    narrower.message(&session, "/say from below").await;
    assert_eq!(admin.turn(&session, 2).await["text"], "from below");

    let update = json!({ "project_id": two, "agent_scope": "admin" });
    admin.call("project_update", update).await.ok();
    let agent = restarted(&server, &admin, &two, &trusted).await;
    agent.call("token_list", json!({})).await.ok();
    let agent = restarted(&server, &admin, &two, &session).await;
    assert_only_project(&agent, &two, &other).await;
}

#[test(needs(sandbox))]
async fn an_agent_gets_no_more_than_the_owner_of_its_tree_has_now() {
    let (mut server, admin, other) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let made = json!({ "name": "owner", "scope": "write" });
    let made = admin.call("token_create", made).await;
    let owner = server.with_key(made.ok()["key"].as_str().unwrap());
    let more = json!({ "new_session": true, "agent": "recorder", "agent_scope": "write" });
    let session = owner.spawn_with(&two, "/say hello", more).await;
    owner.turn(&session, 1).await;
    let key = keys_of_session(&server, &two, &session).api_key.unwrap();
    let before = server.with_key(&key);
    let foreign = json!({ "project_id": other });
    before.call("project_get", foreign).await.ok();

    server.kill();
    let database = rusqlite::Connection::open(server.home().join("oubliette.db")).unwrap();
    let changed = database.execute(
        "update tokens set scope = ?1 where name = 'owner'",
        [format!("project:{two}")],
    );
    assert_eq!(changed.unwrap(), 1);
    drop(database);
    server.start_again();
    // The key of the agent that runs, and the one of its next start.
    assert_only_project(&before, &two, &other).await;
    let agent = restarted(&server, &admin, &two, &session).await;
    assert_only_project(&agent, &two, &other).await;
}

/// The agent of the fork gets the transcript, and with it what the narrower token wrote.
#[test(needs(sandbox))]
async fn the_fork_of_a_session_that_a_narrower_token_directed_gets_no_more_than_that_token() {
    let (server, admin, other) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let update = json!({ "project_id": two, "agent_scope": "admin" });
    admin.call("project_update", update).await.ok();
    let narrower = server.with_key(&admin.token(&format!("project:{two}")).await);
    let more = json!({ "new_session": true, "agent": "recorder" });
    let session = narrower.spawn_with(&two, "/say from below", more).await;
    admin.turn(&session, 1).await;
    let fork = json!({ "session_id": session, "prompt": "/say forked" });
    let fork = admin.call("session_fork", fork).await.ok()["session_id"].clone();
    let fork = fork.as_str().unwrap();
    admin.turn(fork, 1).await;
    let key = keys_of_session(&server, &two, fork).api_key;
    let agent = server.with_key(&key.expect("the agent got no key"));
    assert_only_project(&agent, &two, &other).await;
}

#[test(needs(sandbox))]
async fn an_agent_reviews_no_session_of_its_tree_and_sets_back_only_those_below_its_own() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let more = json!({ "agent": "recorder", "agent_scope": format!("project:{two}") });
    let root = admin.spawn_with(&two, "/sh echo one > one", more).await;
    admin.turn(&root, 1).await;
    let child = json!({ "prompt": "/sh echo two > two" });
    admin
        .message(&root, &format!("/tool session_message {child}"))
        .await;
    admin.turn(&root, 2).await;
    let children = &admin.session(&root).await["children"];
    let child = children[0]["session_id"].as_str().unwrap().to_owned();
    let client_of = |session: &str| {
        let key = keys_of_session(&server, &two, session).api_key;
        server.with_key(&key.expect("the agent got no key"))
    };
    let (of_root, of_child) = (client_of(&root), client_of(&child));
    for (agent, session) in [(&of_root, &root), (&of_root, &child), (&of_child, &root)] {
        let review = json!({ "session_id": session });
        let refused = agent.call("session_review", review).await;
        assert_eq!(refused.code(), -32002, "{}", refused.text);
    }
    let rewind =
        |session: &str| json!({ "session_id": session, "turn": 0, "what": "files", "force": true });
    for (agent, session) in [(&of_root, &root), (&of_child, &root), (&of_child, &child)] {
        let refused = agent.call("session_rewind", rewind(session)).await;
        assert_eq!(refused.code(), -32002, "{}", refused.text);
    }
    assert!(server.workspace(&two).join("two").exists());
    // It sees and continues the work of its own tree, and of no other session that its key can read.
    let more = json!({ "new_session": true });
    let other = admin.spawn_with(&two, "/sh echo 3 > three", more).await;
    admin.turn(&other, 1).await;
    for (agent, session) in [(&of_root, &child), (&of_child, &root)] {
        let diff = json!({ "session_id": session, "stat": true });
        agent.call("session_diff", diff).await.ok();
    }
    let read = json!({ "session_id": other });
    of_root.call("session_get", read.clone()).await.ok();
    for operation in ["session_diff", "session_fork", "session_review"] {
        let hidden = of_root.call(operation, read.clone()).await;
        assert!(
            hidden.text.contains("not found"),
            "{operation} {}",
            hidden.text
        );
    }
    of_root.call("session_rewind", rewind(&child)).await.ok();
    assert!(!server.workspace(&two).join("two").exists());
}
