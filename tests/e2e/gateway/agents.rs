//! Real agents whose only way to a model is the gateway.

use serde_json::{Value, json};
use support::{Llm, Modern, agents};

use super::{KEY, add_credential, event_texts, keys_of, processes_with};
use crate::credentials::files_with;

/// A project of an agent that reaches its model only through the gateway, with a credential of its own.
pub(super) async fn agent_project(
    admin: &Modern,
    agent: &str,
    llm: &Llm,
    key: &str,
    more: Value,
) -> String {
    let (kind, base_url, model) = match agent {
        "claude" => ("anthropic", llm.base(), None),
        "codex" => ("openai", llm.v1(), None),
        "copilot" | "qwen" => ("openai", llm.v1(), Some("mock-model")),
        "droid" => ("anthropic", llm.base(), Some("claude-sonnet-4-6")),
        "gemini" => ("gemini", llm.base(), None),
        _ => ("anthropic", llm.base(), Some("anthropic/claude-sonnet-4-6")),
    };
    let name = format!("gate-{agent}");
    add_credential(admin, &name, kind, key, &base_url).await;
    let mut project = json!({
        "name": agent, "agent": agent, "credential_refs": [name], "network": "policy",
    });
    if let Some(model) = model {
        project["model"] = json!(model);
    }
    for (name, value) in more.as_object().into_iter().flatten() {
        project[name] = value.clone();
    }
    let made = admin.call("project_create", project).await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

#[test(
    each(claude, codex, copilot, droid, gemini, opencode, qwen),
    needs(sandbox),
    limit = 300
)]
async fn an_agent_reaches_its_model_and_has_no_key(agent: &'static str) {
    let (server, llm) = agents::server_without_setup(agent);
    let admin = server.admin();
    let policy = json!({ "network_policy": { "preset": "strict" } });
    let project = agent_project(&admin, agent, &llm, KEY, policy).await;
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
    let stored = server.home().join(format!("credentials/gate-{agent}.json"));
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
