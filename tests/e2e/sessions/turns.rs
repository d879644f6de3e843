//! Sessions with the demo agent in real containers: what a caller sees.

use serde_json::{Value, json};
use support::{Modern, Server, ServerOptions, event_types, server_with};

async fn sandboxed(config: &str) -> (Server, Modern, String) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{config}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    (server, admin, project)
}

#[test(runtimes)]
async fn a_prompt_becomes_a_turn_whose_every_step_is_in_the_log(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let made = json!({ "name": "one", "init_git": false });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let prompt = "/say Hello.\n/sh echo hi > file; cat file\n/usage 100 20 0.5";
    let session = admin.spawn(&project, prompt).await;
    assert!(session.starts_with("gogol_"), "{session}");
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{runtime}");
    assert_eq!(completion["text"], "Hello.\n\nhi", "{runtime}");
    admin.status(&session, "idle").await;
    let log = admin.log(&session).await;
    let indexes: Vec<i64> = log.iter().map(|e| e["index"].as_i64().unwrap()).collect();
    assert_eq!(indexes, (0..log.len() as i64).collect::<Vec<_>>());
    assert_eq!(
        event_types(&log),
        [
            "status",
            "prompt",
            "status",
            "message",
            "tool_call",
            "tool_result",
            "usage",
            "message",
            "usage",
            "checkpoint",
            "completion",
            "status"
        ],
        "{log:#?}"
    );
    assert!(log.iter().all(|e| e["session_id"] == session.as_str()));
    assert_eq!(log[0]["status"], "created");
    let call = log.iter().find(|e| e["type"] == "tool_call").unwrap();
    assert_eq!(call["kind"], "execute");
    let result = log.iter().find(|e| e["type"] == "tool_result").unwrap();
    assert_eq!(
        (&result["status"], &result["tool_call_id"]),
        (&json!("completed"), &call["tool_call_id"])
    );
    let file = server.workspace(&project).join("file");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "hi\n");
    let seen = admin.session(&session).await;
    assert_eq!(seen["usage"]["input_tokens"], 100);
    assert_eq!(seen["cost_usd"], 0.5);
    assert_eq!(
        (&seen["turns"], &seen["agent"]),
        (&json!(1), &json!("demo"))
    );

    // The second turn has the context of the first.
    admin.message(&session, "hello?").await;
    let second = admin.turn(&session, 2).await;
    assert!(second["text"].as_str().unwrap().contains("2"), "{second}");
}

#[test(needs(sandbox))]
async fn a_spawn_continues_the_newest_session_of_the_workspace_unless_a_new_one_is_requested() {
    let (_server, admin, project) = sandboxed("").await;
    let first = admin.spawn(&project, "/say one").await;
    admin.turn(&first, 1).await;
    let again = json!({ "project_id": project, "message": "/say two" });
    let again = admin.call("session_spawn", again).await.ok().clone();
    assert_eq!(again["session_id"], first.as_str());
    assert_eq!(
        (&again["spawned"], &again["resumed"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(admin.turn(&first, 2).await["text"], "two");
    let other = admin
        .spawn_with(
            &project,
            "/say three",
            json!({ "new_session": true, "external_id": "x" }),
        )
        .await;
    assert_ne!(other, first);
    assert_eq!(admin.turn(&other, 1).await["text"], "three");
    let elsewhere = json!({ "create_workspace": true, "workspace_id": "w2" });
    let elsewhere = admin.spawn_with(&project, "/sh pwd", elsewhere).await;
    assert_eq!(admin.turn(&elsewhere, 1).await["text"], "/workspaces/w2");
    let busy = json!({ "project_id": project, "workspace_id": "w2" });
    let refused = admin.call("workspace_delete", busy.clone()).await;
    assert!(
        refused.sentence().contains("session_end"),
        "{}",
        refused.sentence()
    );
    admin
        .call("session_end", json!({ "session_id": elsewhere }))
        .await
        .ok();
    admin.call("workspace_delete", busy).await.ok();

    let all = admin
        .call("session_list", json!({ "project_id": project }))
        .await
        .ok()
        .clone();
    let ids: Vec<&str> = all["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|session| session["session_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, [elsewhere.as_str(), other.as_str(), first.as_str()]);
    let named = json!({ "project_id": project, "external_id": "x" });
    let named = admin.call("session_list", named).await.ok().clone();
    assert_eq!(named["sessions"].as_array().unwrap().len(), 1);
    let page = json!({ "project_id": project, "limit": 2 });
    let page = admin.call("session_list", page).await.ok().clone();
    let next = json!({ "project_id": project, "limit": 2, "cursor": page["next_cursor"] });
    let next = admin.call("session_list", next).await.ok().clone();
    assert_eq!(next["sessions"].as_array().unwrap().len(), 1);
    assert!(next.get("next_cursor").is_none());
}

#[test(needs(sandbox))]
async fn messages_sent_in_mid_turn_wait_in_order() {
    let (_server, admin, project) = sandboxed("").await;
    let session = admin.spawn(&project, "/sleep 0.3\n/say zero").await;
    for text in ["one", "two", "three"] {
        admin.message(&session, &format!("/say {text}")).await;
    }
    admin.turn(&session, 4).await;
    let log = admin.log(&session).await;
    let texts: Vec<&str> = log
        .iter()
        .filter(|e| e["type"] == "completion")
        .map(|e| e["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["zero", "one", "two", "three"]);
    let order = event_types(&log);
    let prompts: Vec<usize> = (0..order.len()).filter(|n| order[*n] == "prompt").collect();
    let ends: Vec<usize> = (0..order.len())
        .filter(|n| order[*n] == "completion")
        .collect();
    for (n, prompt) in prompts.iter().enumerate().skip(1) {
        assert!(
            ends[n - 1] < *prompt,
            "a turn began before the last had ended"
        );
    }
}

#[test(needs(sandbox))]
async fn attachments_are_in_the_workspace_when_the_agent_gets_the_prompt() {
    let (server, admin, project) = sandboxed("").await;
    let files = json!({ "attachments": [
        { "name": "docs/note.txt", "text": "from the caller" },
        { "name": "raw.bin", "content_base64": "AAEC" },
    ] });
    let session = admin
        .spawn_with(&project, "/sh cat docs/note.txt", files)
        .await;
    assert_eq!(admin.turn(&session, 1).await["text"], "from the caller");
    let raw = server.workspace(&project).join("raw.bin");
    assert_eq!(std::fs::read(raw).unwrap(), [0, 1, 2]);
    let prompt = admin.log(&session).await;
    let prompt = prompt.iter().find(|e| e["type"] == "prompt").unwrap();
    assert_eq!(prompt["attachments"], json!(["docs/note.txt", "raw.bin"]));
    for bad in ["../x", "/etc/x", "", "a\nb"] {
        let parameters = json!({ "project_id": project, "prompt": "hi",
            "attachments": [{ "name": bad, "text": "x" }] });
        let refused = admin.call("session_spawn", parameters).await;
        assert!(refused.sentence().contains("attachments"), "{bad:?}");
    }
}

#[test(needs(sandbox))]
async fn a_turn_can_be_interrupted_and_the_session_takes_the_next_message() {
    let (_server, admin, project) = sandboxed("").await;
    let session = admin
        .spawn(&project, "/say begun\n/sh sleep 1000\n/say never")
        .await;
    admin.follow(&session, |e| e["type"] == "tool_call").await;
    let stopped = admin
        .call("session_interrupt", json!({ "session_id": session }))
        .await
        .ok()
        .clone();
    assert_eq!(
        (&stopped["status"], &stopped["interrupted"]),
        (&json!("idle"), &json!(true))
    );
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "cancelled");
    admin.message(&session, "/say again").await;
    assert_eq!(admin.turn(&session, 2).await["text"], "again");
    let idle = admin
        .call("session_interrupt", json!({ "session_id": session }))
        .await
        .ok()
        .clone();
    assert_eq!(idle["interrupted"], false);
}

#[test(needs(sandbox))]
async fn permission_requests_are_answered_once_and_denied_without_an_answer() {
    let (_server, admin, project) = sandboxed("[sessions]\npermission_seconds = 3\n").await;
    let low = json!({ "autonomy": "low" });
    let session = admin
        .spawn_with(&project, "/ask May I?\n/say done", low)
        .await;
    let log = admin
        .follow(&session, |e| e["type"] == "permission_request")
        .await;
    let request = log.last().unwrap().clone();
    assert!(
        request["title"].as_str().unwrap().contains("May I?"),
        "{request}"
    );
    let waiting = admin.status(&session, "waiting").await;
    assert_eq!(waiting["waiting_for"]["request_id"], request["request_id"]);
    assert_eq!(waiting["waiting_for"]["kind"], "permission");
    let answer = |decision: &str| json!({ "session_id": session, "request_id": request["request_id"], "decision": decision });
    admin.call("session_permit", answer("allow")).await.ok();
    let late = admin.call("session_permit", answer("deny")).await;
    assert!(late.is_error(), "{}", late.text);
    let completion = admin.turn(&session, 1).await;
    let text = completion["text"].as_str().unwrap();
    assert!(
        text.contains("allow_once") && text.contains("done"),
        "{text}"
    );
    let log = admin.log(&session).await;
    let answers: Vec<&Value> = log
        .iter()
        .filter(|e| e["type"] == "permission_answer")
        .collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(
        (&answers[0]["decision"], &answers[0]["by"]),
        (&json!("allow"), &json!("caller"))
    );

    // A request without an answer counts as denied, and the turn continues.
    admin.message(&session, "/ask And now?").await;
    let completion = admin.turn(&session, 2).await;
    assert!(
        completion["text"].as_str().unwrap().contains("reject"),
        "{completion}"
    );
    let log = admin.log(&session).await;
    assert!(log.iter().any(|e| e["by"] == "deadline"));

    // With high autonomy, the default, there is no request.
    let session = admin
        .spawn_with(&project, "/ask Really?", json!({ "new_session": true }))
        .await;
    assert!(
        admin.turn(&session, 1).await["text"]
            .as_str()
            .unwrap()
            .contains("allow_once")
    );
}

#[test(needs(sandbox))]
async fn crossing_the_budget_stops_the_tree_and_asks() {
    let (_server, admin, project) = sandboxed("[limits]\nmax_cost_usd = 1.0\n").await;
    let child = json!({ "prompt": "/say working\n/sh sleep 1000", "wait_seconds": 0 });
    let prompt = format!("/usage 10 1 0.6\n/tool session_message {child}\n/say cheap");
    let session = admin.spawn(&project, &prompt).await;
    let completion = admin.turn(&session, 1).await;
    assert!(completion["text"].as_str().unwrap().contains("cheap"));
    let listed = admin
        .call("session_list", json!({ "project_id": project }))
        .await;
    let listed = listed.ok()["sessions"].as_array().unwrap().clone();
    let child = listed.iter().find(|found| found["parent_id"] == *session);
    let child = child.unwrap()["session_id"].as_str().unwrap().to_owned();
    admin.follow(&child, |e| e["type"] == "tool_call").await;
    admin
        .message(&session, "/usage 10 1 0.6\n/sh sleep 1000\n/say never")
        .await;
    let completion = admin.turn(&session, 2).await;
    let of_child = admin.turn(&child, 1).await;
    assert_eq!(of_child["stop_reason"], "cancelled", "{of_child}");
    assert_eq!(completion["stop_reason"], "limit");
    assert!(
        completion["error"]
            .as_str()
            .unwrap()
            .contains("max_cost_usd")
    );
    let waiting = admin.status(&session, "waiting").await;
    assert_eq!(waiting["waiting_for"]["kind"], "budget");
    admin.message(&session, "/say later").await;
    let answer = json!({ "session_id": session, "decision": "allow", "max_cost_usd": 5.0,
        "request_id": waiting["waiting_for"]["request_id"] });
    admin.call("session_permit", answer).await.ok();
    assert_eq!(admin.turn(&session, 3).await["text"], "later");

    admin.message(&session, "/usage 1 1 9").await;
    admin.turn(&session, 4).await;
    let waiting = admin.status(&session, "waiting").await;
    let answer = json!({ "session_id": session, "decision": "deny",
        "request_id": waiting["waiting_for"]["request_id"] });
    admin.call("session_permit", answer).await.ok();
    admin.status(&session, "idle").await;
}

#[test(needs(sandbox))]
async fn ending_a_session_ends_its_processes_and_a_message_resumes_it() {
    let (_server, admin, project) = sandboxed("").await;
    let session = admin.spawn(&project, "/sh sleep 4711").await;
    admin.follow(&session, |e| e["type"] == "tool_call").await;
    let ended = admin
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok()
        .clone();
    assert_eq!(ended["status"], "interrupted");
    let left =
        json!({ "project_id": project, "command": "ps ax | grep -v grep | grep -c 'sleep 4711'" });
    let left = admin.call("container_exec", left).await.ok().clone();
    assert_eq!(left["stdout"], "0\n", "{left}");
    let again = admin.message(&session, "/say back").await;
    assert_eq!(again["resumed"], true);
    assert_eq!(admin.turn(&session, 2).await["text"], "back");
    let log = admin.log(&session).await;
    assert!(log.iter().any(|e| e["resumed_by"] == "resume"), "{log:#?}");
    admin.status(&session, "idle").await;
    let ended = admin
        .call("session_end", json!({ "session_id": session }))
        .await
        .ok()
        .clone();
    assert_eq!(ended["status"], "completed");
    let cleanup = json!({ "project_id": project, "max_age_hours": 0 });
    let cleanup = admin.call("session_cleanup", cleanup).await.ok().clone();
    assert_eq!(cleanup["deleted"], json!([session]));
    let gone = admin
        .call("session_get", json!({ "session_id": session }))
        .await;
    assert!(gone.sentence().contains("not found"));
}

#[test(needs(sandbox))]
async fn an_idle_agent_is_stopped_and_resumed_by_the_next_message() {
    let (_server, admin, project) = sandboxed("[sessions]\nidle_seconds = 1\n").await;
    let session = admin.spawn(&project, "/say one").await;
    admin.turn(&session, 1).await;
    let count =
        json!({ "project_id": project, "command": "ps ax | grep -v grep | grep -c demo-agent" });
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let left = admin
            .call("container_exec", count.clone())
            .await
            .ok()
            .clone();
        if left["stdout"] == "0\n" {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the agent still runs");
    }
    assert_eq!(admin.session(&session).await["status"], "idle");
    admin.message(&session, "hello").await;
    let second = admin.turn(&session, 2).await;
    assert!(second["text"].as_str().unwrap().contains("2"), "{second}");
}

#[test(needs(sandbox))]
async fn a_long_poll_ends_with_the_event_it_waits_for() {
    let (server, admin, project) = sandboxed("").await;
    let session = admin.spawn(&project, "/say one").await;
    admin.turn(&session, 1).await;
    let idle = admin.status(&session, "idle").await;
    let last = idle["last_index"].as_i64().unwrap();
    let waiting = {
        let (admin, session) = (server.admin(), session.clone());
        tokio::spawn(async move {
            admin
                .follow_from(&session, last, |e| e["type"] == "prompt")
                .await
        })
    };
    admin.message(&session, "/say two").await;
    let seen = waiting.await.unwrap();
    assert_eq!(seen[0]["index"], last + 1);
    let quick = json!({ "session_id": session, "since_index": 100_000, "wait_seconds": 0.05 });
    let quick = admin.call("session_events", quick).await.ok().clone();
    assert_eq!(
        (&quick["events"], &quick["last_index"]),
        (&json!([]), &json!(100_000))
    );
    for bad in [
        json!({ "wait_seconds": 51 }),
        json!({ "max_events": 0 }),
        json!({ "cursor": "x" }),
    ] {
        let mut parameters = bad;
        parameters["session_id"] = json!(session);
        assert!(admin.call("session_events", parameters).await.is_error());
    }
}

#[test(needs(sandbox))]
async fn many_sessions_that_begin_at_once_in_one_container_all_work() {
    let (_server, admin, project) = sandboxed("").await;
    let spawned = (0..100).map(|n| {
        let (admin, project) = (admin.clone(), project.clone());
        tokio::spawn(async move {
            let prompt = format!("/sh sleep 1; echo {n}");
            let new = json!({ "new_session": true });
            admin.spawn_with(&project, &prompt, new).await
        })
    });
    let spawned: Vec<_> = spawned.collect();
    for (n, session) in spawned.into_iter().enumerate() {
        let completion = admin.turn(&session.await.unwrap(), 1).await;
        assert_eq!(completion["text"], n.to_string(), "{completion}");
    }
}

#[test(needs(sandbox))]
async fn concurrent_long_polls_each_get_the_events_after_their_own_index() {
    let (_server, admin, project) = sandboxed("").await;
    let session = admin.spawn(&project, "/say first").await;
    admin.turn(&session, 1).await;
    let last = admin.status(&session, "idle").await["last_index"].clone();
    let last = last.as_i64().unwrap();
    let read = |since: i64, most: u32| {
        let arguments = json!({
            "session_id": session, "since_index": since, "max_events": most, "wait_seconds": 30,
        });
        let admin = admin.clone();
        tokio::spawn(async move { admin.call("session_events", arguments).await.ok().clone() })
    };
    let same: Vec<_> = (0..40).map(|_| read(last, 200)).collect();
    let (one, further) = (read(last, 1), read(last + 1, 200));
    // After this call the polls wait, or get the next events at once.
    admin.status(&session, "idle").await;
    admin.message(&session, "/say second").await;
    for page in same {
        let page = page.await.unwrap();
        let events = page["events"].as_array().unwrap();
        assert_eq!(events[0]["index"], last + 1, "{page}");
        assert_eq!(events[0]["type"], "prompt");
        let end = events.last().unwrap()["index"].clone();
        assert_eq!(page["last_index"], end);
    }
    let one = one.await.unwrap();
    assert_eq!(one["events"].as_array().unwrap().len(), 1);
    assert_eq!(one["last_index"], last + 1);
    let further = further.await.unwrap();
    assert_eq!(further["events"][0]["index"], last + 2, "{further}");
}

#[test(needs(sandbox))]
async fn invalid_spawns_are_refused_with_the_reason_and_control_characters_are_kept() {
    let (_server, admin, project) = sandboxed("").await;
    for (parameters, expected) in [
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "prompt": " \n" }), "prompt"),
        (json!({}), "prompt"),
        (
            json!({ "prompt": "a", "message": "b" }),
            "alias of `prompt`",
        ),
        (
            json!({ "prompt": "a", "agent": "dmeo" }),
            "did you mean `demo`",
        ),
        (json!({ "prompt": "a", "model": "m" }), "model"),
        (
            json!({ "prompt": "a", "agent": "codex", "tools_allowed": ["x"] }),
            "tools_allowed",
        ),
        (
            json!({ "prompt": "a", "workspace_id": "nowhere" }),
            "create_workspace",
        ),
        (json!({ "prompt": "x".repeat((1 << 20) + 1) }), "1048576"),
    ] {
        let mut parameters = parameters;
        parameters["project_id"] = json!(project);
        let refused = admin.call("session_spawn", parameters).await;
        assert!(
            refused.sentence().contains(expected),
            "{}",
            refused.sentence()
        );
    }
    let odd = format!("/say {}\u{1b}[31m\u{7}end", "x".repeat(1 << 19));
    let session = admin.spawn(&project, &odd).await;
    let completion = admin.turn(&session, 1).await;
    assert!(completion["text"].as_str().unwrap().ends_with("\u{7}end"));
}

#[test(needs(sandbox))]
async fn the_log_of_a_tree_is_read_merged_and_page_by_page() {
    let (_server, admin, project) = sandboxed("").await;
    let child = r#"/tool session_message {"prompt": "/say from below"}"#;
    let session = admin.spawn(&project, &format!("{child}\n/say above")).await;
    admin.turn(&session, 1).await;
    let children = admin.session(&session).await["children"].clone();
    let below = children[0]["session_id"].as_str().unwrap().to_owned();
    admin.status(&below, "idle").await;
    admin.status(&session, "idle").await;
    let (mut merged, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let page = json!({ "session_id": session, "include_children": true, "max_events": 3,
            "cursor": cursor, "types": ["all"] });
        let page = admin.call("session_events", page).await.ok().clone();
        let events = page["events"].as_array().unwrap().clone();
        if events.is_empty() {
            break;
        }
        assert!(events.len() <= 3);
        merged.extend(events);
        cursor = page["cursor"].clone();
    }
    let of = |id: &str| -> Vec<Value> {
        let own = merged.iter().filter(|event| event["session_id"] == id);
        own.cloned().collect()
    };
    assert_eq!(of(&session), admin.log(&session).await);
    assert_eq!(of(&below), admin.log(&below).await);
    // As times: their texts have no zeros at the end.
    let times: Vec<jiff::Timestamp> = merged
        .iter()
        .map(|e| e["timestamp"].as_str().unwrap().parse().unwrap())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
}
