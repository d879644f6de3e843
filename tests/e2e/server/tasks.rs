//! Waiting for a turn as an MCP task: the extension `io.modelcontextprotocol/tasks` of protocol 2026-07-28.

use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{Legacy, Modern, Reply, Server, ServerOptions};
use tokio::time::Instant;

const TURN_TIMEOUT: Duration = Duration::from_secs(100);
const INVALID_PARAMS: i64 = -32602;
const METHOD_NOT_FOUND: i64 = -32601;
const MISSING_CAPABILITY: i64 = -32021;

/// A server, and a client with tasks of a project `one`.
async fn started(config: &str) -> (Server, Modern) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{config}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    admin.project("one").await;
    (server, admin.with_tasks())
}

/// Gives an agent a prompt and waits for the answer; the task.
async fn spawn(caller: &Modern, prompt: &str, mut more: Value) -> Value {
    more["project_id"] = json!("one");
    more["prompt"] = json!(prompt);
    more["wait_seconds"] = json!(50);
    task(&caller.call("session_spawn", more).await)
}

#[track_caller]
fn task(reply: &Reply) -> Value {
    let task = reply.body["result"].clone();
    assert_eq!(task["resultType"], "task", "{}", reply.text);
    assert_eq!(task["status"], "working", "{task}");
    task
}

async fn send(caller: &Modern, method: &str, task: &Value) -> Reply {
    let id = task["taskId"].as_str().unwrap();
    caller.send(method, json!({ "taskId": id })).await
}

async fn get(caller: &Modern, task: &Value) -> Value {
    let reply = send(caller, "tasks/get", task).await;
    let found = reply.body["result"].clone();
    assert_eq!(found["taskId"], task["taskId"], "{}", reply.text);
    assert_eq!(found["resultType"], "complete", "{found}");
    found
}

/// Asks for a task until its state is as wanted.
async fn poll(caller: &Modern, task: &Value, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + scaled(TURN_TIMEOUT);
    loop {
        let found = get(caller, task).await;
        if wanted(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "not as wanted: {found}");
        // Tasks are asked for: nothing tells a client of their end.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn finished(caller: &Modern, task: &Value) -> Value {
    poll(caller, task, |task| task["status"] != "working").await
}

fn session_of(task: &Value) -> String {
    let (session, _) = task["taskId"].as_str().unwrap().split_once('.').unwrap();
    session.to_owned()
}

/// The text of a working task.
fn message(task: &Value) -> &str {
    task["statusMessage"].as_str().unwrap_or_default()
}

#[test(needs(sandbox))]
async fn a_wait_is_a_task_whose_result_is_that_of_the_call() {
    let (server, caller) = started("").await;
    let prompt = "/sleep 1\n/say Hello.\n/sh echo hi > file\n/usage 10 2 0.5";
    let created = spawn(&caller, prompt, json!({})).await;
    assert_eq!(created["pollIntervalMs"], 2000, "{created}");
    assert_eq!(created["ttlMs"], 24 * 3600 * 1000, "{created}");
    assert!(message(&created).contains(&session_of(&created)));
    assert!(created.get("result").is_none(), "{created}");

    let done = finished(&caller, &created).await;
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(done["createdAt"], created["createdAt"]);
    let result = &done["result"];
    assert_eq!(result["isError"], false, "{done}");
    let turn = &result["structuredContent"];
    assert_eq!(
        (&turn["completed"], &turn["text"], &turn["stop_reason"]),
        (&json!(true), &json!("Hello."), &json!("end_turn")),
        "{turn}"
    );
    assert_eq!(turn["cost_usd"], 0.5, "{turn}");
    assert_eq!(
        turn["changed"],
        json!({ "files": 1, "added": 1, "removed": 0 })
    );
    let text = result["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), *turn);

    // The same as a call that waits returns, in the same order, but for what is of one session.
    let plain = json!({
        "project_id": "one", "prompt": prompt.replace("echo hi", "echo ho"), "wait_seconds": 50,
        "new_session": true,
    });
    let plain = server.admin().call("session_spawn", plain).await;
    let fields = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(fields(plain.ok()), fields(turn));
    assert_eq!(fields(&plain.body["result"]), fields(result));
    for field in [
        "spawned",
        "resumed",
        "workspace_created",
        "status",
        "last_event_index",
    ] {
        assert_eq!(plain.ok()[field], turn[field], "{field}");
    }

    // Messages, by the unified tool; a turn that ends at once is no task.
    let session = session_of(&created);
    let slow = json!({
        "action": "message", "session_id": session, "prompt": "/sleep 1\n/say next", "wait_seconds": 1,
    });
    let slow = task(&caller.call("session", slow).await);
    let quick = json!({ "session_id": session, "prompt": "/say behind", "wait_seconds": 0.01 });
    let behind = task(&caller.call("session_message", quick).await);
    assert_eq!(session_of(&behind), session);
    let turn = |task: &Value| task["result"]["structuredContent"].clone();
    assert_eq!(turn(&finished(&caller, &slow).await)["text"], "next");
    let behind = turn(&finished(&caller, &behind).await);
    assert_eq!(
        (&behind["text"], &behind["spawned"]),
        (&json!("behind"), &json!(false))
    );
    // The task is for its own turn, whatever follows.
    assert_eq!(turn(&get(&caller, &slow).await)["text"], "next");
    // Calls that do not wait for the turn of a message are not tasks.
    let sent = json!({ "session_id": session, "prompt": "/sleep 1" });
    assert!(
        caller
            .call("session_message", sent)
            .await
            .ok()
            .get("completed")
            .is_none()
    );
    let wait = json!({ "session_id": session, "wait_seconds": 50 });
    assert_eq!(
        caller.call("session_message", wait).await.ok()["completed"],
        true
    );
}

#[test(needs(sandbox))]
async fn a_turn_that_fails_completes_its_task_with_the_error() {
    let (_server, caller) = started("").await;
    let created = spawn(&caller, "/sleep 1\n/fail no luck", json!({})).await;
    let done = finished(&caller, &created).await;
    // The call itself succeeds, as without a task.
    assert_eq!(done["status"], "completed", "{done}");
    let turn = &done["result"]["structuredContent"];
    assert_eq!(
        (&turn["completed"], &turn["stop_reason"]),
        (&json!(true), &json!("error"))
    );
    assert!(
        turn["error"].as_str().unwrap().contains("no luck"),
        "{turn}"
    );
    // An agent that exits.
    let created = spawn(&caller, "/sleep 1\n/exit 3", json!({})).await;
    let done = finished(&caller, &created).await;
    let turn = &done["result"]["structuredContent"];
    assert_eq!(
        (&turn["stop_reason"], &turn["status"]),
        (&json!("error"), &json!("failed"))
    );
    // A message that is not delivered is an error of the call.
    let wrong = json!({ "project_id": "one", "prompt": "x", "wait_seconds": 51 });
    let wrong = caller.call("session_spawn", wrong).await;
    assert!(wrong.sentence().contains("0 to 50"));
}

#[test(needs(sandbox))]
async fn cancelling_a_task_stops_its_turn_and_no_other() {
    let (_server, caller) = started("").await;
    let running = spawn(&caller, "/sleep 100", json!({})).await;
    let session = session_of(&running);
    caller.status(&session, "running").await;
    let queued = async |prompt: &str| {
        let call = json!({ "session_id": session, "prompt": prompt, "wait_seconds": 50 });
        task(&caller.call("session_message", call).await)
    };
    let (dropped, kept) = (queued("/say dropped").await, queued("/say kept").await);
    assert!(message(&get(&caller, &kept).await).contains("queued"));

    // One that is queued is removed, and the turn that runs goes on.
    let reply = send(&caller, "tasks/cancel", &dropped).await;
    assert_eq!(
        reply.body["result"],
        json!({ "resultType": "complete" }),
        "{}",
        reply.text
    );
    let found = get(&caller, &dropped).await;
    assert_eq!(found["status"], "cancelled", "{found}");
    assert!(found.get("result").is_none(), "{found}");
    assert_eq!(get(&caller, &running).await["status"], "working");

    for _ in 0..2 {
        // The second time it is over already, and nothing else is stopped.
        let reply = send(&caller, "tasks/cancel", &running).await;
        assert_eq!(
            reply.body["result"],
            json!({ "resultType": "complete" }),
            "{}",
            reply.text
        );
        let found = get(&caller, &running).await;
        assert_eq!(found["status"], "cancelled", "{found}");
        assert!(message(&found).contains(&session), "{found}");
    }
    let done = finished(&caller, &kept).await;
    assert_eq!(
        done["result"]["structuredContent"]["text"], "kept",
        "{done}"
    );
    let log = caller.log(&session).await;
    let prompts = log.iter().filter(|event| event["type"] == "prompt");
    let prompts: Vec<&Value> = prompts.map(|event| &event["text"]).collect();
    assert_eq!(prompts, ["/sleep 100", "/say kept"]);
    // The audit log has them as what they are.
    let audit = json!({ "operation": "session_interrupt" });
    let audit = caller.call("audit_list", audit).await.ok().clone();
    assert_eq!(audit["entries"].as_array().unwrap().len(), 3, "{audit}");
}

#[test(needs(sandbox))]
async fn a_task_says_what_its_agent_asks_and_goes_on_after_the_answer() {
    let (_server, caller) = started("").await;
    let created = spawn(
        &caller,
        "/sleep 1\n/ask may I\n/say done",
        json!({ "autonomy": "off" }),
    )
    .await;
    let asking = poll(&caller, &created, |task| message(task).contains("may I")).await;
    assert_eq!(asking["status"], "working", "{asking}");
    let session = session_of(&created);
    let waiting = caller.session(&session).await["waiting_for"].clone();
    let request = waiting["request_id"].as_str().unwrap();
    for said in [request, &session, "action `permit`"] {
        assert!(message(&asking).contains(said), "{said}: {asking}");
    }
    // Nobody else takes the answer.
    let update = json!({
        "taskId": created["taskId"], "inputResponses": { request: { "action": "accept" } },
    });
    let update = caller.send("tasks/update", update).await;
    assert_eq!(update.code(), INVALID_PARAMS);
    assert!(
        update.message().contains("action `permit`"),
        "{}",
        update.text
    );

    let answer = json!({ "session_id": session, "request_id": request, "decision": "allow" });
    caller.call("session_permit", answer).await.ok();
    let done = finished(&caller, &created).await;
    let turn = &done["result"]["structuredContent"];
    assert!(turn["text"].as_str().unwrap().contains("done"), "{done}");
    assert_eq!(turn["pending_permissions"], json!([]));

    // A question that comes at once is in the result of the call, for the model to answer.
    let quick = json!({
        "session_id": session, "prompt": "/ask again", "wait_seconds": 50,
    });
    let asked = caller.call("session_message", quick).await;
    if asked.body["result"]["resultType"] == "complete" {
        assert_eq!(
            asked.ok()["pending_permissions"].as_array().unwrap().len(),
            1
        );
    } else {
        let asking = task(&asked);
        poll(&caller, &asking, |task| message(task).contains("again")).await;
    }
}

#[test(needs(sandbox))]
async fn a_caller_that_polls_is_connected_and_told_of_the_calls_of_its_tools() {
    let config = "[caller_tools]\npresence_seconds = 3\ngrace_seconds = 1\n";
    let (_server, caller) = started(config).await;
    let tool = json!({ "name": "add", "inputSchema": { "type": "object" } });
    let context = json!({ "caller_id": "myapp", "caller_tools": [tool] });
    let prompt = "/sleep 5\n/tool myapp_add {\"a\": 1}";
    let created = spawn(&caller, prompt, json!({ "context": context })).await;
    let asking = poll(&caller, &created, |task| message(task).contains("add")).await;
    assert!(
        message(&asking).contains("`caller_tool_response`"),
        "{asking}"
    );
    let session = session_of(&created);
    let request = caller.session(&session).await["pending_caller_requests"][0].clone();
    let id = request["request_id"].as_str().unwrap();
    assert!(message(&asking).contains(id), "{asking}");
    let answer = json!({ "session_id": session, "request_id": id, "result": { "sum": 1 } });
    caller.call("caller_tool_response", answer).await.ok();
    let done = finished(&caller, &created).await;
    let text = &done["result"]["structuredContent"]["text"];
    assert!(text.as_str().unwrap().contains("\"sum\":1"), "{done}");
}

#[test(needs(sandbox))]
async fn a_task_survives_the_server() {
    let (mut server, caller) = started("").await;
    let prompt = "/sleep 2\n/say early\n/sleep 4\n/say late";
    let created = spawn(&caller, prompt, json!({})).await;
    let queued = json!({
        "session_id": session_of(&created), "prompt": "/say second", "wait_seconds": 50,
    });
    let queued = task(&caller.call("session_message", queued).await);
    for _ in 0..2 {
        server.kill();
        server.start_again();
        let found = get(&caller, &created).await;
        assert_eq!(found["createdAt"], created["createdAt"], "{found}");
    }
    let done = finished(&caller, &created).await;
    let turn = &done["result"]["structuredContent"];
    assert_eq!(turn["text"], "early\nlate", "{done}");
    // What only the call itself could know is kept, too.
    assert_eq!(
        (&turn["spawned"], &turn["last_event_index"]),
        (&json!(true), &json!(0))
    );
    let second = finished(&caller, &queued).await;
    assert_eq!(second["result"]["structuredContent"]["text"], "second");
    // A task that has ended, too, and exactly as before.
    let ended = get(&caller, &created).await;
    server.kill();
    server.start_again();
    assert_eq!(get(&caller, &created).await, ended);
    send(&caller, "tasks/cancel", &created).await;
    assert_eq!(get(&caller, &created).await["status"], "completed");
}

#[test(needs(sandbox))]
async fn a_task_whose_log_was_trimmed_has_failed() {
    let (mut server, caller) = started("[sessions]\nkeep_events = 10\n").await;
    let created = spawn(&caller, "/sleep 1\n/say first", json!({})).await;
    assert_eq!(finished(&caller, &created).await["status"], "completed");
    let session = session_of(&created);
    let more =
        json!({ "session_id": session, "prompt": "/repeat 10 /sh true", "wait_seconds": 50 });
    let more = caller.call("session_message", more).await;
    if more.body["result"]["resultType"] == "task" {
        finished(&caller, &task(&more)).await;
    }
    caller
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok();
    // The log is trimmed at the start.
    server.stop();
    server.start_again();
    let lost = poll(&caller, &created, |task| task["status"] != "completed").await;
    assert_eq!(lost["status"], "failed", "{lost}");
    assert!(
        lost["error"]["code"].is_i64() && lost.get("result").is_none(),
        "{lost}"
    );
    assert!(
        lost["error"]["message"].as_str().unwrap().contains("log"),
        "{lost}"
    );
}

#[test(needs(sandbox))]
async fn tasks_of_others_and_tasks_that_do_not_exist_are_the_same() {
    let (server, caller) = started("").await;
    let other = caller.project("other").await;
    let own = caller
        .call("project_get", json!({ "project_id": "one" }))
        .await
        .ok()["project_id"]
        .clone();
    let own = own.as_str().unwrap();
    let client = async |scope: String| {
        let key = server.admin().token(&scope).await;
        server.with_key(&key).with_tasks()
    };
    let foreign = client(format!("project:{other}")).await;
    let reader = client(format!("project:{own}:ro")).await;
    let writer = client(format!("project:{own}")).await;
    let created = spawn(&caller, "/sleep 100", json!({})).await;
    let id = created["taskId"].as_str().unwrap();
    let session = session_of(&created);

    // A message that is waited for without a task.
    let plain = json!({ "session_id": session, "prompt": "/say x", "wait_seconds": 0.1 });
    server.admin().call("session_message", plain).await.ok();
    let (_, wait) = id.split_once('.').unwrap();
    let unknown = [
        "tasks-that-do-not-exist".to_owned(),
        session.clone(),
        format!("{session}.00000000000040008000000000000000"),
        format!("gogol_00000000000040008000000000000000.{wait}"),
        id.to_uppercase(),
        format!("{id}0"),
        "9".repeat(4000),
    ];
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let send = async |caller: &Modern, id: &str| {
            let params = json!({ "taskId": id, "inputResponses": {} });
            caller.send(method, params).await
        };
        let expected = send(&foreign, id).await;
        assert_eq!(expected.code(), INVALID_PARAMS, "{}", expected.text);
        for id in &unknown {
            let reply = send(&caller, id).await;
            assert_eq!(reply.body["error"], expected.body["error"], "{method} {id}");
        }
    }
    // Other tokens of the project have what they have of its sessions.
    assert_eq!(get(&reader, &created).await["status"], "working");
    let refused = send(&reader, "tasks/cancel", &created).await;
    assert!(
        refused
            .message()
            .contains("tool not allowed for this token scope"),
        "{}",
        refused.text
    );
    assert_eq!(get(&writer, &created).await["status"], "working");
    send(&writer, "tasks/cancel", &created).await;
    assert_eq!(get(&caller, &created).await["status"], "cancelled");
    // With its project, a task is gone.
    let delete = json!({ "project_id": own });
    caller.call("project_delete", delete).await.ok();
    assert_eq!(
        send(&caller, "tasks/get", &created).await.code(),
        INVALID_PARAMS
    );
}

#[test(needs(sandbox))]
async fn clients_without_tasks_get_the_result_of_the_call() {
    let (server, caller) = started("").await;
    let admin = server.admin();
    let call = json!({ "project_id": "one", "prompt": "/sleep 1\n/say done", "wait_seconds": 50 });
    let done = admin.call("session_spawn", call.clone()).await;
    assert_eq!(done.ok()["text"], "done");
    let extension = "io.modelcontextprotocol/tasks";
    let discovered = caller.send("server/discover", json!({})).await;
    let capabilities = &discovered.body["result"]["capabilities"];
    assert_eq!(
        capabilities["extensions"][extension],
        json!({}),
        "{}",
        discovered.text
    );
    let get = json!({ "taskId": "x" });
    assert_eq!(
        admin.send("tasks/get", get.clone()).await.code(),
        MISSING_CAPABILITY
    );

    // Protocol versions with MCP sessions have no tasks, whatever the client declares.
    let declared = json!({ "extensions": { extension: {} } });
    let legacy = Legacy::connect_declaring(server.url(), admin.key(), declared).await;
    let (legacy, initialized) = legacy.unwrap();
    assert!(
        initialized["capabilities"].get("extensions").is_none(),
        "{initialized}"
    );
    let done = legacy.call("session_spawn", call).await;
    assert_eq!(done.ok()["text"], "done");
    let refused = legacy.send("tasks/get", get).await;
    assert_eq!(refused.code(), METHOD_NOT_FOUND, "{}", refused.text);
}

#[test]
async fn a_server_without_the_protocol_version_offers_no_tasks() {
    let server = Server::start_with(ServerOptions {
        config: "[mcp]\nmax_protocol = \"2025-11-25\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let legacy = Legacy::connect(server.url(), &server.admin_key()).await;
    let refused = legacy.send("tasks/get", json!({ "taskId": "x" })).await;
    assert_eq!(refused.code(), METHOD_NOT_FOUND, "{}", refused.text);
}
