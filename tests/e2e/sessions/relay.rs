//! The relay socket as processes in a container see it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::relay::{AgentKeys, RECORDER_CONFIG, keys_of_session};
use support::{Modern, Relay, Server, ServerOptions};

async fn project_with_recorder(config: &str) -> (Server, Modern, String) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{config}\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = another_project(&admin, "one").await;
    (server, admin, project)
}

async fn another_project(admin: &Modern, name: &str) -> String {
    let project = json!({ "name": name, "agent": "recorder", "init_git": false });
    let project = admin.call("project_create", project).await;
    project.ok()["project_id"].as_str().unwrap().to_owned()
}

/// Starts a session and waits until it is idle; the keys that its agent recorded.
async fn session(server: &Server, admin: &Modern, project: &str) -> AgentKeys {
    let new = json!({ "new_session": true });
    let session = admin.spawn_with(project, "/say hello", new).await;
    admin.turn(&session, 1).await;
    keys_of_session(server, project, &session)
}

fn code(reply: &Value) -> i64 {
    let code = reply["error"]["code"].as_i64();
    code.unwrap_or_else(|| panic!("no error: {reply}"))
}

#[test(needs(sandbox))]
async fn invalid_messages_get_error_codes_and_the_connection_stays_open() {
    let (server, admin, project) = project_with_recorder("").await;
    session(&server, &admin, &project).await;
    let mut relay = Relay::connect(&server, &project).await;
    relay.raw(b"not json\n").await;
    assert_eq!(code(&relay.next().await.unwrap()), -32700);
    relay.raw(b"[1, 2]\n\n{\"id\": 7}\n").await;
    assert_eq!(code(&relay.next().await.unwrap()), -32600);
    let shape = relay.next().await.unwrap();
    assert_eq!((&shape["id"], code(&shape)), (&json!(7), -32600));
    // A line that is too long is skipped to its end.
    let long = vec![b'x'; (16 << 20) + 10];
    relay.raw(&long).await;
    relay.raw(b"\n{\"id\": 8, \"method\": \"nothing\"}\n").await;
    let too_long = relay.next().await.unwrap();
    assert_eq!(code(&too_long), -32600, "{too_long}");
    let unknown = relay.next().await.unwrap();
    assert_eq!((&unknown["id"], code(&unknown)), (&json!(8), -32601));
    // A notification gets no reply, also when it is wrong.
    relay.send(&json!({ "method": "nothing" })).await;
    relay.send(&json!({ "method": "session_end" })).await;
    let bad = relay.request("attach", json!({ "session_id": 1 })).await;
    assert_eq!(code(&bad), -32602);
    for method in [
        "session_message",
        "session_events",
        "session_end",
        "config_limits",
        "caller_tool",
    ] {
        let reply = relay.request(method, json!({})).await;
        assert_eq!(code(&reply), -32003, "{method} {reply}");
    }
    // One long line that is not too long, in pieces, as the first of a connection.
    let mut relay = Relay::connect(&server, &project).await;
    let message = json!({ "id": 1, "method": "x".repeat(3 << 20) }).to_string();
    let (one, other) = message.split_at(2 << 20);
    relay.raw(one.as_bytes()).await;
    relay.raw(format!("{other}\n").as_bytes()).await;
    let reply = relay.next().await.unwrap();
    assert_eq!(code(&reply), -32601);
    assert!(reply.to_string().len() < 1000, "it quotes all it was sent");
}

#[test(needs(sandbox))]
async fn a_connection_attaches_to_a_session_only_with_its_key_and_from_its_container() {
    let (server, admin, project) = project_with_recorder("").await;
    let other_project = another_project(&admin, "two").await;
    let first = session(&server, &admin, &project).await;
    let second = session(&server, &admin, &project).await;
    let foreign = session(&server, &admin, &other_project).await;

    let mut relay = Relay::connect(&server, &project).await;
    for (id, key) in [
        (&first.session_id, &second.session_key),
        (&foreign.session_id, &foreign.session_key),
        (&foreign.session_id, &first.session_key),
        (&first.session_id, &server.admin_key()),
        (&"gogol_unknown".to_owned(), &first.session_key),
        (&first.session_id, &String::new()),
    ] {
        let reply = relay.attach(id, key).await;
        assert_eq!(code(&reply), -32001, "{reply}");
        assert!(!reply.to_string().contains(key.as_str()) || key.is_empty());
    }
    let reply = relay.request("session_events", json!({})).await;
    assert_eq!(code(&reply), -32003);

    // The same connection may still show the right key.
    let reply = relay.attach(&first.session_id, &first.session_key).await;
    assert_eq!(reply["result"]["session_id"], *first.session_id);
    let config = relay.next().await.unwrap();
    assert_eq!(
        (&config["type"], &config["method"], &config["jsonrpc"]),
        (
            &json!("caller_tools_config"),
            &json!("caller_tools_config"),
            &json!("2.0")
        )
    );
    assert_eq!(config["params"]["tools"], json!([]));
    assert!(config.get("id").is_none());
    let reply = relay.attach(&second.session_id, &second.session_key).await;
    assert_eq!(code(&reply), -32600, "{reply}");
    let reply = relay.attach(&first.session_id, &first.session_key).await;
    assert!(reply["error"].is_null(), "{reply}");

    // Failures are in the audit log, with the container and without the key.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let failed = json!({ "outcome": "unauthenticated" });
        let listed = admin.call("audit_list", failed).await;
        let entries = listed.ok()["entries"].as_array().unwrap().clone();
        if entries.len() >= 6 {
            let container = format!("container:{}", project.replace('-', ""));
            assert!(entries.iter().all(|entry| entry["address"] == *container));
            assert!(!listed.text.contains(&first.session_key));
            break;
        }
        assert!(Instant::now() < deadline, "{entries:#?}");
    }
}

#[test(needs(sandbox))]
async fn a_key_ends_with_the_agent_it_was_made_for() {
    let (server, admin, project) = project_with_recorder("").await;
    let first = session(&server, &admin, &project).await;
    let mut relay = Relay::attached(&server, &project, &first).await;
    let end = json!({ "session_id": first.session_id });
    admin.call("session_end", end).await.ok();
    let reply = relay.request("session_events", json!({})).await;
    assert_eq!(code(&reply), -32003, "{reply}");
    let reply = relay.attach(&first.session_id, &first.session_key).await;
    assert_eq!(code(&reply), -32001, "{reply}");

    admin.message(&first.session_id, "/say again").await;
    admin.turn(&first.session_id, 2).await;
    let again = keys_of_session(&server, &project, &first.session_id);
    assert_ne!(again.session_key, first.session_key);
    let reply = relay.attach(&first.session_id, &first.session_key).await;
    assert_eq!(code(&reply), -32001, "{reply}");
    Relay::attached(&server, &project, &again).await;
}

#[test(needs(sandbox))]
async fn wrong_keys_are_slowed_down_and_right_ones_are_not() {
    let (server, admin, project) = project_with_recorder("").await;
    let own = session(&server, &admin, &project).await;
    let mut flood = Vec::new();
    for _ in 0..30 {
        let mut relay = Relay::connect(&server, &project).await;
        flood.push(tokio::spawn({
            let id = own.session_id.clone();
            async move { relay.attach(&id, "oub_wrong").await }
        }));
    }
    let mut slowed = 0;
    for attempt in flood {
        let reply = attempt.await.unwrap();
        assert_eq!(code(&reply), -32001);
        slowed += usize::from(reply.to_string().contains("too many wrong keys"));
    }
    assert!(slowed >= 5, "{slowed}");
    // A delayed or refused attempt would fail here.
    Relay::attached(&server, &project, &own).await;
}
