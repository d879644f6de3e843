//! Real agents with the scripted model, without Oubliette between them: the other tests with agents rely
//! on this.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[macro_use]
extern crate oubliette_test_harness;

mod model;
mod process;

use serde_json::json;
use support::{Llm, agents};

use process::Agent;

/// Codex shows its model only the tools of servers that its settings name: see the tests with Oubliette.
const HIDES_TOOLS: [&str; 1] = ["codex"];
/// Gemini finds a session only from the minute after its creation on.
const LOADS_LATER: [&str; 1] = ["gemini"];

#[test(each(claude, codex, droid, gemini, opencode))]
fn an_agent_works_offline_and_resumes_its_session_after_a_kill(name: &str) {
    let llm = Llm::start();
    let home = tempfile::tempdir().unwrap();
    let workspace = home.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let setup = agents::Setup::for_agent(name, &llm);
    setup.write(name, home.path());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/support/mcp-server.sh");
    let server = json!({
        "name": "marks",
        "command": "/bin/sh",
        "args": [script, home.path()],
        "env": [],
    });

    let mut agent = Agent::start(name, &setup, home.path());
    let created = agent.call(
        "session/new",
        json!({ "cwd": workspace, "mcpServers": [server] }),
    );
    let session = created.result["sessionId"].as_str().unwrap().to_owned();
    agent.set_mode(&session);

    let turn = agent.prompt(
        &session,
        "use bash: printf 'made by %d\\n' 42 | tee made.txt",
    );
    assert_eq!(turn.result["stopReason"], "end_turn");
    // Gemini puts words of its own around it.
    let text = turn.text();
    assert!(text.contains("The tool said: "), "{text}");
    assert!(text.contains("made by 42"), "{text}");
    assert!(turn.has_call("completed"), "{:?}", turn.updates);
    let made = std::fs::read_to_string(workspace.join("made.txt")).unwrap();
    assert_eq!(made, "made by 42\n");

    if !HIDES_TOOLS.contains(&name) {
        let call = "say Calling.\nuse tool app_echo {\"text\": \"ping\"}";
        let turn = agent.prompt(&session, call);
        assert!(turn.text().contains("Calling."), "{}", turn.text());
        assert!(turn.text().contains("echo: ping"), "{}", turn.text());
    }

    let stalled = agent.send_prompt(&session, "say Wait.\nstall");
    llm.wait_for("stall");
    agent.cancel(&session);
    let turn = agent.answer(stalled);
    // opencode reports `end_turn` when the cancel arrives before the model's first word.
    let reason = turn.result["stopReason"].as_str().unwrap();
    assert!(matches!(reason, "cancelled" | "end_turn"), "{reason}");

    agent.kill();
    if LOADS_LATER.contains(&name) {
        return;
    }
    let mut agent = Agent::start(name, &setup, home.path());
    let params = json!({ "sessionId": session, "cwd": workspace, "mcpServers": [] });
    assert!(agent.can_resume);
    agent.call("session/resume", params.clone());
    let turn = agent.prompt(&session, "What came before?");
    assert!(
        turn.text().contains("You said: What came before?"),
        "{}",
        turn.text()
    );
    let last = llm.steps().pop().unwrap();
    assert!(last.mentions("tee made.txt"));
    assert!(HIDES_TOOLS.contains(&name) || last.mentions("echo: ping"));

    agent.kill();
    let mut agent = Agent::start(name, &setup, home.path());
    let loaded = agent.call("session/load", params);
    assert!(
        loaded.text().contains("The tool said: made by 42"),
        "{}",
        loaded.text()
    );
}

fn main() -> std::process::ExitCode {
    oubliette_test_harness::main(&support::needs::SUITE)
}
