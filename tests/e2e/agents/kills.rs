//! `kill -9` of a server on which all agents work at once.

use std::time::Duration;

use serde_json::{Value, json};
use support::{Server, agents, eventually};

const WORDS: usize = 60;
/// Far longer than anything here takes, on a busy machine too.
const WAIT_TIMEOUT: Duration = Duration::from_secs(90);

#[test(needs(claude, codex, droid, gemini, opencode, sandbox), limit = 300)]
async fn all_agents_at_once_lose_nothing_when_their_server_is_killed() {
    let (mut server, llm) = agents::server_with_agents(&agents::KNOWN, "sandbox");
    let admin = server.admin();
    let mut sessions = Vec::new();
    let words: Vec<String> = (0..WORDS).map(|n| format!("w{n}w")).collect();
    for agent in agents::KNOWN {
        let project = agents::project(&server, agent, &llm, json!({})).await;
        let prompt = format!(
            "This is {agent}.\nsay {}\nhold\nuse bash: echo begun >> marks; until [ -e go ]; do \
             sleep 0.05; done; echo ended >> marks; printf 'done %d\\n' 42\nsay After.",
            words.join(" ")
        );
        let session = admin.spawn(&project, &prompt).await;
        sessions.push((agent, project, session));
    }

    // In the text of all of them.
    for agent in agents::KNOWN {
        llm.wait_for(&format!("This is {agent}."));
    }
    server.kill();
    server.start_again();
    llm.release();
    // In the shell command of each: none ends before the file `go` is there.
    for (agent, project, _) in &sessions {
        let marks = server.workspace(project).join("marks");
        let appeared = eventually(WAIT_TIMEOUT, async || marks.exists());
        assert!(appeared.await, "{agent} did not start its command");
    }
    server.kill();
    server.start_again();
    for (agent, project, session) in &sessions {
        assert_eq!(admin.session(session).await["status"], "running", "{agent}");
        std::fs::write(server.workspace(project).join("go"), "").unwrap();
    }
    let mut with_deltas = 0;
    for (agent, project, session) in &sessions {
        let completion = admin.turn(session, 1).await;
        assert_eq!(
            completion["stop_reason"], "end_turn",
            "{agent}: {completion}"
        );
        let text = completion["text"].as_str().unwrap();
        assert!(
            text.contains("done 42") && text.contains("After."),
            "{agent}: {text}"
        );
        let log = admin.log(session).await;
        assert_complete(agent, &log);
        let deltas: String = log
            .iter()
            .filter(|event| event["type"] == "delta")
            .filter_map(|event| event["text"].as_str())
            .collect();
        for word in &words {
            assert_eq!(
                text.matches(word.as_str()).count(),
                1,
                "{agent}: {word} in {text}"
            );
            let in_deltas = deltas.matches(word.as_str()).count();
            assert!(in_deltas <= 1, "{agent}: {word} came {in_deltas} times");
        }
        // An agent whose text comes in one piece has none.
        with_deltas += usize::from(words.iter().all(|word| deltas.contains(word)));
        let marks = std::fs::read_to_string(server.workspace(project).join("marks")).unwrap();
        assert_eq!(marks, "begun\nended\n", "{agent}");
        let results = of_type(&log, "tool_result");
        assert_eq!(results.len(), 1, "{agent}: {log:#?}");
    }
    assert!(with_deltas >= 2, "only {with_deltas} agents sent parts");
    waits_for_decisions(&mut server, &sessions).await;
}

/// A new session of each agent asks, the server dies, and the answer reaches the agent.
async fn waits_for_decisions(server: &mut Server, projects: &[(&str, String, String)]) {
    let admin = server.admin();
    let mut sessions = Vec::new();
    for (agent, project, _) in projects {
        let careful = json!({ "autonomy": "off" });
        let prompt = "use bash: echo allowed > allowed";
        let session = admin.spawn_with(project, prompt, careful).await;
        sessions.push((*agent, project, session));
    }
    for (_, _, session) in &sessions {
        admin.status(session, "waiting").await;
    }
    server.kill();
    server.start_again();
    for (agent, project, session) in &sessions {
        let seen = admin.status(session, "waiting").await;
        let request = &seen["waiting_for"]["request_id"];
        let answer = json!({ "session_id": session, "request_id": request, "decision": "allow" });
        admin.call("session_permit", answer).await.ok();
        let completion = admin.turn(session, 1).await;
        assert_eq!(
            completion["stop_reason"], "end_turn",
            "{agent}: {completion}"
        );
        let allowed = server.workspace(project).join("allowed");
        assert!(allowed.exists(), "{agent}: {completion}");
        let log = admin.log(session).await;
        assert_complete(agent, &log);
        for kind in ["permission_request", "permission_answer"] {
            assert_eq!(of_type(&log, kind).len(), 1, "{agent} {kind}: {log:#?}");
        }
    }
}

fn of_type<'a>(log: &'a [Value], kind: &str) -> Vec<&'a Value> {
    log.iter().filter(|event| event["type"] == kind).collect()
}

/// The log has no gap, and the agent was not started again.
fn assert_complete(agent: &str, log: &[Value]) {
    let indexes = log.iter().map(|event| event["index"].as_u64().unwrap());
    let gap = indexes
        .enumerate()
        .find(|(place, index)| *place as u64 != *index);
    assert_eq!(gap, None, "{agent}");
    assert!(
        log.iter().all(|event| event["resumed_by"].is_null()),
        "{agent}: {log:#?}"
    );
}
