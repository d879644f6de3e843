//! What an agent reports besides its answers: work without a prompt, edits, failures, silence, commands.

use serde_json::{Value, json};
use support::{Modern, Server, ServerOptions};

use crate::credentials;

async fn sandboxed(config: &str) -> (Server, Modern, String) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{config}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    (server, admin, project)
}

/// A line of a prompt that makes the demo agent send an update.
fn update(update: Value) -> String {
    let params = json!({ "sessionId": "s", "update": update });
    let message = json!({ "jsonrpc": "2.0", "method": "session/update", "params": params });
    format!("/garbage {message}\n")
}

fn of_type<'a>(log: &'a [Value], kind: &str) -> Vec<&'a Value> {
    log.iter().filter(|event| event["type"] == kind).collect()
}

#[test(needs(sandbox))]
async fn work_without_a_prompt_is_a_turn_of_its_own() {
    let (mut server, admin, project) = sandboxed("").await;
    let session = admin.spawn(&project, "/later 2 late news\n/say now").await;
    assert_eq!(admin.turn(&session, 1).await["text"], "now");
    let background = admin.turn(&session, 2).await;
    assert_eq!(background["text"], "late news");
    assert_eq!(
        (&background["kind"], &background["stop_reason"]),
        (&json!("background"), &json!("end_turn"))
    );
    let seen = admin.status(&session, "idle").await;
    assert_eq!(seen["turns"], 2);
    // It is in its own completion, and not in that of the next prompt.
    admin
        .message(&session, "/later 2 more news\n/say next")
        .await;
    let next = admin.turn(&session, 3).await;
    assert_eq!(
        (&next["text"], &next["kind"]),
        (&json!("next"), &Value::Null)
    );
    // A message that arrives meanwhile waits, also if the server is killed.
    let is_background = |event: &Value| event["type"] == "status" && event["kind"] == "background";
    let since = next["index"].as_i64().unwrap();
    admin.follow_from(&session, since, is_background).await;
    admin.message(&session, "/say after").await;
    server.kill();
    server.start_again();
    let admin = server.admin();
    assert_eq!(admin.turn(&session, 4).await["text"], "more news");
    assert_eq!(admin.turn(&session, 5).await["text"], "after");
}

#[test(needs(sandbox))]
async fn work_without_a_prompt_can_be_interrupted() {
    let (_server, admin, project) = sandboxed("").await;
    let session = admin
        .spawn(&project, "/later 1 one\n/later 2 two\n/say now")
        .await;
    admin
        .follow(&session, |event| event["kind"] == "background")
        .await;
    let reply = admin
        .call("session_interrupt", json!({ "session_id": session }))
        .await;
    assert_eq!(reply.ok()["interrupted"], true);
    let background = admin.turn(&session, 2).await;
    assert_eq!(
        (&background["kind"], &background["stop_reason"]),
        (&json!("background"), &json!("cancelled"))
    );
    admin.message(&session, "/say next").await;
    let next = admin
        .follow(&session, |event| {
            event["text"] == "next" && event["type"] == "completion"
        })
        .await;
    assert_eq!(next.last().unwrap()["kind"], Value::Null);
}

#[test(needs(sandbox))]
async fn an_edit_is_visible_before_it_is_allowed_and_an_open_call_gets_a_result() {
    let (_server, admin, project) = sandboxed("").await;
    let diff =
        json!({ "type": "diff", "path": "/workspace/a", "oldText": "x", "newText": "rm -rf" });
    let announced = update(json!({ "sessionUpdate": "tool_call", "toolCallId": "e1",
        "title": "Editing files", "kind": "edit", "status": "in_progress", "content": [diff] }));
    // Like Codex's, the request names only the call that was announced before.
    let params = json!({ "sessionId": "s", "toolCall": { "toolCallId": "e1" },
        "options": [{ "optionId": "n", "name": "No", "kind": "reject_once" }] });
    let request = json!({ "jsonrpc": "2.0", "id": "p1", "method": "session/request_permission",
        "params": params });
    let prompt = format!("{announced}/sleep 0.5\n/garbage {request}\n/sleep 60");
    let session = admin
        .spawn_with(&project, &prompt, json!({ "autonomy": "low" }))
        .await;
    let log = admin
        .follow(&session, |event| event["type"] == "permission_request")
        .await;
    let change = json!({ "path": "/workspace/a", "old_text": "x", "new_text": "rm -rf" });
    assert_eq!(
        of_type(&log, "tool_call")[0]["input"]["changes"],
        json!([change])
    );
    let request = log.last().unwrap();
    assert_eq!(
        (&request["title"], &request["input"]["changes"]),
        (&json!("Editing files"), &json!([change]))
    );
    admin
        .call("session_interrupt", json!({ "session_id": session }))
        .await
        .ok();
    let log = admin.log(&session).await;
    let results = of_type(&log, "tool_result");
    assert_eq!(results.len(), 1, "{log:#?}");
    assert_eq!(
        (&results[0]["tool_call_id"], &results[0]["status"]),
        (&json!("e1"), &json!("failed"))
    );
}

#[test(needs(sandbox))]
async fn a_turn_that_the_agent_reports_as_failed_has_failed() {
    let (_server, admin, project) = sandboxed("").await;
    let status = json!({ "codex": { "threadStatus": { "type": "systemError" } } });
    let failed = update(json!({ "sessionUpdate": "session_info_update", "_meta": status }));
    let retry = json!({ "codex": { "error": { "message": "HTTP 429", "willRetry": true } } });
    let retry = update(json!({ "sessionUpdate": "session_info_update", "_meta": retry }));
    let session = admin
        .spawn(&project, &format!("{retry}{failed}/say so far"))
        .await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "error");
    let error = completion["error"].as_str().unwrap();
    assert!(error.contains("the turn failed"), "{error}");
    let log = admin.log(&session).await;
    let notice = "the agent asks its model again: HTTP 429";
    assert!(
        of_type(&log, "log")
            .iter()
            .any(|event| event["message"] == notice)
    );
    // A caller that only polls sees it, until the next turn.
    let seen = admin.status(&session, "idle").await;
    assert_eq!(seen["error"], error);
    admin.message(&session, "/say better").await;
    assert_eq!(admin.turn(&session, 2).await["stop_reason"], "end_turn");
    assert_eq!(admin.session(&session).await["error"], Value::Null);
}

/// Gemini reports the end of a turn whose stream was cut off like any other, but counts no tokens.
#[test(needs(sandbox))]
async fn a_turn_without_tokens_of_an_agent_that_counts_them_has_failed() {
    let server = credentials::scripted_server(&["gemini", "claude"], "");
    let admin = server.admin();
    for (agent, expected) in [("gemini", "error"), ("claude", "end_turn")] {
        let project = credentials::project(&admin, agent, agent, &[]).await;
        let (session, completion) = credentials::run(&server, &project, "echo half").await;
        assert_eq!(completion["stop_reason"], expected, "{completion}");
        assert_eq!(completion["text"], "half", "{completion}");
        let error = completion["error"].as_str().unwrap_or_default();
        assert_eq!(error.contains("cut off"), expected == "error", "{error}");
        // Its own commands ask no model.
        admin.message(&session, "/help").await;
        let completion = admin.turn(&session, 2).await;
        assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    }
}

#[test(needs(sandbox), mostly_waits)]
async fn silence_is_logged_once_and_not_while_a_tool_runs() {
    let (_server, admin, project) = sandboxed("[sessions]\nsilence_notice_seconds = 6\n").await;
    // The start of a container may take as long on a busy machine.
    let session = admin.spawn(&project, "/say ready").await;
    admin.turn(&session, 1).await;
    let first = admin.log(&session).await.len();
    admin
        .message(&session, "/sh sleep 8\n/say a\n/sleep 11\n/say b")
        .await;
    admin.turn(&session, 2).await;
    let log = admin.log(&session).await.split_off(first);
    let silent = |event: &&Value| event["message"] == "no sign of the agent for 6 s";
    let found: Vec<&Value> = log.iter().filter(silent).collect();
    assert_eq!(found.len(), 1, "{log:#?}");
    let result = of_type(&log, "tool_result")[0]["index"].as_i64();
    assert!(found[0]["index"].as_i64() > result, "{log:#?}");
}

#[test(needs(sandbox))]
async fn a_report_of_usage_that_says_nothing_new_is_no_event() {
    let (_server, admin, project) = sandboxed("").await;
    let usage = |used: u64, cost: f64| {
        let cost = json!({ "amount": cost, "currency": "USD" });
        update(json!({ "sessionUpdate": "usage_update", "used": used, "size": 1000, "cost": cost }))
    };
    let reports = [(100, 0.5), (101, 0.5), (100, 0.5), (100, 0.75)];
    let reports = reports.map(|(used, cost)| usage(used, cost)).concat();
    let session = admin.spawn(&project, &format!("{reports}/say done")).await;
    admin.turn(&session, 1).await;
    let log = admin.log(&session).await;
    let costs: Vec<f64> = of_type(&log, "usage")
        .iter()
        .map(|event| event["cost_usd"].as_f64().unwrap())
        .collect();
    assert_eq!(costs, [0.5, 0.75], "{log:#?}");
}

#[test(needs(sandbox))]
async fn commands_and_modes_are_events_and_pictures_are_images() {
    let (_server, admin, project) = sandboxed("").await;
    let mode = update(json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan" }));
    let picture = json!([
        { "name": "a.png", "content_base64": "iVBORw0KGgo=" },
        { "name": "b.txt", "text": "b" },
    ]);
    let session = admin
        .spawn_with(
            &project,
            &format!("{mode}{mode}hello"),
            json!({ "attachments": picture }),
        )
        .await;
    let completion = admin.turn(&session, 1).await;
    let text = completion["text"].as_str().unwrap();
    assert!(
        text.contains("You sent 1 attachment with this prompt."),
        "{text}"
    );
    assert!(
        text.contains("You sent 1 image with this prompt."),
        "{text}"
    );
    let log = admin.log(&session).await;
    assert_eq!(of_type(&log, "mode").len(), 1, "{log:#?}");
    let commands = of_type(&log, "commands");
    assert_eq!(commands.len(), 1, "{log:#?}");
    let names = commands[0]["commands"].as_array().unwrap();
    assert!(
        names.iter().any(|command| command["name"] == "sh"),
        "{names:?}"
    );
}
