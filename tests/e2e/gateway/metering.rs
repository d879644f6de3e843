//! What sessions cost, by the count of the gate.

use std::time::Duration;

use serde_json::{Value, json};
use support::llm::{INPUT_TOKENS, OUTPUT_TOKENS};
use support::{Modern, Server, eventually};

use super::{ASK, NO_BUDGET, run, run_again, start, start_with};

const WAIT: Duration = Duration::from_secs(60);
const PRICES: &str = "[models.claude-x]\ninput_usd = 1000.0\noutput_usd = 2000.0\n";

fn cost_of(calls: u64) -> f64 {
    (calls * (INPUT_TOKENS * 1000 + OUTPUT_TOKENS * 2000)) as f64 / 1e6
}

async fn usage_events(admin: &Modern, session: &str) -> Vec<Value> {
    let mut log = admin.log(session).await;
    log.retain(|event| event["type"] == "usage");
    log
}

fn is_close(cost: &Value, expected: f64) -> bool {
    cost.as_f64()
        .is_some_and(|cost| (cost - expected).abs() < 1e-9)
}

#[test(needs(sandbox))]
async fn a_session_costs_what_the_gate_has_counted() {
    let (server, _llm, admin, project) = start_with(PRICES).await;
    let (session, text) = run(&server, &project, &format!("{ASK}; {ASK}")).await;
    assert!(text.ends_with("status 200"), "{text}");
    // Known when the turn ends, though the agent reports nothing.
    let found = admin.session(&session).await;
    assert!(is_close(&found["cost_usd"], cost_of(2)), "{found}");
    assert_eq!(found["usage"]["input_tokens"], 2 * INPUT_TOKENS, "{found}");
    assert_eq!(
        found["usage"]["output_tokens"],
        2 * OUTPUT_TOKENS,
        "{found}"
    );
    assert!(is_close(&found["tree_cost_usd"], cost_of(2)), "{found}");
    let events = usage_events(&admin, &session).await;
    assert!(
        is_close(&events.last().unwrap()["cost_usd"], cost_of(2)),
        "{events:?}"
    );
    let log = admin.log(&session).await;
    assert!(
        !log.iter()
            .any(|event| event.to_string().contains("is unknown"))
    );
    run_again(&server, &project, &session, 2, ASK).await;
    let found = admin.session(&session).await;
    assert!(is_close(&found["cost_usd"], cost_of(3)), "{found}");
}

#[test(needs(sandbox))]
async fn the_cost_of_an_unknown_model_is_unknown_and_counts_against_the_budget() {
    let (server, _llm, admin, _) = start().await;
    let made = json!({
        "name": "small", "agent": "claude", "network": "policy", "credential_refs": ["work"],
        "max_cost_usd": 0.015,
    });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    // The first call has room, the second one has not.
    let script = format!("{ASK}; {ASK}");
    std::fs::write(server.workspace(&project).join("do.sh"), script).unwrap();
    let session = admin.spawn(&project, "go").await;
    let waiting = admin.status(&session, "waiting").await;
    assert_eq!(waiting["waiting_for"]["kind"], "budget", "{waiting}");
    assert_eq!(waiting["cost_usd"], Value::Null, "{waiting}");
    assert_eq!(waiting["usage"]["input_tokens"], INPUT_TOKENS);
}

#[test(needs(sandbox))]
async fn an_answer_that_is_cut_is_charged_by_estimate() {
    let (server, _llm, admin, project) = start_with(PRICES).await;
    let cut = ASK.replace("say hello", "say hello\\ncut");
    let (session, text) = run(&server, &project, &format!("{cut}; true")).await;
    let found = admin.session(&session).await;
    assert!(found["cost_usd"].as_f64().unwrap() > 0.0, "{text} {found}");
    let events = usage_events(&admin, &session).await;
    assert_eq!(events.last().unwrap()["is_estimate"], true, "{events:?}");
}

/// How often the server is killed while an agent asks its model.
const KILLS: usize = 3;

#[test(needs(sandbox), limit = 300)]
async fn a_killed_server_loses_no_charge_and_counts_none_twice() {
    let settings = format!("{NO_BUDGET}{PRICES}");
    let (mut server, llm, admin, project) = start_with(&settings).await;
    let script = format!(
        "i=0; while [ ! -e stop ]; do {ASK} > /dev/null; i=$((i+1)); echo $i > count; sleep 0.05; done"
    );
    std::fs::write(server.workspace(&project).join("do.sh"), script).unwrap();
    let session = admin.spawn(&project, "go").await;
    let mut seen = 0;
    for _ in 0..KILLS {
        let asked = eventually(WAIT, async || llm.requests().len() >= seen + 5).await;
        assert!(asked);
        seen = llm.requests().len();
        server.kill();
        let asked = eventually(WAIT, async || llm.requests().len() >= seen + 5).await;
        assert!(asked, "requests go on without a server");
        server.start_again();
    }
    std::fs::write(server.workspace(&project).join("stop"), "").unwrap();
    let admin = server.admin();
    admin.turn(&session, 1).await;
    let calls = asked_by(&server, &project);
    assert_eq!(llm.requests().len() as u64, calls);
    let found = admin.session(&session).await;
    assert!(
        is_close(&found["cost_usd"], cost_of(calls)),
        "{calls} {found}"
    );
    let totals: Vec<u64> = usage_events(&admin, &session)
        .await
        .iter()
        .map(|event| event["input_tokens"].as_u64().unwrap())
        .collect();
    assert!(totals.is_sorted(), "{totals:?}");
}

fn asked_by(server: &Server, project: &str) -> u64 {
    let count = std::fs::read_to_string(server.workspace(project).join("count")).unwrap();
    count.trim().parse().unwrap()
}
