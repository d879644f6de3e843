//! Tools of MCP servers.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Agent;
use crate::process::wait_until;

/// The MCP server of these tests, as a client configures it.
fn server(name: &str, marks: &Path) -> Value {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/support/mcp-server.sh"
    );
    json!({
        "name": name,
        "command": "/bin/sh",
        "args": [script, marks],
        "env": [{ "name": "GREETING", "value": "joy" }],
    })
}

fn with_server() -> (Agent, String, TempDir) {
    let home = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(home.path());
    let session = agent.new_session(home.path(), json!([server("marks", home.path())]));
    (agent, session, home)
}

#[test]
fn a_tool_is_called_by_its_name() {
    let (mut agent, session, home) = with_server();
    let turn = agent.turn(&session, "/tool app_echo {\"text\": \"hi\"}");
    let home = home.path().canonicalize().unwrap();
    let expected = format!("echo: hi in {} with joy", home.display());
    assert_eq!(turn.text(), expected);
    let call = turn.updates_of("tool_call").next().unwrap();
    assert_eq!(call["title"], "app_echo");
    assert_eq!(call["rawInput"], json!({ "text": "hi" }));
    assert_eq!(turn.call()["status"], "completed");
    assert_eq!(turn.call()["content"][0]["content"]["text"], expected);
    assert_eq!(turn.call()["rawOutput"]["content"][0]["text"], expected);
}

#[test]
fn a_tool_is_found_by_the_end_of_its_name_or_in_a_named_server() {
    let (mut agent, session, _home) = with_server();
    let turn = agent.turn(&session, "/tool echo {\"text\": \"hi\"}");
    assert!(turn.text().starts_with("echo: hi"), "{}", turn.text());
    let turn = agent.turn(&session, "/tool marks/secret");
    assert_eq!(turn.text(), "a tool that is not listed");
    let turn = agent.turn(&session, "/tool twin");
    assert_eq!(turn.text(), "`twin` could be any of: one_twin, two_twin");
    let turn = agent.turn(&session, "/tool nothing");
    assert_eq!(turn.call()["status"], "failed");
    assert!(
        turn.text()
            .starts_with("there is no tool `nothing`; there are: app_echo, app_broken"),
        "{}",
        turn.text()
    );
}

#[test]
fn a_tool_that_fails_is_a_failed_call_with_its_text() {
    let (mut agent, session, _home) = with_server();
    let turn = agent.turn(&session, "/tool app_broken");
    assert_eq!(turn.call()["status"], "failed");
    assert_eq!(turn.text(), "it is broken");
    assert_eq!(turn.stop_reason(), "end_turn");
}

#[test]
fn progress_is_shown_and_a_cancel_reaches_the_server() {
    let (mut agent, session, home) = with_server();
    let id = agent.prompt(&session, "/tool app_slow");
    let update = agent.update(|update| update.get("content").is_some());
    assert_eq!(update["status"], "in_progress");
    assert_eq!(update["content"][0]["content"]["text"], "half way");
    assert!(!home.path().join("cancelled").exists());
    agent.cancel(&session);
    let turn = agent.finish(id, |_, _| {});
    assert_eq!(turn.stop_reason(), "cancelled");
    let mark = home.path().join("cancelled");
    wait_until("the server receives the cancel", || mark.exists());
}

#[test]
fn tools_that_are_added_later_are_found() {
    let (mut agent, session, _home) = with_server();
    let turn = agent.turn(&session, "/tool app_grow\n/tool app_grown");
    assert_eq!(turn.text(), "{\"size\":7}");
    let text = agent.turn(&session, "what can you do?").text();
    assert!(
        text.contains("I can call 7 tools: app_echo, app_broken"),
        "{text}"
    );
}

#[test]
fn a_server_that_does_not_start_is_reported_and_the_others_work() {
    let home = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(home.path());
    let servers = json!([
        { "name": "missing", "command": "/nowhere/server", "args": [], "env": [] },
        { "name": "mute", "command": "/bin/true", "args": [], "env": [] },
        server("marks", home.path()),
    ]);
    let session = agent.new_session(home.path(), servers);
    let turn = agent.turn(&session, "/tool app_echo {\"text\": \"hi\"}");
    assert_eq!(turn.call()["status"], "completed");
    let text = agent.turn(&session, "/tool nothing").text();
    for part in [
        "the MCP server `missing` is not running: `/nowhere/server` cannot be started",
        "the MCP server `mute` is not running: `/bin/true` did not answer as an MCP server",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn servers_are_started_again_for_a_loaded_session_and_end_with_the_agent() {
    let (mut agent, session, home) = with_server();
    agent.turn(&session, "/tool app_echo");
    agent.close_input();
    assert_eq!(agent.wait_for_exit().0, Some(0));
    for how in ["session/load", "session/resume"] {
        let marks = home.path().join(how.replace('/', "-"));
        fs::create_dir(&marks).unwrap();
        let mut agent = Agent::start(home.path());
        let answer = agent.call(
            how,
            json!({
                "sessionId": session,
                "cwd": home.path(),
                "mcpServers": [server("marks", &marks)],
            }),
        );
        assert!(answer["result"].is_object(), "{answer}");
        let turn = agent.turn(&session, "/tool app_echo {\"text\": \"again\"}");
        assert!(turn.text().starts_with("echo: again"), "{}", turn.text());
        // When the agent is killed, the input of its servers ends.
        agent.kill();
        let mark = marks.join("ended");
        wait_until("the server ends", || mark.exists());
    }
}

#[test]
fn servers_that_are_not_on_stdio_are_rejected() {
    let (mut agent, _, home) = Agent::ready();
    let server =
        json!({ "type": "http", "name": "x", "url": "http://127.0.0.1:1/mcp", "headers": [] });
    let refused = agent.call(
        "session/new",
        json!({ "cwd": home.path(), "mcpServers": [server] }),
    );
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("stdio only"), "{message}");
}
