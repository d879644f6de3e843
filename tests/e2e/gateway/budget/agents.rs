//! Real agents whose calls have no room in the budget.

use serde_json::{Value, json};
use support::agents;

use super::KEY;
use crate::gateway::agents::agent_project;

/// Each call costs one US dollar, and no more is reserved for it.
const DOLLAR_A_CALL: &str =
    "[models.\"gpt-5.5\"]\ninput_usd = 0.0\noutput_usd = 50000.0\nmax_output_tokens = 20\n";

#[test(
    each(claude, codex, droid, gemini, opencode),
    needs(sandbox),
    limit = 300
)]
async fn a_turn_without_room_fails_with_the_budget_and_the_session_goes_on(agent: &'static str) {
    let (server, llm) = agents::server_without_setup(agent);
    let admin = server.admin();
    let small = json!({ "max_cost_usd": 0.0001 });
    let project = agent_project(&admin, agent, &llm, KEY, small).await;
    let session = admin.spawn(&project, "say Hello.").await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "limit", "{completion}");
    let error = completion["error"].as_str().unwrap();
    assert!(
        error.contains("budget") && error.contains("`max_cost_usd`"),
        "{error}"
    );
    assert!(llm.requests().is_empty(), "nothing reached the model");
    let found = admin.session(&session).await;
    assert_eq!(found["status"], "idle", "{found}");
    assert_eq!(found["error"], error, "{found}");
    assert_eq!(found["tree_cost_usd"], 0.0, "{found}");
    let raised = json!({ "project_id": project, "max_cost_usd": 1000.0 });
    admin.call("project_update", raised).await.ok();
    admin.message(&session, "say Back.").await;
    let completion = admin.turn(&session, 2).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    let text = completion["text"].as_str().unwrap();
    assert!(text.contains("Back."), "{completion}");
}

/// Codex sends a request again that was forbidden.
#[test(needs(codex, sandbox), limit = 240)]
async fn a_turn_asks_for_a_higher_budget_once_however_often_its_agent_tries() {
    let (server, llm) = agents::server_without_setups(&["codex"], DOLLAR_A_CALL);
    let admin = server.admin();
    let settings = json!({ "max_cost_usd": 1.5, "model": "gpt-5.5" });
    let project = agent_project(&admin, "codex", &llm, KEY, settings).await;
    let prompt = "say Hello.\nuse bash: true\nsay Hello again.";
    let session = admin.spawn(&project, prompt).await;
    let waiting = admin.status(&session, "waiting").await;
    assert_eq!(waiting["waiting_for"]["kind"], "budget", "{waiting}");
    let request = &waiting["waiting_for"]["request_id"];
    let deny = json!({ "session_id": session, "request_id": request, "decision": "deny" });
    admin.call("session_permit", deny).await.ok();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "limit", "{completion}");
    let error = completion["error"].as_str().unwrap();
    assert!(error.contains("a higher one was not allowed"), "{error}");
    let log = admin.log(&session).await;
    let asked = |event: &&Value| event["type"] == "permission_request";
    assert_eq!(log.iter().filter(asked).count(), 1, "{log:?}");
    assert_eq!(llm.requests().len(), 1);
    let raised = json!({ "project_id": project, "max_cost_usd": 100.0 });
    admin.call("project_update", raised).await.ok();
    admin.message(&session, "say Back.").await;
    let completion = admin.turn(&session, 2).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
}
