//! Each command of a prompt.

use std::fs;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;

use crate::process::wait_until;
use crate::{Agent, Turn};

#[test]
fn say_streams_text_in_pieces() {
    let (mut agent, session, _home) = Agent::ready();
    let turn = agent.turn(
        &session,
        "/say one two three four five six seven\n/say again",
    );
    assert_eq!(turn.text(), "one two three four five six seven\nagain");
    assert!(turn.chunks().len() > 3, "{:?}", turn.chunks());
    assert_eq!(turn.stop_reason(), "end_turn");
    let long = "Wörter ohne Ende ".repeat(20_000);
    let turn = agent.turn(&session, &format!("/say {long}"));
    assert_eq!(turn.text(), long.trim());
    assert!(turn.chunks().len() < 100, "{}", turn.chunks().len());
}

#[test]
fn a_shell_command_is_a_tool_call_and_its_output_ends_the_text() {
    let (mut agent, session, home) = Agent::ready();
    let turn = agent.turn(&session, "/say first\n/sh echo old\n/sh pwd; echo oops >&2");
    let home = home.path().canonicalize().unwrap();
    assert_eq!(turn.text(), format!("first\n{}\noops", home.display()));
    let calls: Vec<_> = turn.updates_of("tool_call").collect();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1]["kind"], "execute");
    assert_eq!(calls[1]["title"], "pwd; echo oops >&2");
    assert_eq!(
        calls[1]["rawInput"],
        json!({ "command": "pwd; echo oops >&2" })
    );
    assert_ne!(calls[0]["toolCallId"], calls[1]["toolCallId"]);
    let statuses: Vec<_> = turn
        .updates_of("tool_call_update")
        .filter(|update| update["toolCallId"] == calls[0]["toolCallId"])
        .map(|update| update["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["in_progress", "completed"]);
    let last = turn.updates_of("tool_call_update").last().unwrap();
    assert_eq!(last["rawOutput"]["exitCode"], 0);
}

#[test]
fn a_command_that_fails_is_a_failed_tool_call() {
    let (mut agent, session, _home) = Agent::ready();
    let turn = agent.turn(&session, "/sh echo partly; exit 3");
    assert_eq!(turn.call()["status"], "failed");
    assert_eq!(turn.call()["rawOutput"]["exitCode"], 3);
    assert_eq!(turn.text(), "partly\n(exit code 3)");
    let turn = agent.turn(&session, "/sh kill -9 $$");
    assert_eq!(turn.text(), "(killed by signal 9)");
    assert_eq!(turn.stop_reason(), "end_turn");
}

#[test]
fn output_of_a_command_is_bounded() {
    let (mut agent, session, _home) = Agent::ready();
    let turn = agent.turn(&session, "/sh head -c 3000000 /dev/zero | tr '\\0' x");
    let output = turn.call()["rawOutput"]["output"].as_str().unwrap();
    assert_eq!(output.len(), 1024 * 1024);
    assert!(turn.text().ends_with("x\n(more output was left out)"));
}

#[test]
fn a_command_ends_with_its_shell_and_leaves_background_processes() {
    let (mut agent, session, home) = Agent::ready();
    let turn = agent.turn(&session, "/sh sleep 1000 & echo $! > pid; echo started");
    assert_eq!(turn.text(), "started");
    let pid = pid(&home.path().join("pid"));
    assert!(
        test_kill_process(pid).is_ok(),
        "the background process was killed"
    );
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn cancel_kills_the_command_and_its_children() {
    let (mut agent, session, home) = Agent::ready();
    let id = agent.prompt(
        &session,
        "/sh sleep 1000 & echo $! > child.new; mv child.new child; wait\n/say not reached",
    );
    let file = home.path().join("child");
    wait_until("the command runs", || file.exists());
    agent.cancel(&session);
    let turn = agent.finish(id, |_, _| {});
    assert_eq!(turn.stop_reason(), "cancelled");
    assert_eq!(turn.call()["status"], "failed");
    assert_eq!(turn.text(), "");
    let child = pid(&file);
    wait_until("the child is gone", || is_gone(child));
    assert_eq!(agent.turn(&session, "/say still here").text(), "still here");
}

#[test]
fn sleep_waits_and_can_be_cancelled() {
    let (mut agent, session, _home) = Agent::ready();
    let started = std::time::Instant::now();
    assert_eq!(agent.turn(&session, "/sleep 0.2\n/say up").text(), "up");
    assert!(started.elapsed().as_millis() >= 200);
    let id = agent.prompt(&session, "/say asleep\n/sleep 1000");
    agent.update(|update| update["content"]["text"] == "asleep");
    agent.cancel(&session);
    assert_eq!(agent.finish(id, |_, _| {}).stop_reason(), "cancelled");
}

#[test]
fn a_quick_line_that_is_repeated_often_can_be_cancelled() {
    let (mut agent, session, _home) = Agent::ready();
    let id = agent.prompt(&session, "/repeat 1000000 /usage 1 1 0");
    agent.update(|update| update["sessionUpdate"] == "usage_update");
    agent.cancel(&session);
    assert_eq!(agent.finish(id, |_, _| {}).stop_reason(), "cancelled");
}

#[test]
fn ask_reports_the_answer() {
    let (mut agent, session, _home) = Agent::ready();
    for (option, status) in [
        ("allow_once", "completed"),
        ("allow_always", "completed"),
        ("reject_once", "failed"),
    ] {
        let outcome = json!({ "outcome": "selected", "optionId": option });
        let (turn, asked) = agent.turn_with(&session, "/ask may I?", &outcome);
        assert_eq!(asked, 1);
        assert_eq!(turn.text(), format!("may I?: {option}"));
        assert_eq!(turn.call()["status"], status);
    }
    let cancelled = json!({ "outcome": "cancelled" });
    let (turn, _) = agent.turn_with(&session, "/ask may I?\n/say no", &cancelled);
    assert_eq!(turn.stop_reason(), "cancelled");
    assert_eq!(turn.text(), "");
}

#[test]
fn a_request_for_permission_offers_three_answers_and_names_its_call() {
    let (mut agent, session, _home) = Agent::ready();
    let id = agent.prompt(&session, "/ask may I?");
    let mut request = None;
    while request.is_none() {
        let message = agent.next().unwrap();
        if message["method"] == "session/request_permission" {
            request = Some(message);
        }
    }
    let request = &request.unwrap()["params"];
    let kinds = request["options"].as_array().unwrap().iter();
    let kinds: Vec<_> = kinds
        .map(|option| option["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);
    assert_eq!(request["toolCall"]["title"], "may I?");
    assert_eq!(request["sessionId"], session);
    // Without an answer, a cancel ends the turn.
    agent.cancel(&session);
    assert_eq!(agent.finish(id, |_, _| {}).stop_reason(), "cancelled");
}

#[test]
fn a_client_without_permission_requests_ends_the_turn() {
    let (mut agent, session, _home) = Agent::ready();
    let id = agent.prompt(&session, "/ask may I?");
    let turn = agent.finish(id, |agent, message| {
        if message["method"] == "session/request_permission" {
            let error = json!({ "code": -32601, "message": "what?" });
            agent.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }));
        }
    });
    let message = turn.response["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("did not answer a request for permission"),
        "{message}"
    );
    assert_eq!(turn.call()["status"], "failed");
}

#[test]
fn commands_need_permission_in_the_modes_ask_and_each() {
    let (mut agent, session, _home) = Agent::ready();
    let mode = |id| json!({ "sessionId": session, "modeId": id });
    assert!(agent.call("session/set_mode", mode("ask"))["result"].is_object());
    let select = |option| json!({ "outcome": "selected", "optionId": option });

    let (turn, asked) = agent.turn_with(&session, "/sh echo done", &select("reject_once"));
    assert_eq!(
        (turn.text().as_str(), asked),
        ("not permitted: echo done", 1)
    );
    assert_eq!(turn.call()["status"], "failed");
    let (turn, asked) = agent.turn_with(&session, "/repeat 2 /sh echo done", &select("allow_once"));
    assert_eq!((turn.text().as_str(), asked), ("done", 2));
    let (turn, asked) =
        agent.turn_with(&session, "/repeat 3 /sh echo done", &select("allow_always"));
    assert_eq!((turn.text().as_str(), asked), ("done", 1));

    assert!(agent.call("session/set_mode", mode("auto"))["result"].is_object());
    let (_, asked) = agent.turn_with(&session, "/sh echo done", &select("reject_once"));
    assert_eq!(asked, 0);
    let refused = agent.call("session/set_mode", mode("wild"));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("use ask, each or auto"), "{refused}");

    assert!(agent.call("session/set_mode", mode("each"))["result"].is_object());
    let (turn, asked) =
        agent.turn_with(&session, "/repeat 3 /sh echo done", &select("allow_always"));
    assert_eq!((turn.text().as_str(), asked), ("done", 3));
}

#[test]
fn repeat_executes_a_line_many_times() {
    let (mut agent, session, _home) = Agent::ready();
    let turn = agent.turn(
        &session,
        "/repeat 2 /repeat 2 /sh echo x >> log\n/sh wc -l < log",
    );
    assert_eq!(turn.text().trim(), "4");
    assert_eq!(turn.updates_of("tool_call").count(), 5);
}

#[test]
fn usage_is_summed_over_the_turn_and_its_cost_over_the_session() {
    let (mut agent, session, _home) = Agent::ready();
    let turn = agent.turn(&session, "/usage 100 20 0.25\n/usage 10 2 0.5");
    let expected = json!({ "totalTokens": 132, "inputTokens": 110, "outputTokens": 22 });
    assert_eq!(turn.response["result"]["usage"], expected);
    let cost = |turn: &Turn| {
        let last = turn.updates_of("usage_update").last().unwrap();
        last["cost"]["amount"].as_f64().unwrap()
    };
    assert_eq!(cost(&turn), 0.75);
    let turn = agent.turn(&session, "/usage 1 1 0.25");
    assert_eq!(cost(&turn), 1.0);
    assert_eq!(turn.response["result"]["usage"]["totalTokens"], 2);
    let turn = agent.turn(&session, "/say nothing used");
    assert!(turn.response["result"].get("usage").is_none());
}

#[test]
fn fail_ends_the_turn_with_an_error_and_keeps_the_session() {
    let (mut agent, session, _home) = Agent::ready();
    let turn = agent.turn(
        &session,
        "/say before\n/fail the model is on holiday\n/say after",
    );
    assert_eq!(turn.response["error"]["message"], "the model is on holiday");
    assert_eq!(turn.text(), "before");
    assert_eq!(agent.turn(&session, "/say well").text(), "well");
}

#[test]
fn exit_ends_the_process_after_its_output() {
    let (mut agent, session, _home) = Agent::ready();
    agent.prompt(
        &session,
        "/flood 500\n/say goodbye\n/stderr the end\n/exit 7",
    );
    agent.update(|update| update["content"]["text"] == "goodbye");
    assert_eq!(agent.wait_for_exit(), (Some(7), "the end\n".to_owned()));
}

#[test]
fn a_hanging_agent_ignores_cancel_and_requests() {
    let (mut agent, session, home) = Agent::ready();
    agent.prompt(&session, "/say one moment\n/sh : > hung\n/hang");
    agent.update(|update| update["content"]["text"] == "one moment");
    agent.update(|update| update["status"] == "completed");
    assert!(home.path().join("hung").exists());
    agent.cancel(&session);
    assert!(agent.is_silent(), "it reacted to the cancel");
    agent.request(
        "session/new",
        json!({ "cwd": home.path(), "mcpServers": [] }),
    );
    assert!(agent.is_silent(), "it answered a request");
    agent.kill();
}

#[test]
fn other_text_is_answered_with_a_description_of_the_workspace() {
    let (mut agent, _, home) = Agent::ready();
    let workspace = home.path().join("place");
    fs::create_dir_all(workspace.join("src")).unwrap();
    fs::create_dir_all(workspace.join(".git")).unwrap();
    fs::write(workspace.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(workspace.join("README.md"), "\n# A fine place\n").unwrap();
    fs::write(workspace.join("Makefile"), "").unwrap();
    let session = agent.new_session(&workspace, json!([]));
    let turn = agent.turn(&session, "What do you see?\nTell me all.");
    let text = turn.text();
    for part in [
        "I see 1 folder and 2 files: src/, Makefile, README.md.",
        "It is a git repository on branch main.",
        "README.md begins with \"A fine place\".",
        "This is turn 1 of our conversation.",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!(text.matches("Hello!").count(), 1);
    let empty = home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let session = agent.new_session(&empty, json!([]));
    let block = json!({ "type": "resource_link", "name": "x", "uri": "file:///x" });
    let prompt = json!([{ "type": "text", "text": "hi" }, block]);
    let id = agent.request(
        "session/prompt",
        json!({ "sessionId": session, "prompt": prompt }),
    );
    let text = agent.finish(id, |_, _| {}).text();
    assert!(text.contains("empty is empty."), "{text}");
    assert!(
        text.contains("You sent 1 attachment with this prompt."),
        "{text}"
    );
}

#[test]
fn flood_garbage_and_stderr_write_their_lines() {
    let (mut agent, session, _home) = Agent::ready();
    let turn = agent.turn(
        &session,
        "/flood 20000\n/garbage\n/garbage {\"half\n/stderr psst",
    );
    assert_eq!(turn.chunks().len(), 20_000);
    assert_eq!(turn.stop_reason(), "end_turn");
    assert_eq!(agent.garbage, ["this line is {no message", "{\"half"]);
    agent.close_input();
    assert_eq!(agent.wait_for_exit(), (Some(0), "psst\n".to_owned()));
}

#[test]
fn a_prompt_with_an_error_executes_nothing() {
    let (mut agent, session, home) = Agent::ready();
    let turn = agent.turn(&session, "/sh : > done\n/sleep forever");
    let message = turn.response["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("line 2: /sleep needs a number of seconds"),
        "{message}"
    );
    assert!(turn.updates.is_empty());
    assert!(!home.path().join("done").exists());
}

fn pid(file: &std::path::Path) -> Pid {
    let text = fs::read_to_string(file).unwrap();
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// Whether a process has ended; its parent may not have reaped it yet.
fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.map_or(true, |stat| stat.contains(") Z "))
}
