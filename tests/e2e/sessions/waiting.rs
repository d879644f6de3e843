//! Waiting for a turn: one call that gives a prompt and returns the answer.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Modern, Server, ServerOptions};

async fn sandboxed(config: &str) -> (Server, Modern, String) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{config}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    (server, admin, project)
}

async fn spawn(caller: &Modern, mut parameters: Value) -> Value {
    parameters["project_id"] = json!("one");
    caller.call("session_spawn", parameters).await.ok().clone()
}

/// Goes on waiting, without a prompt.
async fn wait(caller: &Modern, session: &Value, seconds: f64) -> Value {
    let call = json!({ "session_id": session, "wait_seconds": seconds });
    caller.call("session_message", call).await.ok().clone()
}

#[test(needs(sandbox))]
async fn a_turn_is_one_call() {
    let (_server, admin, _) = sandboxed("").await;
    let prompt = "/say Hello.\n/sh echo hi > file; cat file\n/usage 10 2 0.5";
    let done = spawn(&admin, json!({ "prompt": prompt, "wait_seconds": 50 })).await;
    assert_eq!(
        (&done["completed"], &done["text"], &done["stop_reason"]),
        (&json!(true), &json!("Hello.\n\nhi"), &json!("end_turn")),
        "{done}"
    );
    assert_eq!(
        (&done["error"], &done["cost_usd"]),
        (&json!(null), &json!(0.5))
    );
    assert_eq!(
        done["changed"],
        json!({ "files": 1, "added": 1, "removed": 0 })
    );
    assert_eq!(done["pending_permissions"], json!([]));
    assert_eq!(done["pending_caller_requests"], json!([]));
    let id = &done["session_id"];

    // The next message, and a wait when nothing runs.
    let next = json!({ "session_id": id, "message": "/say next", "wait_seconds": 50 });
    let next = admin.call("session_message", next).await.ok().clone();
    assert_eq!(
        (&next["completed"], &next["text"]),
        (&json!(true), &json!("next"))
    );
    let again = wait(&admin, id, 50.0).await;
    assert_eq!(
        (&again["completed"], &again["text"]),
        (&json!(true), &json!("next"))
    );

    // A failed turn.
    let failed = json!({ "session_id": id, "prompt": "/fail no luck", "wait_seconds": 50 });
    let failed = admin.call("session_message", failed).await.ok().clone();
    assert_eq!(
        (&failed["completed"], &failed["stop_reason"]),
        (&json!(true), &json!("error"))
    );
    assert!(
        failed["error"].as_str().unwrap().contains("no luck"),
        "{failed}"
    );

    // Without a wait nothing about the turn is in the result.
    let sent = json!({ "session_id": id, "prompt": "/say last" });
    let sent = admin.call("session_message", sent).await.ok().clone();
    assert!(
        sent.get("completed").is_none() && sent.get("text").is_none(),
        "{sent}"
    );
    for (bad, expected) in [
        (json!({ "wait_seconds": 51, "prompt": "x" }), "0 to 50"),
        (json!({ "wait_seconds": -1, "prompt": "x" }), "0 to 50"),
        (json!({}), "missing parameter `prompt`"),
        (json!({ "wait_seconds": 0 }), "missing parameter `prompt`"),
    ] {
        let mut call = bad;
        call["session_id"] = id.clone();
        let refused = admin.call("session_message", call).await;
        assert!(
            refused.sentence().contains(expected),
            "{}",
            refused.sentence()
        );
    }
}

#[test(needs(sandbox))]
async fn a_wait_that_is_over_can_be_gone_on_with_and_is_for_its_own_turn() {
    let (_server, admin, _) = sandboxed("").await;
    let slow = json!({ "prompt": "/sleep 2\n/say slow", "wait_seconds": 0.2 });
    let running = spawn(&admin, slow).await;
    assert_eq!(
        (
            &running["completed"],
            &running["text"],
            &running["stop_reason"]
        ),
        (&json!(false), &json!(null), &json!(null)),
        "{running}"
    );
    let id = running["session_id"].clone();
    // Two messages behind it, the first of which waits for its own turn.
    let second = json!({ "session_id": id, "prompt": "/say second", "wait_seconds": 0.1 });
    let second = admin.call("session_message", second).await.ok().clone();
    assert_eq!(second["completed"], false, "{second}");
    let third = json!({ "session_id": id, "prompt": "/say third", "wait_seconds": 50 });
    let third = admin.call("session_message", third);
    let fourth = async {
        // Behind the third.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let call = json!({ "session_id": id, "prompt": "/sleep 60" });
        admin.call("session_message", call).await.ok().clone()
    };
    let (third, _) = tokio::join!(third, fourth);
    let third = third.ok();
    assert_eq!(
        (&third["completed"], &third["text"]),
        (&json!(true), &json!("third")),
        "{third}"
    );
    // A wait for the session is one for all of its turns.
    let all = wait(&admin, &id, 0.2).await;
    assert_eq!(all["completed"], false, "{all}");
    let end = json!({ "session_id": id });
    admin.call("session_interrupt", end).await.ok();
    wait(&admin, &id, 50.0).await;

    // One that is interrupted.
    let hanging = spawn(
        &admin,
        json!({ "prompt": "/sleep 60", "wait_seconds": 0.2 }),
    )
    .await;
    let id = hanging["session_id"].clone();
    let waiting = wait(&admin, &id, 50.0);
    let interrupting = async {
        let call = json!({ "session_id": id });
        admin.call("session_interrupt", call).await.ok().clone()
    };
    let (waited, _) = tokio::join!(waiting, interrupting);
    assert_eq!(
        (&waited["completed"], &waited["stop_reason"]),
        (&json!(true), &json!("cancelled")),
        "{waited}"
    );
}

#[test(needs(sandbox))]
async fn a_wait_ends_early_when_the_agent_asks_and_not_twice_for_the_same_request() {
    let (_server, admin, _) = sandboxed("").await;
    let asking =
        json!({ "prompt": "/ask may I\n/say done", "autonomy": "off", "wait_seconds": 50 });
    let asked = spawn(&admin, asking).await;
    assert_eq!(asked["completed"], false, "{asked}");
    assert_eq!(asked["waiting_for"]["kind"], "permission", "{asked}");
    let pending = asked["pending_permissions"].as_array().unwrap();
    assert_eq!(pending.len(), 1, "{asked}");
    assert!(
        pending[0]["title"].as_str().unwrap().contains("may I"),
        "{asked}"
    );
    let id = asked["session_id"].clone();

    let started = Instant::now();
    let again = wait(&admin, &id, 1.0).await;
    assert!(
        started.elapsed() >= Duration::from_secs(1),
        "it ended for the same request"
    );
    assert_eq!(
        again["pending_permissions"][0]["request_id"],
        pending[0]["request_id"]
    );

    let answer = json!({
        "session_id": id, "request_id": pending[0]["request_id"], "decision": "allow",
    });
    admin.call("session_permit", answer).await.ok();
    let done = wait(&admin, &id, 50.0).await;
    assert_eq!(done["completed"], true, "{done}");
    assert_eq!(done["pending_permissions"], json!([]));
}

#[test(needs(sandbox))]
async fn a_caller_that_waits_is_connected_and_gets_the_calls_of_its_tools() {
    let config = "[caller_tools]\npresence_seconds = 1\ngrace_seconds = 1\n";
    let (_server, admin, _) = sandboxed(config).await;
    let tool = json!({ "name": "add", "inputSchema": { "type": "object" } });
    let prompt = "/sleep 3\n/tool myapp_add {\"a\": 1}\n/tool myapp_add {\"a\": 2}";
    let call = json!({
        "prompt": prompt, "wait_seconds": 50,
        "context": { "caller_id": "myapp", "caller_tools": [tool] },
    });
    let mut result = spawn(&admin, call).await;
    let id = result["session_id"].clone();
    for number in [1, 2] {
        assert_eq!(result["completed"], false, "{result}");
        let request = &result["pending_caller_requests"][0];
        assert_eq!(request["arguments"], json!({ "a": number }), "{result}");
        let answer = json!({
            "session_id": id, "request_id": request["request_id"], "result": { "sum": number },
        });
        admin.call("caller_tool_response", answer).await.ok();
        result = wait(&admin, &id, 50.0).await;
    }
    assert_eq!(result["completed"], true, "{result}");
    assert!(
        result["text"].as_str().unwrap().contains("\"sum\":2"),
        "{result}"
    );
}

#[test(needs(sandbox))]
async fn each_text_is_in_one_event_and_types_and_ends_of_turns_can_be_asked_for() {
    let (_server, admin, _) = sandboxed("").await;
    let started = spawn(
        &admin,
        json!({ "prompt": "/say unique words\n/sleep 2\n/sh true\n/say more" }),
    )
    .await;
    let id = started["session_id"].clone();
    let events = async |mut more: Value| {
        more["session_id"] = id.clone();
        admin.call("session_events", more).await.ok().clone()
    };
    // One call from the beginning to the end of the turn.
    let page = events(json!({ "until": "completion", "wait_seconds": 50 })).await;
    assert_eq!(page["completed"], true, "{page}");
    let all = page["events"].as_array().unwrap();
    let with_text: Vec<&Value> = all
        .iter()
        .filter(|event| event["type"] != "prompt" && event.to_string().contains("unique words"))
        .collect();
    assert_eq!(with_text.len(), 1, "{page}");
    assert_eq!(with_text[0]["type"], "completion");
    assert_eq!(
        page["last_index"].as_i64().unwrap() + 1,
        page["log_end"].as_i64().unwrap()
    );

    let kinds = |page: &Value| -> Vec<String> {
        let events = page["events"].as_array().unwrap().iter();
        events
            .map(|event| event["type"].as_str().unwrap().to_owned())
            .collect()
    };
    let messages = events(json!({ "types": ["message"] })).await;
    assert_eq!(kinds(&messages), ["message", "message"], "{messages}");
    let deltas = events(json!({ "types": ["delta"] })).await;
    assert!(!kinds(&deltas).is_empty() && kinds(&deltas).iter().all(|kind| kind == "delta"));
    let everything = events(json!({ "types": ["all"] })).await;
    let count = everything["events"].as_array().unwrap().len();
    assert_eq!(count as i64, everything["log_end"].as_i64().unwrap());
    // Pages of a filtered log are complete, and a wait is for a type.
    let (mut since, mut found) = (-1, 0);
    loop {
        let page =
            events(json!({ "types": ["message"], "max_events": 1, "since_index": since })).await;
        if page["events"].as_array().unwrap().is_empty() {
            break;
        }
        found += 1;
        since = page["last_index"].as_i64().unwrap();
    }
    assert_eq!(found, 2);
    let last = everything["last_index"].clone();
    let waiting = events(json!({ "types": ["usage"], "since_index": last, "wait_seconds": 50 }));
    let working = admin.message(id.as_str().unwrap(), "/say x\n/usage 1 1 0.1");
    let (waited, _) = tokio::join!(waiting, working);
    assert!(kinds(&waited).contains(&"usage".to_owned()), "{waited}");
    let refused = json!({ "session_id": id, "types": ["mesage"] });
    let refused = admin.call("session_events", refused).await;
    assert!(
        refused.sentence().contains("did you mean `message`"),
        "{}",
        refused.sentence()
    );
}

#[test(needs(sandbox))]
async fn long_texts_of_events_are_shortened_and_linked() {
    let (_server, admin, _) = sandboxed("").await;
    let prompt = "/sh for i in $(seq 9000); do echo line $i; done";
    let done = spawn(&admin, json!({ "prompt": prompt, "wait_seconds": 50 })).await;
    assert_eq!(done["completed"], true, "{done}");
    let call = json!({ "session_id": done["session_id"], "types": ["completion"] });
    let reply = admin.call("session_events", call).await;
    let event = reply.ok()["events"][0].clone();
    let text = event["text"].as_str().unwrap();
    assert!(
        text.contains("bytes left out") && text.ends_with("line 9000"),
        "{event}"
    );
    let content = reply.body["result"]["content"].as_array().unwrap();
    let link = content
        .iter()
        .find(|block| block["type"] == "resource_link")
        .unwrap();
    assert_eq!(link["uri"], event["rest_uri"]);
    let read = admin
        .send("resources/read", json!({ "uri": link["uri"] }))
        .await;
    let whole = read.body["result"]["contents"][0]["text"].as_str().unwrap();
    let whole: Value = serde_json::from_str(whole).unwrap();
    assert_eq!(whole["text"], done["text"]);
    assert_eq!(whole["index"], event["index"]);
}

#[test(needs(sandbox))]
async fn an_agent_that_is_not_installed_is_refused_at_once() {
    let (_server, admin, project) = sandboxed("").await;
    let call = json!({
        "project_id": project, "prompt": "hello", "agent": "qwen", "create_workspace": true,
    });
    let refused = admin.call("session_spawn", call).await;
    let sentence = refused.sentence();
    assert!(
        sentence.contains("agent install qwen") && sentence.contains("`demo`"),
        "{sentence}"
    );
    let sessions = admin.call("session_list", json!({})).await;
    assert_eq!(sessions.ok()["sessions"], json!([]));
    let workspaces = json!({ "project_id": project });
    let workspaces = admin.call("workspace_list", workspaces).await;
    assert_eq!(workspaces.ok()["workspaces"].as_array().unwrap().len(), 1);
    // One that is in the container is used.
    let program =
        "printf '#!/bin/sh\\nexit 9\\n' > /usr/local/bin/qwen; chmod +x /usr/local/bin/qwen";
    let made = admin.exec(&project, program).await;
    assert_eq!(made["exit_code"], 0, "{made}");
    let call = json!({ "project_id": project, "prompt": "hello", "agent": "qwen" });
    admin.call("session_spawn", call).await.ok();
}
