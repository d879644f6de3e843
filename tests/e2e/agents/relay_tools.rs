//! Real agents that call tools of Oubliette and tools of their caller.

use serde_json::{Value, json};
use support::agents;

#[test(
    each(claude, codex, droid, gemini, opencode),
    needs(sandbox),
    limit = 300
)]
async fn an_agent_in_the_sandbox_creates_a_project_and_calls_its_caller(agent: &str) {
    calls_oubliette_and_its_caller(agent, "sandbox").await;
}

#[test(
    each(claude, codex, droid, gemini, opencode),
    needs(docker),
    limit = 300
)]
async fn an_agent_in_docker_creates_a_project_and_calls_its_caller(agent: &str) {
    calls_oubliette_and_its_caller(agent, "docker").await;
}

/// One session, because agents take seconds to start.
async fn calls_oubliette_and_its_caller(agent: &str, runtime: &str) {
    let (mut server, llm) = agents::server_with_agent(agent, runtime);
    let admin = server.admin();
    let more = json!({ "name": "one", "agent_scope": "write" });
    let project = agents::project(&server, agent, &llm, more).await;
    let schema = json!({
        "type": "object", "properties": { "message": { "type": "string" } },
        "required": ["message"],
    });
    let tool = json!({
        "name": "send_notification", "description": "Send a notification", "inputSchema": schema,
    });
    let context = json!({ "caller_id": "myapp", "caller_tools": [tool] });

    // Its key makes a project in its first turn, with no more than its scope.
    let create = "use tool oubliette_project_create {\"name\": \"made inside\"}";
    let more = json!({ "context": context });
    let session = admin.spawn_with(&project, create, more).await;
    let completion = admin.turn(&session, 1).await;
    let run_turn = |turn: usize, prompt: &'static str| {
        let (admin, session) = (admin.clone(), session.clone());
        async move {
            admin.message(&session, prompt).await;
            admin.turn(&session, turn).await
        }
    };
    let text = completion["text"].as_str().unwrap();
    assert!(text.contains("made inside"), "{completion}");
    let all = admin.call("project_list", json!({})).await;
    let names = all.ok()["projects"].as_array().unwrap().iter();
    assert!(names.clone().any(|one| one["name"] == "made inside"));
    let audit = json!({ "operation": "project_create" });
    let audit = admin.call("audit_list", audit).await;
    let entries = audit.ok()["entries"].as_array().unwrap();
    let by_agent = |entry: &&Value| {
        let address = entry["address"].as_str().unwrap_or_default();
        address.starts_with("container:")
    };
    let entry = entries.iter().find(by_agent).unwrap();
    assert!(entry["token_id"].is_string(), "{entry}");
    let refused = run_turn(2, "use tool oubliette_project_create {\"name\": \"one\"}").await;
    let text = refused["text"].as_str().unwrap();
    assert!(text.contains("project already exists"), "{refused}");

    // A call of the caller's tool, with and without a death of the server in between.
    const SEND: &str = "use tool myapp_send_notification {\"message\": \"hello\"}";
    let mut turns = 2;
    for dies in [false, true] {
        let sent = admin.message(&session, SEND).await;
        turns += 1;
        let since = sent["last_event_index"].as_i64().unwrap();
        let asked = |event: &Value| event["type"] == "caller_tool_request";
        let log = admin.follow_from(&session, since, asked).await;
        let request = log.last().unwrap();
        assert_eq!(request["tool"], "send_notification");
        assert_eq!(request["arguments"], json!({ "message": "hello" }));
        if dies {
            server.kill();
            server.start_again();
        }
        let answer = json!({
            "session_id": session, "request_id": request["request_id"],
            "result": { "status": format!("sent {turns}") },
        });
        admin.call("caller_tool_response", answer).await.ok();
        let completion = admin.turn(&session, turns).await;
        let text = completion["text"].as_str().unwrap();
        assert!(text.contains(&format!("sent {turns}")), "{completion}");
    }

    // An interrupt during a call cancels the request of the caller.
    let sent = admin.message(&session, SEND).await;
    let since = sent["last_event_index"].as_i64().unwrap();
    let asked = |event: &Value| event["type"] == "caller_tool_request";
    admin.follow_from(&session, since, asked).await;
    let stop = json!({ "session_id": session });
    admin.call("session_interrupt", stop).await.ok();
    let cancelled = |event: &Value| event["type"] == "caller_tool_cancelled";
    admin.follow_from(&session, since, cancelled).await;
    let completion = admin.turn(&session, turns + 1).await;
    assert_eq!(completion["stop_reason"], "cancelled", "{completion}");
}
