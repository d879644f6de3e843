//! Sessions below sessions: how agents start them, what holds for a whole tree, and what survives.

use std::collections::HashSet;

use serde_json::{Value, json};
use support::relay::{AgentKeys, RECORDER_CONFIG, keys_of_session};
use support::{Modern, Relay, Server, ServerOptions};

/// A server with a project whose agents give away their keys.
async fn project_with(config: &str, settings: Value) -> (Server, Modern, String) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{config}\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = another_project(&admin, "one", settings).await;
    (server, admin, project)
}

async fn another_project(admin: &Modern, name: &str, mut settings: Value) -> String {
    settings["name"] = json!(name);
    settings["agent"] = json!("recorder");
    settings["init_git"] = json!(false);
    let project = admin.call("project_create", settings).await;
    project.ok()["project_id"].as_str().unwrap().to_owned()
}

/// A session without a parent that has had a turn, and a connection that is attached to it.
async fn root(server: &Server, admin: &Modern, project: &str) -> (AgentKeys, Relay) {
    let new = json!({ "new_session": true });
    let session = admin
        .spawn_with(project, "/say hello\n/usage 0 0 0", new)
        .await;
    admin.turn(&session, 1).await;
    let agent_keys = keys_of_session(server, project, &session);
    let relay = Relay::attached(server, project, &agent_keys).await;
    (agent_keys, relay)
}

fn result(reply: &Value) -> &Value {
    assert!(reply["error"].is_null(), "{reply}");
    &reply["result"]
}

fn refusal(reply: &Value) -> &str {
    let message = reply["error"]["message"].as_str();
    message.unwrap_or_else(|| panic!("no error: {reply}"))
}

#[test(needs(sandbox))]
async fn an_agent_starts_follows_continues_and_ends_a_child() {
    let (server, admin, project) = project_with("", json!({})).await;
    let (agent_keys, mut relay) = root(&server, &admin, &project).await;
    let ask = json!({ "prompt": "/say from below\n/usage 10 5 0.25" });
    let answer = relay.request("session_message", ask).await;
    let answer = result(&answer);
    assert_eq!(
        (&answer["text"], &answer["stop_reason"], &answer["status"]),
        (&json!("from below"), &json!("end_turn"), &json!("idle")),
        "{answer}"
    );
    let child = answer["session_id"].as_str().unwrap().to_owned();
    let seen = admin.session(&child).await;
    assert_eq!(seen["parent_id"], *agent_keys.session_id);
    assert_eq!(
        (&seen["depth"], &seen["workspace_id"], &seen["agent"]),
        (&json!(1), &json!("default"), &json!("recorder"))
    );
    let above = admin.session(&agent_keys.session_id).await;
    assert_eq!(above["children"][0]["session_id"], *child);
    assert_eq!(above["tree_cost_usd"], 0.25);

    // A second message to the same child, with a wait that ends before the answer.
    let ask = json!({ "session_id": child, "message": "/sleep 2\n/say later", "wait_seconds": 0 });
    let running = relay.request("session_message", ask).await;
    let running = result(&running).clone();
    assert_eq!(
        (&running["status"], &running["session_id"]),
        (&json!("running"), &json!(child))
    );
    assert!(running["text"].is_null(), "{running}");
    let mut since = running["last_event_index"].as_i64().unwrap();
    let answer = loop {
        let page = json!({ "session_id": child, "since_index": since, "wait_seconds": 50 });
        let page = relay.request("session_events", page).await;
        let page = result(&page).clone();
        since = page["last_index"].as_i64().unwrap();
        let events = page["events"].as_array().unwrap();
        let completion = events.iter().find(|event| event["type"] == "completion");
        if let Some(completion) = completion {
            break completion.clone();
        }
    };
    assert_eq!(answer["text"], "later");

    // A message behind a turn that runs is answered by its own turn.
    let slow = json!({ "session_id": child, "prompt": "/sleep 1\n/say first" });
    relay.begin("first", "session_message", slow).await;
    let next = json!({ "session_id": child, "prompt": "/say second" });
    relay.begin("second", "session_message", next).await;
    assert_eq!(result(&relay.reply("second").await)["text"], "second");
    assert_eq!(result(&relay.reply("first").await)["text"], "first");

    let failing = json!({ "session_id": child, "prompt": "/fail no luck" });
    let failed = relay.request("session_message", failing).await;
    let failed = result(&failed);
    assert_eq!(failed["stop_reason"], "error");
    assert!(failed["error"].as_str().unwrap().contains("no luck"));

    let limits = relay.request("config_limits", json!({})).await;
    let limits = result(&limits);
    assert_eq!(limits["session_id"], *agent_keys.session_id);
    assert_eq!(
        (&limits["depth"], &limits["used"]["agents"]),
        (&json!(0), &json!(2))
    );
    assert_eq!(limits["remaining"]["depth"], 3);
    let of_child = relay.request("config_limits", json!({ "session_id": child }));
    assert_eq!(result(&of_child.await)["remaining"]["depth"], 2);
    let from_outside = admin.call("config_limits", json!({ "session_id": child }));
    assert_eq!(from_outside.await.ok()["used"]["cost_usd"], 0.25);

    let end = json!({ "session_id": child });
    let ended = relay.request("session_end", end.clone()).await;
    assert_eq!(result(&ended)["status"], "completed");
    assert_eq!(admin.session(&child).await["status"], "completed");
    let log = admin.log(&agent_keys.session_id).await;
    let kinds: HashSet<&str> = log.iter().filter_map(|e| e["type"].as_str()).collect();
    assert!(kinds.contains("child_spawned") && kinds.contains("child_ended"));

    // Errors name the parameter.
    for (method, params, word) in [
        ("session_message", json!({}), "prompt"),
        (
            "session_message",
            json!({ "promt": "x" }),
            "did you mean `prompt`",
        ),
        (
            "session_message",
            json!({ "prompt": "x", "wait_seconds": -1 }),
            "wait_seconds",
        ),
        (
            "session_message",
            json!({ "prompt": "x", "agent": "unknown" }),
            "unknown",
        ),
        ("session_end", json!({}), "session_id"),
        ("session_events", json!({ "session_id": "x" }), "session_id"),
    ] {
        let reply = relay.request(method, params).await;
        assert!(refusal(&reply).contains(word), "{word}: {reply}");
        assert_eq!(reply["error"]["code"], -32602, "{reply}");
    }
}

#[test(needs(sandbox))]
async fn a_child_of_an_agent_that_has_to_ask_has_to_ask_too() {
    let (server, admin, project) = project_with("", json!({})).await;
    let careful = json!({ "new_session": true, "autonomy": "off" });
    let session = admin.spawn_with(&project, "/say hello", careful).await;
    admin.turn(&session, 1).await;
    let agent_keys = keys_of_session(&server, &project, &session);
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    let mut seen = Vec::new();
    for (id, bold) in [json!({}), json!({ "autonomy": "high" })]
        .into_iter()
        .enumerate()
    {
        let mut ask = bold;
        ask["prompt"] = json!("/ask may I?");
        relay.begin(id, "session_message", ask).await;
        let new = |e: &Value| e["type"] == "child_spawned" && !seen.contains(&e["child_id"]);
        let log = admin.follow(&session, new).await;
        let child = log.iter().find(|e| new(e)).unwrap()["child_id"].clone();
        let name = child.as_str().unwrap();
        admin.status(name, "waiting").await;
        let end = json!({ "session_id": name });
        admin.call("session_end", end).await.ok();
        relay.reply(id).await;
        seen.push(child);
    }
}

#[test(needs(sandbox))]
async fn a_session_reaches_only_the_sessions_below_it() {
    let (server, admin, project) = project_with("", json!({})).await;
    let (one, mut first) = root(&server, &admin, &project).await;
    let (two, mut second) = root(&server, &admin, &project).await;
    let ask = json!({ "prompt": "/say hi" });
    let child = first.request("session_message", ask.clone()).await;
    let child = result(&child)["session_id"].as_str().unwrap().to_owned();
    let child_keys = keys_of_session(&server, &project, &child);
    let mut below = Relay::attached(&server, &project, &child_keys).await;
    let grandchild = below.request("session_message", ask).await;
    let grandchild = result(&grandchild)["session_id"]
        .as_str()
        .unwrap()
        .to_owned();

    let unknown = format!("gogol_{}", "0".repeat(32));
    let mut answers = HashSet::new();
    for (relay, ids) in [
        (&mut first, [&one.session_id, &two.session_id, &unknown]),
        (&mut second, [&one.session_id, &child, &grandchild]),
        (&mut below, [&one.session_id, &child, &two.session_id]),
    ] {
        for id in ids {
            for method in ["session_events", "session_end", "session_message"] {
                let mut params = json!({ "session_id": id });
                if method == "session_message" {
                    params["prompt"] = json!("/say intruder");
                }
                let reply = relay.request(method, params).await;
                let refused = refusal(&reply).replace(id.as_str(), "ID");
                answers.insert(refused);
            }
        }
    }
    // The error for a session that is not below is the same as for one that does not exist.
    assert_eq!(answers.len(), 1, "{answers:?}");
    for id in [&one.session_id, &two.session_id, &child, &grandchild] {
        let status = admin.session(id).await["status"].clone();
        assert_eq!(status, "idle");
    }
    // A grandchild is below, too.
    let end = json!({ "session_id": grandchild });
    assert_eq!(
        result(&first.request("session_end", end).await)["status"],
        "completed"
    );
}

/// Asks for fifty children at once and returns how many were made, and the refusals.
async fn fifty(relay: &mut Relay) -> (usize, Vec<String>) {
    for n in 0..50 {
        let ask = json!({ "prompt": "/say small", "wait_seconds": 0 });
        relay.begin(n, "session_message", ask).await;
    }
    let (mut made, mut refused) = (HashSet::new(), Vec::new());
    for n in 0..50 {
        let reply = relay.reply(n).await;
        match reply["result"]["session_id"].as_str() {
            Some(id) => drop(made.insert(id.to_owned())),
            None => refused.push(refusal(&reply).to_owned()),
        }
    }
    (made.len(), refused)
}

#[test(needs(sandbox))]
async fn every_limit_of_a_tree_holds_at_its_edge_when_fifty_ask_at_once() {
    let config = "[sessions]\nspawns_per_minute = 100";
    let (server, admin, project) = project_with(config, json!({})).await;
    let by_number = json!({ "max_agents_per_session": 6 });
    let by_number = another_project(&admin, "number", by_number).await;
    let (agent_keys, mut relay) = root(&server, &admin, &by_number).await;
    let (made, refused) = fifty(&mut relay).await;
    assert_eq!((made, refused.len()), (5, 45));
    let named = |why: &String| why.contains("max_agents_per_session") && why.contains("raise");
    assert!(refused.iter().all(named), "{refused:?}");
    let seen = admin.session(&agent_keys.session_id).await;
    assert_eq!(seen["children"].as_array().unwrap().len(), 5);

    // Ending and deleting children does not lower the count.
    for child in seen["children"].as_array().unwrap() {
        let end = json!({ "session_id": child["session_id"] });
        result(&relay.request("session_end", end).await);
    }
    let cleanup = json!({ "project_id": by_number, "max_age_hours": 0 });
    let deleted = admin.call("session_cleanup", cleanup).await;
    assert_eq!(deleted.ok()["deleted"].as_array().unwrap().len(), 5);
    let (made, refused) = fifty(&mut relay).await;
    assert_eq!((made, refused.len()), (0, 50));
    let limits = relay.request("config_limits", json!({})).await;
    assert_eq!(result(&limits)["used"]["agents"], 6);

    let by_depth = json!({ "max_recursion_depth": 1 });
    let by_depth = another_project(&admin, "depth", by_depth).await;
    let (_, mut relay) = root(&server, &admin, &by_depth).await;
    let child = relay
        .request("session_message", json!({ "prompt": "/say deep" }))
        .await;
    let child = result(&child)["session_id"].as_str().unwrap().to_owned();
    let child = keys_of_session(&server, &by_depth, &child);
    let mut below = Relay::attached(&server, &by_depth, &child).await;
    let (made, refused) = fifty(&mut below).await;
    assert_eq!((made, refused.len()), (0, 50));
    assert!(
        refused
            .iter()
            .all(|why| why.contains("max_recursion_depth"))
    );

    let by_cost = json!({ "max_cost_usd": 1.0 });
    let by_cost = another_project(&admin, "cost", by_cost).await;
    let (agent_keys, mut relay) = root(&server, &admin, &by_cost).await;
    let spending = "/usage 1 1 0.99";
    admin.message(&agent_keys.session_id, spending).await;
    admin.turn(&agent_keys.session_id, 2).await;
    let cheap = relay
        .request("session_message", json!({ "prompt": "/say still" }))
        .await;
    assert_eq!(result(&cheap)["text"], "still");
    admin
        .message(&agent_keys.session_id, "/usage 1 1 0.01")
        .await;
    admin.turn(&agent_keys.session_id, 3).await;
    let (made, refused) = fifty(&mut relay).await;
    assert_eq!((made, refused.len()), (0, 50));
    assert!(
        refused.iter().all(|why| why.contains("max_cost_usd")),
        "{refused:?}"
    );
    drop(project);
}

#[test(needs(sandbox))]
async fn spawns_per_minute_are_limited_for_each_tree() {
    let (server, admin, project) = project_with("", json!({})).await;
    let (_, mut relay) = root(&server, &admin, &project).await;
    let (made, refused) = fifty(&mut relay).await;
    assert_eq!((made, refused.len()), (10, 40));
    let named = |why: &String| why.contains("spawns_per_minute");
    assert!(refused.iter().all(named), "{refused:?}");
    // Another tree has its own minute.
    let (_, mut other) = root(&server, &admin, &project).await;
    let more = json!({ "prompt": "/say more", "wait_seconds": 0 });
    result(&other.request("session_message", more).await);
}

#[test(needs(sandbox))]
async fn a_call_that_is_repeated_happens_once_also_when_the_server_was_killed() {
    let (mut server, admin, project) = project_with("", json!({})).await;
    let (agent_keys, mut relay) = root(&server, &admin, &project).await;
    let call_id = "5b0c3a52-1f0b-4a52-8f27-0c9c4f0b7a11";
    let ask = json!({
        "prompt": "/sh echo done >> times\n/sleep 3\n/sh cat times", "call_id": call_id,
        "create_workspace": true, "wait_seconds": 60,
    });
    let mut others = Vec::new();
    for _ in 0..10 {
        let mut other = Relay::attached(&server, &project, &agent_keys).await;
        other.begin(1, "session_message", ask.clone()).await;
        others.push(other);
    }
    relay.begin(1, "session_message", ask.clone()).await;
    let begun = |event: &Value| event["type"] == "child_spawned";
    let log = admin.follow(&agent_keys.session_id, begun).await;
    let child = log.last().unwrap()["child_id"].as_str().unwrap().to_owned();
    let prompted = |event: &Value| event["type"] == "prompt";
    admin.follow(&child, prompted).await;
    server.kill();
    server.start_again();
    drop(others);
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    let answer = relay.request("session_message", ask.clone()).await;
    let answer = result(&answer).clone();
    assert_eq!(
        (&answer["text"], &answer["session_id"]),
        (&json!("done"), &json!(child)),
        "{answer}"
    );
    let again = relay.request("session_message", ask).await;
    assert_eq!(result(&again)["text"], "done");
    let seen = admin.session(&agent_keys.session_id).await;
    assert_eq!(seen["children"].as_array().unwrap().len(), 1);
    let of_project = json!({ "project_id": project });
    let workspaces = admin.call("workspace_list", of_project).await;
    assert_eq!(workspaces.ok()["workspaces"].as_array().unwrap().len(), 2);
}

#[test(needs(sandbox))]
async fn ending_a_session_ends_everything_below_it() {
    let (server, admin, project) = project_with("", json!({})).await;
    let (agent_keys, mut relay) = root(&server, &admin, &project).await;
    let long = json!({ "prompt": "/sh sleep 600 & sleep 1000", "wait_seconds": 0 });
    let child = relay.request("session_message", long.clone()).await;
    let child = result(&child)["session_id"].as_str().unwrap().to_owned();
    let working = |event: &Value| event["type"] == "tool_call";
    admin.follow(&child, working).await;
    let child_keys = keys_of_session(&server, &project, &child);
    let mut below = Relay::attached(&server, &project, &child_keys).await;
    let grandchild = below.request("session_message", long.clone()).await;
    let grandchild = result(&grandchild)["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    admin.follow(&grandchild, working).await;
    // A call that waits for the answer gets an error.
    let waiting = json!({ "session_id": grandchild, "prompt": "/say never", "wait_seconds": 100 });
    relay.begin("waiting", "session_message", waiting).await;

    let end = json!({ "session_id": child });
    let ended = relay.request("session_end", end).await;
    let ended = result(&ended).clone();
    assert_eq!(
        (&ended["status"], &ended["children_ended"]),
        (&json!("interrupted"), &json!([grandchild]))
    );
    let waited = relay.reply("waiting").await;
    let error = result(&waited)["error"].as_str().unwrap_or_default();
    assert!(error.contains("ended before"), "{waited}");
    let command = json!({ "project_id": project, "command": "ps -ef 2>/dev/null || ps" });
    let left = admin.call("container_exec", command).await;
    let left = left.ok()["stdout"].as_str().unwrap().to_owned();
    assert!(
        !left.contains("sleep 600") && !left.contains("sleep 1000"),
        "{left}"
    );

    // The whole tree ends with its root.
    let child = relay.request("session_message", long).await;
    let child = result(&child)["session_id"].as_str().unwrap().to_owned();
    admin.follow(&child, working).await;
    let end = json!({ "session_id": agent_keys.session_id });
    admin.call("session_end", end).await.ok();
    admin.status(&child, "interrupted").await;
}

/// A prompt that has a child do the same with a child of its own, and so on; the last one does
/// `leaf`.
fn nested(depth: usize, leaf: &str) -> String {
    match depth {
        0 => leaf.to_owned(),
        _ => {
            let below = json!({ "prompt": nested(depth - 1, leaf), "wait_seconds": 120 });
            format!("/tool session_message {below}")
        }
    }
}

#[test(needs(sandbox))]
async fn results_of_a_tree_of_depth_three_reach_its_root() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let leaf = "/sh echo from the leaf | tee -a leaf";
    let root = admin.spawn(&project, &nested(3, leaf)).await;
    let mut text = admin.turn(&root, 1).await["text"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut above = root.clone();
    for depth in 1..=3 {
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        assert_eq!(answer["stop_reason"], "end_turn", "{answer}");
        let child = answer["session_id"].as_str().unwrap().to_owned();
        let seen = admin.session(&child).await;
        assert_eq!(
            (&seen["depth"], &seen["parent_id"]),
            (&json!(depth), &json!(above))
        );
        above = child;
        text = answer["text"].as_str().unwrap().to_owned();
    }
    assert_eq!(text, "from the leaf");
    let file = server.workspace(&project).join("leaf");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "from the leaf\n");

    // One level deeper is refused with the reason.
    let root = admin
        .spawn_with(&project, &nested(4, leaf), json!({ "new_session": true }))
        .await;
    let refused = admin.turn(&root, 1).await;
    let refused = refused["text"].as_str().unwrap();
    assert!(refused.contains("max_recursion_depth"), "{refused}");
    let log = admin.log(&root).await;
    let tools: Vec<&Value> = log.iter().filter(|e| e["type"] == "tool_result").collect();
    assert_eq!(tools.len(), 1);

    // No process in the container can read the keys of a client, not even of its own.
    let spy = "/tool config_limits {}\n/sh cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | \
               grep -c OUBLIETTE_SESSION_KEY";
    let root = admin
        .spawn_with(&project, spy, json!({ "new_session": true }))
        .await;
    let seen = admin.turn(&root, 1).await;
    assert!(seen["text"].as_str().unwrap().starts_with('0'), "{seen}");
}

#[test(needs(sandbox))]
async fn an_agent_gets_its_one_answer_though_the_server_is_killed_while_it_waits() {
    let mut server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let leaf = "/sh echo done >> times; sleep 4; cat times";
    let root = admin.spawn(&project, &nested(2, leaf)).await;
    for kills in 0..3 {
        // Somewhere on the way: while the child begins, while it works, while its child works.
        let deep = |event: &Value| event["type"] == "child_spawned";
        if kills == 0 {
            admin.follow(&root, deep).await;
        } else {
            let log = admin.follow(&root, deep).await;
            let child = log.last().unwrap()["child_id"].as_str().unwrap().to_owned();
            let wanted = if kills == 1 {
                "prompt"
            } else {
                "child_spawned"
            };
            admin.follow(&child, |event| event["type"] == wanted).await;
        }
        server.kill();
        server.start_again();
    }
    let completion = admin.turn(&root, 1).await;
    let mut text = completion["text"].as_str().unwrap().to_owned();
    for _ in 0..2 {
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        text = answer["text"].as_str().unwrap().to_owned();
    }
    assert_eq!(text, "done");
    let log = admin.log(&root).await;
    let of = |kind: &str| log.iter().filter(|e| e["type"] == kind).count();
    assert_eq!(
        (of("tool_call"), of("tool_result"), of("child_spawned")),
        (1, 1, 1)
    );
    assert_eq!(of("completion"), 1);
    let all = admin
        .call("session_list", json!({ "project_id": project }))
        .await;
    assert_eq!(all.ok()["sessions"].as_array().unwrap().len(), 3);
}

#[test]
async fn the_tools_that_agents_see_have_the_parameters_of_the_server() {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    let mut client = Command::new(support::binary())
        .arg0("oubliette-client")
        .env_clear()
        .env("OUBLIETTE_SOCKET", "/nowhere/relay.sock")
        .env("OUBLIETTE_SESSION_ID", "gogol_test")
        .env("OUBLIETTE_SESSION_KEY", "key")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    let info = json!({ "name": "test", "version": "0" });
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello });
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
    writeln!(stdin, "{hello}\n{list}").unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let tools = loop {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if line["id"] == 2 {
            break line["result"]["tools"].as_array().unwrap().clone();
        }
    };
    drop(stdin);
    assert!(client.wait().unwrap().success());
    assert_eq!(tools.len(), 4);
    for tool in tools {
        let name = tool["name"].as_str().unwrap();
        let taken = oubliette_engine::AgentTool::from_name(name)
            .unwrap()
            .parameters();
        let (own, schema) = (&taken["properties"], &tool["inputSchema"]);
        for (property, shown) in schema["properties"].as_object().unwrap() {
            assert_eq!(own[property]["type"], shown["type"], "{name} {property}");
        }
        for required in taken
            .get("required")
            .into_iter()
            .flat_map(|r| r.as_array().unwrap())
        {
            assert!(
                schema["required"].as_array().unwrap().contains(required),
                "{name}"
            );
        }
        let about = tool["description"].as_str().unwrap();
        assert!(name != "session_message" || about.contains("wait for its answer"));
    }
}
