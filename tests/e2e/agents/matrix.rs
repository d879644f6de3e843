//! What each agent can do through Oubliette, found by trying. The table is in `docs/agents.md`; this test
//! fails if it says something else, and writes it if `OUBLIETTE_TEST_WRITE_MATRIX` is set.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Llm, Server, agents};

const WRITE_VARIABLE: &str = "OUBLIETTE_TEST_WRITE_MATRIX";
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/agents.md");
const START: &str = "<!-- written by tests/e2e/agents/matrix.rs -->\n";
const END: &str = "<!-- end of the table -->\n";

/// Far longer than a part of an answer takes, on a busy machine too.
const DELTA_TIMEOUT: Duration = Duration::from_secs(15);

const CAPABILITIES: [&str; 8] = [
    "an answer, as it is written",
    "thoughts",
    "a command, with its output",
    "tokens and cost",
    "Oubliette's tools",
    "a tool of the caller",
    "a question shows the command",
    "a denied command does not run",
];

#[test(needs(claude, codex, droid, gemini, opencode, sandbox), limit = 300)]
async fn the_table_of_capabilities_is_what_the_agents_do() {
    let (server, llm) = agents::server_with_agents(&agents::KNOWN, "sandbox");
    let mut head = "| |".to_owned();
    let mut rule = "| --- |".to_owned();
    let mut columns = Vec::new();
    for agent in agents::KNOWN {
        let version = agents::row(agent).package.unwrap().version;
        head += &format!(" `{agent}` {version} |");
        rule += " --- |";
        columns.push(column(&server, &llm, agent).await);
    }
    let mut table = format!("{head}\n{rule}\n");
    for (n, capability) in CAPABILITIES.iter().enumerate() {
        let cells: Vec<&str> = columns.iter().map(|column| column[n].as_str()).collect();
        table += &format!("| {capability} | {} |\n", cells.join(" | "));
    }

    let document = std::fs::read_to_string(Path::new(DOCUMENT)).unwrap();
    let (before, rest) = document.split_once(START).unwrap();
    let (written, after) = rest.split_once(END).unwrap();
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        std::fs::write(DOCUMENT, format!("{before}{START}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        written, table,
        "docs/agents.md is not what the agents do; set {WRITE_VARIABLE}=1 to write it"
    );
}

/// The cells of one agent, in the order of `CAPABILITIES`.
async fn column(server: &Server, llm: &Llm, agent: &str) -> Vec<String> {
    let admin = server.admin();
    let project = agents::project(server, agent, llm, json!({})).await;
    let tool = json!({ "name": "ping", "description": "x", "inputSchema": { "type": "object" } });
    let context = json!({ "context": { "caller_id": "app", "caller_tools": [tool] } });
    let prompt = format!(
        "This is {agent}.\nthink Pondering.\nsay Hello there.\nhold\nuse bash: printf 'made by %d\\n' 42"
    );
    let session = admin.spawn_with(&project, &prompt, context).await;
    llm.wait_for(&format!("This is {agent}."));
    // The model has said this, and does not end its answer yet.
    let hello = |event: &Value| event["type"] == "delta" && event.to_string().contains("Hello");
    let early = tokio::time::timeout(DELTA_TIMEOUT, admin.follow(&session, hello)).await;
    llm.release();
    let completion = admin.turn(&session, 1).await;
    let log = admin.log(&session).await;
    let of = |kind: &str| log.iter().filter(|event| event["type"] == kind).count();
    let answered = completion["text"].as_str().unwrap().contains("made by 42");
    let result = log.iter().find(|event| event["type"] == "tool_result");
    let result = result.map(ToString::to_string).unwrap_or_default();
    let seen = admin.session(&session).await;
    let has_tokens = seen["usage"]["input_tokens"].as_u64().unwrap_or(0) > 0;
    let mut cells = vec![
        cell(answered, early.is_ok(), "not before its end"),
        cell(of("thought") > 0, true, ""),
        cell(
            answered,
            result.contains("made by 42"),
            "its output is not reported",
        ),
        cell(
            has_tokens,
            seen["cost_usd"].is_number(),
            "tokens only; set a price",
        ),
    ];

    admin.message(&session, "use tool config_limits {}").await;
    let text = admin.turn(&session, 2).await["text"].to_string();
    cells.push(cell(text.contains("max_"), true, ""));

    admin.message(&session, "use tool app_ping {}").await;
    let asked = |event: &Value| {
        event["type"] == "caller_tool_request"
            || (event["type"] == "completion" && event["text"].to_string().contains("no tool"))
    };
    let log = admin.follow(&session, asked).await;
    let request = log.last().unwrap();
    if request["type"] == "caller_tool_request" {
        let answer = json!({
            "session_id": session, "request_id": request["request_id"], "result": { "said": "pong" },
        });
        admin.call("caller_tool_response", answer).await.ok();
    }
    let text = admin.turn(&session, 3).await["text"].to_string();
    cells.push(cell(text.contains("pong"), true, ""));
    let ended = json!({ "session_id": session });
    admin.call("session_end", ended).await.ok();
    cells.extend(question(server, agent, &project).await);
    cells
}

/// What an agent that asks for everything shows, and whether a denial holds.
async fn question(server: &Server, agent: &str, project: &str) -> [String; 2] {
    let admin = server.admin();
    let file = format!("denied-{agent}");
    let prompt = format!("use bash: touch {file}");
    let careful = json!({ "autonomy": "off" });
    let session = admin.spawn_with(project, &prompt, careful).await;
    let asked =
        |event: &Value| event["type"] == "permission_request" || event["type"] == "completion";
    let log = admin.follow(&session, asked).await;
    let request = log.last().unwrap();
    let was_asked = request["type"] == "permission_request";
    if was_asked {
        let answer = json!({
            "session_id": session, "request_id": request["request_id"], "decision": "deny",
        });
        admin.call("session_permit", answer).await.ok();
        admin.turn(&session, 1).await;
    }
    let ran = server.workspace(project).join(&file).exists();
    let ended = json!({ "session_id": session });
    admin.call("session_end", ended).await.ok();
    if !was_asked {
        return ["no".to_owned(), cell(!ran, true, "")];
    }
    let shows_command = request.to_string().contains(&file);
    [
        cell(true, shows_command, "without the command"),
        cell(!ran, true, ""),
    ]
}

fn cell(works: bool, is_whole: bool, but: &str) -> String {
    match (works, is_whole) {
        (true, true) => "works".to_owned(),
        (true, false) => format!("partly: {but}"),
        (false, _) => "no".to_owned(),
    }
}
