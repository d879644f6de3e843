//! Hard budgets: no call is sent that could cost more than is left of `max_cost_usd`.

mod agents;
mod faults;

use std::time::Duration;

use serde_json::{Value, json};
use support::llm::{INPUT_TOKENS, OUTPUT_TOKENS};
use support::{Llm, Modern, Server, eventually};

use super::{KEY, add_credential};
use crate::credentials::scripted_server;

const WAIT: Duration = Duration::from_secs(60);
/// US dollars per million tokens.
const PRICES: &str = "[models.claude-x]\ninput_usd = 1000.0\noutput_usd = 2000.0\n";
/// The size of each request, and the largest answer that it asks for.
const REQUEST_BYTES: usize = 300;
const MAX_TOKENS: usize = 50;
/// What a call costs, and what is reserved for it: a token for two bytes.
const COST: f64 = (INPUT_TOKENS * 1000 + OUTPUT_TOKENS * 2000) as f64 / 1e6;
const RESERVED: f64 = (REQUEST_BYTES / 2 * 1000 + MAX_TOKENS * 2000) as f64 / 1e6;

/// A request whose text the model takes for its script.
fn request(script: &str) -> String {
    let body = |padding: usize| {
        json!({
            "model": "claude-x", "max_tokens": MAX_TOKENS, "stream": true,
            "tools": [{ "name": "any", "input_schema": { "type": "object" } }],
            "metadata": { "user_id": "x".repeat(padding) },
            "messages": [{ "role": "user", "content": script }],
        })
        .to_string()
    };
    let body = body(REQUEST_BYTES - body(0).len());
    assert_eq!(body.len(), REQUEST_BYTES);
    body
}

/// A command that sends the request of a file, and leaves its status in another one.
fn ask(request: &str, status: &str) -> String {
    format!(
        "curl -sS -m 200 \"$ANTHROPIC_BASE_URL/v1/messages\" -H \"x-api-key: $ANTHROPIC_API_KEY\" \
         -H 'content-type: application/json' -o {status}.body -w '%{{http_code}}' \
         --data-binary @/workspace/{request}.json > {status}.new; mv {status}.new {status}"
    )
}

struct Bench {
    server: Server,
    llm: Llm,
    admin: Modern,
    project: String,
}

impl Bench {
    /// A server with a model, and a project whose trees may cost so much.
    async fn start(max_cost_usd: f64, settings: &str) -> Self {
        let settings = format!("{PRICES}{settings}");
        let server = scripted_server(&["claude"], &settings);
        let (llm, admin) = (Llm::start(), server.admin());
        add_credential(&admin, "work", "anthropic", KEY, &llm.base()).await;
        let made = json!({
            "name": "one", "agent": "claude", "network": "policy", "credential_refs": ["work"],
            "max_cost_usd": max_cost_usd,
        });
        let made = admin.call("project_create", made).await;
        let project = made.ok()["project_id"].as_str().unwrap().to_owned();
        let bench = Self {
            server,
            llm,
            admin,
            project,
        };
        bench.write("plain.json", &request("say hello"));
        bench.write("held.json", &request("say hello\nhold"));
        bench
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.server.workspace(&self.project).join(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        let path = self.server.workspace(&self.project).join(name);
        std::fs::read_to_string(path).unwrap_or_default()
    }

    async fn spawn(&self, script: &str) -> String {
        self.write("do.sh", script);
        self.admin.spawn(&self.project, "go").await
    }

    /// Waits for the status of a request.
    async fn status(&self, name: &str) -> String {
        let answered = eventually(WAIT, async || !self.read(name).is_empty()).await;
        assert!(answered, "no answer for {name}");
        self.read(name)
    }

    /// Waits until the session asks for a higher budget; its request.
    async fn budget_request(&self, session: &str) -> String {
        let waiting = self.admin.status(session, "waiting").await;
        assert_eq!(waiting["waiting_for"]["kind"], "budget", "{waiting}");
        let request = waiting["waiting_for"]["request_id"].as_str();
        request.unwrap().to_owned()
    }

    async fn permit(&self, session: &str, request: &str, decision: &str, limit: Option<f64>) {
        let mut answer =
            json!({ "session_id": session, "request_id": request, "decision": decision });
        if let Some(limit) = limit {
            answer["max_cost_usd"] = json!(limit);
        }
        self.admin.call("session_permit", answer).await.ok();
    }

    async fn assert_cost(&self, session: &str, expected: f64) {
        let found = self.admin.session(session).await;
        let cost = found["tree_cost_usd"].as_f64().unwrap();
        assert!((cost - expected).abs() < 1e-9, "{expected} {found}");
    }

    async fn answers(&self, session: &str) -> Vec<Value> {
        let mut log = self.admin.log(session).await;
        log.retain(|event| event["type"] == "permission_answer");
        log
    }
}

#[test(needs(sandbox), limit = 240)]
async fn a_hundred_calls_at_once_never_cost_more_than_the_budget() {
    const CALLS: usize = 100;
    const BUDGET: f64 = 2.0;
    let hold = "[sessions]\nbudget_hold_seconds = 8\n";
    let bench = Bench::start(BUDGET, hold).await;
    let one = ask("plain", "status$i");
    let script =
        format!("i=0; while [ $i -lt {CALLS} ]; do i=$((i+1)); ({one}) & done; wait; echo done");
    let session = bench.spawn(&script).await;
    let completion = bench.admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    let statuses: Vec<String> = (1..=CALLS)
        .map(|number| bench.read(&format!("status{number}")))
        .collect();
    let count = |status: &str| statuses.iter().filter(|one| *one == status).count();
    let (sent, refused) = (count("200"), count("403"));
    assert_eq!(sent + refused, CALLS, "{statuses:?}");
    assert_eq!(bench.llm.requests().len(), sent);
    // As many as fit, and none more.
    let fit = ((BUDGET - RESERVED) / COST) as usize + 1;
    assert_eq!(sent, fit);
    bench.assert_cost(&session, fit as f64 * COST).await;
    assert!(fit as f64 * COST <= BUDGET);
    let log = bench.admin.log(&session).await;
    let asked = |event: &&Value| event["type"] == "permission_request" && event["kind"] == "budget";
    assert!(log.iter().any(|event| asked(&event)), "{log:?}");
    // Nothing is left reserved: a budget with room for one more call takes it.
    let limit = fit as f64 * COST + RESERVED;
    let update = json!({ "project_id": bench.project, "max_cost_usd": limit });
    bench.admin.call("project_update", update).await.ok();
    bench.write("do.sh", &ask("plain", "again"));
    bench.admin.message(&session, "go").await;
    bench.admin.turn(&session, 2).await;
    assert_eq!(bench.read("again"), "200");
}

#[test(needs(sandbox))]
async fn a_held_call_goes_on_when_the_budget_is_raised() {
    let bench = Bench::start(RESERVED + 0.05, "").await;
    let names = ["first", "second", "third", "fourth"];
    let script = names.map(|name| ask("plain", name)).join("; ");
    let session = bench.spawn(&script).await;
    assert_eq!(bench.status("first").await, "200");
    // By an answer,
    let request = bench.budget_request(&session).await;
    assert_eq!(bench.llm.requests().len(), 1);
    bench
        .permit(&session, &request, "allow", Some(COST + RESERVED))
        .await;
    assert_eq!(bench.status("second").await, "200");
    // by an answer that names no limit,
    let request = bench.budget_request(&session).await;
    bench.permit(&session, &request, "allow", None).await;
    assert_eq!(bench.status("third").await, "200");
    // and not at all.
    let request = bench.budget_request(&session).await;
    bench.permit(&session, &request, "deny", None).await;
    assert_eq!(bench.status("fourth").await, "403");
    let error: Value = serde_json::from_str(&bench.read("fourth.body")).unwrap();
    assert_eq!(error["error"]["type"], "permission_error", "{error}");
    let completion = bench.admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    assert_eq!(bench.llm.requests().len(), 3);
    bench.assert_cost(&session, 3.0 * COST).await;
}

#[test(needs(sandbox))]
async fn a_held_call_goes_on_when_the_limit_of_the_project_is_raised() {
    let bench = Bench::start(RESERVED + 0.05, "").await;
    let script = format!("{}; {}", ask("plain", "first"), ask("plain", "second"));
    let session = bench.spawn(&script).await;
    bench.budget_request(&session).await;
    let raised = json!({ "project_id": bench.project, "max_cost_usd": 5.0 });
    bench.admin.call("project_update", raised).await.ok();
    assert_eq!(bench.status("second").await, "200");
    let completion = bench.admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    // The question was not needed any more.
    let answers = bench.answers(&session).await;
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["by"], "withdrawn", "{answers:?}");
}

#[test(needs(sandbox))]
async fn a_held_call_is_forbidden_after_its_time_and_the_session_goes_on() {
    let hold = "[sessions]\nbudget_hold_seconds = 2\n";
    let bench = Bench::start(RESERVED + 0.05, hold).await;
    let script = format!("{}; {}", ask("plain", "first"), ask("plain", "second"));
    let session = bench.spawn(&script).await;
    let completion = bench.admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    assert_eq!(
        (bench.read("first"), bench.read("second")),
        ("200".into(), "403".into())
    );
    assert!(bench.read("second.body").contains("max_cost_usd"));
    bench.admin.status(&session, "idle").await;
    assert_eq!(bench.answers(&session).await.len(), 1);
}

#[test(needs(sandbox))]
async fn a_call_that_waits_for_others_goes_on_when_they_cost_less() {
    let bench = Bench::start(2.0 * RESERVED - 0.05, "").await;
    let script = format!(
        "({}) & while [ ! -e go ]; do sleep 0.1; done; {}; wait",
        ask("held", "first"),
        ask("plain", "second")
    );
    let session = bench.spawn(&script).await;
    assert!(eventually(WAIT, async || bench.llm.requests().len() == 1).await);
    bench.write("go", "");
    // Whoever is there may raise the budget instead of waiting.
    bench.budget_request(&session).await;
    assert_eq!(bench.llm.requests().len(), 1);
    bench.llm.release();
    assert_eq!(bench.status("second").await, "200");
    bench.admin.turn(&session, 1).await;
    bench.assert_cost(&session, 2.0 * COST).await;
    let answers = bench.answers(&session).await;
    assert_eq!(answers[0]["by"], "withdrawn", "{answers:?}");
    assert_eq!(answers[0]["decision"], "allow", "{answers:?}");
}

#[test(needs(sandbox))]
async fn a_call_that_is_larger_than_the_whole_budget_is_refused_at_once() {
    let bench = Bench::start(RESERVED - 0.05, "").await;
    let session = bench.spawn(&ask("plain", "first")).await;
    let completion = bench.admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    assert_eq!(bench.read("first"), "403");
    let error = bench.read("first.body");
    assert!(
        error.contains("0.2500 USD") && error.contains("0.2000 USD"),
        "{error}"
    );
    assert!(bench.llm.requests().is_empty());
    let log = bench.admin.log(&session).await;
    let is_logged =
        |event: &Value| event["type"] == "log" && event.to_string().contains("0.2500 USD");
    assert!(log.iter().any(is_logged), "{log:?}");
    assert!(bench.answers(&session).await.is_empty());
}

#[test(needs(sandbox))]
async fn calls_of_children_count_in_the_budget_of_the_root() {
    let bench = Bench::start(0.6 + RESERVED - 0.05, "").await;
    bench.write("do.sh", &ask("plain", "status"));
    let child = json!({ "prompt": "go", "agent": "claude", "wait_seconds": 0 });
    let prompt = format!("/usage 10 1 0.6\n/tool session_message {child}\n/sh sleep 1000");
    let demo = json!({ "agent": "demo" });
    let root = bench.admin.spawn_with(&bench.project, &prompt, demo).await;
    let spawned = |event: &Value| event["type"] == "child_spawned";
    let log = bench.admin.follow(&root, spawned).await;
    let child = log.last().unwrap()["child_id"].as_str().unwrap().to_owned();
    let request = bench.budget_request(&child).await;
    assert!(bench.llm.requests().is_empty());
    bench
        .permit(&child, &request, "allow", Some(0.6 + RESERVED))
        .await;
    assert_eq!(bench.status("status").await, "200");
    bench.admin.turn(&child, 1).await;
    bench.assert_cost(&root, 0.6 + COST).await;
}
