//! Real agents whose only way to a model is the gateway.

use serde_json::json;
use support::agents;

use super::{KEY, event_texts, keys_of, processes_with};
use crate::credentials::files_with;

#[test(
    each(claude, codex, copilot, droid, gemini, opencode, qwen),
    needs(sandbox),
    limit = 300
)]
async fn an_agent_reaches_its_model_and_has_no_key(agent: &'static str) {
    let (server, llm) = agents::server_without_setup(agent);
    let admin = server.admin();
    let (kind, base_url, model) = match agent {
        "claude" => ("anthropic", llm.base(), None),
        "codex" => ("openai", llm.v1(), None),
        "copilot" | "qwen" => ("openai", llm.v1(), Some("mock-model")),
        "droid" => ("anthropic", llm.base(), Some("claude-sonnet-4-6")),
        "gemini" => ("gemini", llm.base(), None),
        _ => ("anthropic", llm.base(), Some("anthropic/claude-sonnet-4-6")),
    };
    let add = json!({ "name": "gate", "kind": kind, "value": KEY, "base_url": base_url });
    admin.call("credential_add", add).await.ok();
    let mut project = json!({
        "name": "p", "agent": agent, "credential_refs": ["gate"], "network": "policy",
        "network_policy": { "preset": "strict" },
    });
    if let Some(model) = model {
        project["model"] = json!(model);
    }
    let made = admin.call("project_create", project).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let prompt = "use bash: env > /tmp/seen; cat /proc/*/environ >> /tmp/seen 2>/dev/null; true\nsay Hello from the gate.";
    let session = admin.spawn(&project, prompt).await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    let text = completion["text"].as_str().unwrap();
    assert!(text.contains("Hello from the gate."), "{completion}");
    assert!(!llm.steps().is_empty());
    let keys = keys_of(&llm);
    assert!(keys.iter().all(|key| key == KEY), "{keys:?}");
    // The agent still runs. Its container has the key nowhere.
    assert_eq!(processes_with(&server, KEY), Vec::<String>::new());
    assert!(
        !processes_with(&server, "oub_").is_empty(),
        "the search finds what is there"
    );
    let stored = server.home().join("credentials/gate.json");
    assert_eq!(
        files_with(server.home(), KEY),
        [stored.display().to_string()]
    );
    let search = format!("grep -rlaF {KEY} /tmp /root /workspace; true");
    let found = admin.exec(&project, search).await;
    assert_eq!(found["stdout"], "", "{found}");
    let log = event_texts(&admin.log(&session).await);
    assert!(!log.contains(KEY), "{log}");
    // And what it had stands for nothing any more when it has ended.
    let named = json!({ "session_id": session });
    admin.call("session_end", named).await.ok();
}
