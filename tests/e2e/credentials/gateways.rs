//! Real agents that reach their model only by what a credential says.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use support::agents;

use super::files_with;

const KEY: &str = "sk-gateway-0123456789abcdef";

#[test(
    each(claude, codex, copilot, gemini, opencode, qwen),
    needs(sandbox),
    limit = 300
)]
async fn an_agent_reaches_a_gateway_by_its_credential_alone(agent: &'static str) {
    let (server, llm) = agents::server_without_setup(agent);
    let admin = server.admin();
    let (kind, base_url, model) = match agent {
        "claude" => ("anthropic", llm.base(), None),
        "codex" => ("openai", llm.v1(), None),
        "copilot" | "qwen" => ("openai", llm.v1(), Some("mock-model")),
        "gemini" => ("gemini", llm.base(), None),
        _ => ("anthropic", llm.base(), Some("anthropic/claude-sonnet-4-6")),
    };
    let add = json!({ "name": "gate", "kind": kind, "value": KEY, "base_url": base_url });
    admin.call("credential_add", add).await.ok();
    let mut project = json!({ "name": "p", "agent": agent, "credential_refs": ["gate"] });
    if let Some(model) = model {
        project["model"] = json!(model);
    }
    let made = admin.call("project_create", project).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let session = admin.spawn(&project, "say Hello from the gateway.").await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    let text = completion["text"].as_str().unwrap();
    assert!(text.contains("Hello from the gateway."), "{completion}");
    let steps = llm.steps();
    assert!(!steps.is_empty());
    assert!(steps.iter().all(|step| step.key == KEY), "{steps:?}");
    let stored = server.home().join("credentials/gate.json");
    let found = files_with(server.home(), KEY);
    assert_eq!(found, [stored.display().to_string()]);
}

/// A token that says until when it is valid.
fn jwt(claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(&json!({ "alg": "none", "typ": "JWT" }));
    format!(
        "{head}.{}.{}",
        part(claims),
        URL_SAFE_NO_PAD.encode("signature")
    )
}

#[test(needs(codex, sandbox), limit = 300)]
async fn codex_signs_in_with_the_login_of_a_chatgpt_plan() {
    let (server, llm) = agents::server_without_setup("codex");
    let admin = server.admin();
    let auth = json!({ "chatgpt_account_id": "acc-1", "chatgpt_plan_type": "pro", "chatgpt_user_id": "u" });
    let claims = |kind: &str| {
        json!({
            "email": "a@example.com", "exp": 4_102_444_800_u64, "jti": kind,
            "https://api.openai.com/auth": auth,
        })
    };
    let access = jwt(&claims("access"));
    let tokens = json!({
        "id_token": jwt(&claims("id")), "access_token": access,
        "refresh_token": "rt-0123456789abcdef", "account_id": "acc-1",
    });
    let now = jiff::Timestamp::now().to_string();
    let login = json!({ "OPENAI_API_KEY": null, "tokens": tokens, "last_refresh": now });
    let add = json!({ "name": "plan", "kind": "codex_auth", "value": login.to_string() });
    admin.call("credential_add", add).await.ok();
    // Where the plan's models would be.
    let config = json!({
        "openai_base_url": llm.v1(), "chatgpt_base_url": llm.base(),
        "features": { "enable_request_compression": false },
    });
    let project = json!({
        "name": "p", "agent": "codex", "credential_refs": ["plan"],
        "env": { "CODEX_CONFIG": config.to_string() },
    });
    let made = admin.call("project_create", project).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let session = admin.spawn(&project, "say Hello from the plan.").await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    let text = completion["text"].as_str().unwrap();
    assert!(text.contains("Hello from the plan."), "{completion}");
    assert!(llm.steps().iter().all(|step| step.key == access));
    let home = format!("projects/{project}/home/.sessions/{session}/.codex/auth.json");
    let mut expected = ["credentials/plan.json".to_owned(), home]
        .map(|path| server.home().join(path).display().to_string());
    expected.sort();
    let mut found = files_with(server.home(), "rt-0123456789abcdef");
    found.sort();
    assert_eq!(found, expected);
}
