//! Conversations: stored on disk, continued by another process, rejected if they do not exist.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

use serde_json::json;

use crate::process::wait_until;
use crate::{Agent, Turn};

fn reopen(agent: &mut Agent, how: &str, session: &str, directory: &std::path::Path) -> Turn {
    let id = agent.request(
        how,
        json!({ "sessionId": session, "cwd": directory, "mcpServers": [] }),
    );
    agent.finish(id, |_, _| {})
}

#[test]
fn load_replays_the_conversation_in_another_process() {
    let (mut agent, session, home) = Agent::ready();
    agent.turn(&session, "/say hello there\n/sh echo hi\n/usage 5 5 0.5");
    let mode = json!({ "sessionId": session, "modeId": "ask" });
    agent.call("session/set_mode", mode);
    agent.kill();

    let mut agent = Agent::start(home.path());
    let loaded = reopen(&mut agent, "session/load", &session, home.path());
    let modes = &loaded.response["result"]["modes"];
    assert_eq!(modes["currentModeId"], "ask", "{}", loaded.response);
    let kinds: Vec<&str> = loaded
        .updates
        .iter()
        .map(|update| update["sessionUpdate"].as_str().unwrap())
        .collect();
    let expected = [
        "user_message_chunk",
        "agent_message_chunk",
        "tool_call",
        "tool_call_update",
        "tool_call_update",
        "usage_update",
        "agent_message_chunk",
        "agent_message_chunk",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(loaded.text(), "hello there\nhi");
    let prompt = loaded.updates_of("user_message_chunk").next().unwrap();
    let text = prompt["content"]["text"].as_str().unwrap();
    assert!(text.starts_with("/say hello there\n/sh echo hi"), "{text}");

    let turn = agent.turn(&session, "where were we?\n/usage 1 1 0.25");
    assert!(turn.text().contains("This is turn 2 of our conversation."));
    let usage = turn.updates_of("usage_update").last().unwrap();
    assert_eq!(usage["cost"]["amount"], 0.75);
}

#[test]
fn resume_continues_without_a_replay() {
    let (mut agent, session, home) = Agent::ready();
    agent.turn(&session, "/say one");
    agent.turn(&session, "/say two");
    agent.kill();
    let mut agent = Agent::start(home.path());
    let resumed = reopen(&mut agent, "session/resume", &session, home.path());
    assert!(
        resumed.response["result"].is_object(),
        "{}",
        resumed.response
    );
    assert!(resumed.updates.is_empty());
    let turn = agent.turn(&session, "where were we?");
    assert!(turn.text().contains("This is turn 3 of our conversation."));
}

#[test]
fn the_part_of_a_turn_before_a_kill_is_in_the_conversation() {
    let (mut agent, session, home) = Agent::ready();
    agent.prompt(
        &session,
        "/say before\n/sh echo $$ > pid.new; mv pid.new pid; exec sleep 1000",
    );
    agent.update(|update| update["status"] == "in_progress");
    let pid = home.path().join("pid");
    wait_until("the command runs", || pid.exists());
    agent.kill();
    let group = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    let group = rustix::process::Pid::from_raw(group).unwrap();
    rustix::process::kill_process(group, rustix::process::Signal::KILL).unwrap();
    let journal = home
        .path()
        .join(format!(".oubliette-demo/sessions/{session}.jsonl"));
    let mut file = fs::OpenOptions::new().append(true).open(journal).unwrap();
    file.write_all(b"{\"update\":{\"sessionUp").unwrap();

    let mut agent = Agent::start(home.path());
    let loaded = reopen(&mut agent, "session/load", &session, home.path());
    assert_eq!(loaded.text(), "before");
    assert_eq!(loaded.updates_of("tool_call").count(), 1);
    agent.turn(&session, "/say after");
    let loaded = reopen(&mut agent, "session/load", &session, home.path());
    assert_eq!(loaded.text(), "beforeafter");
}

#[test]
fn tool_call_ids_are_unique_over_restarts() {
    let (mut agent, session, home) = Agent::ready();
    agent.turn(&session, "/repeat 2 /sh :");
    agent.kill();
    let mut agent = Agent::start(home.path());
    reopen(&mut agent, "session/resume", &session, home.path());
    agent.turn(&session, "/repeat 2 /sh :");
    let loaded = reopen(&mut agent, "session/load", &session, home.path());
    let names = loaded
        .updates_of("tool_call")
        .map(|call| call["toolCallId"].as_str());
    let names: BTreeSet<_> = names.collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn unknown_sessions_are_rejected() {
    let (mut agent, _, home) = Agent::ready();
    fs::write(home.path().join("x.jsonl"), "").unwrap();
    for session in ["unknown", "../../x", "", "/etc/passwd"] {
        for how in ["session/load", "session/resume"] {
            let refused = reopen(&mut agent, how, session, home.path()).response;
            assert_eq!(refused["error"]["code"], -32002, "{session}: {refused}");
        }
        let refused = agent.turn(session, "/say x").response;
        assert_eq!(refused["error"]["code"], -32002, "{session}: {refused}");
    }
}

#[test]
fn a_session_needs_a_directory_and_a_writable_home() {
    let (mut agent, _, home) = Agent::ready();
    let nowhere = home.path().join("nowhere");
    let refused = agent.call("session/new", json!({ "cwd": nowhere, "mcpServers": [] }));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.ends_with("nowhere is not a directory"), "{message}");
    let mut agent = Agent::start(std::path::Path::new("/dev/null"));
    let refused = agent.call(
        "session/new",
        json!({ "cwd": home.path(), "mcpServers": [] }),
    );
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("set HOME to a directory"), "{message}");
}

#[test]
fn a_session_has_one_turn_at_a_time_and_sessions_do_not_wait_for_each_other() {
    let (mut agent, session, home) = Agent::ready();
    let other = agent.new_session(home.path(), json!([]));
    let id = agent.prompt(&session, "/say busy\n/sleep 1000");
    agent.update(|update| update["content"]["text"] == "busy");
    let refused = agent.turn(&session, "/say me too").response;
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("a turn is running"), "{message}");
    assert_eq!(agent.turn(&other, "/say free").text(), "free");
    agent.cancel(&session);
    assert_eq!(agent.finish(id, |_, _| {}).stop_reason(), "cancelled");
}

#[test]
fn the_end_of_input_ends_the_process_and_its_command() {
    let (mut agent, session, home) = Agent::ready();
    agent.prompt(
        &session,
        "/sh echo $$ > pid.new; mv pid.new pid; exec sleep 1000",
    );
    let pid = home.path().join("pid");
    wait_until("the command runs", || pid.exists());
    agent.close_input();
    assert_eq!(agent.wait_for_exit().0, Some(0));
    let pid = fs::read_to_string(pid).unwrap();
    let stat = format!("/proc/{}/stat", pid.trim());
    wait_until("the command is gone", || {
        fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    });
}

#[test]
fn a_new_session_receives_the_list_of_commands() {
    let home = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(home.path());
    agent.request(
        "session/new",
        json!({ "cwd": home.path(), "mcpServers": [] }),
    );
    let update = agent.update(|update| update["sessionUpdate"] == "available_commands_update");
    let commands = update["availableCommands"].as_array().unwrap();
    assert!(commands.iter().any(|command| command["name"] == "sh"));
}

#[test]
fn unknown_methods_and_invalid_lines_do_not_end_the_agent() {
    let (mut agent, session, _home) = Agent::ready();
    assert_eq!(
        agent.call("session/dance", json!({}))["error"]["code"],
        -32601
    );
    agent.send(&json!("no message"));
    assert_eq!(agent.turn(&session, "/say fine").text(), "fine");
}
