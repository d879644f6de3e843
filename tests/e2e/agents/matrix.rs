//! What each agent can do through Oubliette, found by trying. The table is in `docs/agents.md`.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join_all;
use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::llm::Request;
use support::{Llm, Modern, Server, agents, eventually, run_cli, stderr, stdout};

use super::tables;

/// Far longer than a part of an answer takes, on a busy machine too.
const DELTA_TIMEOUT: Duration = Duration::from_secs(30);
/// Far longer than anything here takes, on a busy machine too.
const WAIT_TIMEOUT: Duration = Duration::from_secs(90);

/// A picture of one pixel.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// Each is declared with a message of its own, and called in the turn of that message.
const LATER_TOOLS: [&str; 5] = ["pong1", "pong2", "pong3", "pong4", "pong5"];

const CAPABILITIES: [&str; 22] = [
    "an answer, as it is written",
    "thoughts",
    "a command, with its output",
    "tokens and cost",
    "Oubliette's tools",
    "a tool of the caller",
    "tools declared with a later message",
    "Oubliette's operations (`agent_scope`)",
    "a file edit, with its content",
    "an attached picture",
    "slash commands",
    "its plan",
    "an interrupt ends its command",
    "a failed turn is a failed turn",
    "the conversation, after the agent was stopped",
    "a model by its name",
    "the model in use is shown",
    "`reasoning`",
    "a question shows the command",
    "a question shows the edit",
    "a denied command does not run",
    "an allowed command runs",
];

#[test(
    needs(claude, codex, droid, gemini, opencode, sandbox),
    limit = 400,
    multi_thread
)]
async fn the_table_of_capabilities_is_what_the_agents_do() {
    let (server, llm) = agents::server_with_agents(&agents::KNOWN, "sandbox");
    let started = agents::KNOWN.map(|agent| AgentTrial::start(&server, &llm, agent));
    let mut trials = join_all(started).await;
    // The model has said the first words to all of them, and does not end its answer yet.
    let early = join_all(trials.iter().map(AgentTrial::has_first_words)).await;
    llm.release();
    let columns = trials.iter_mut().zip(early);
    let columns = columns.map(|(trial, early)| trial.column(early));
    let columns = join_all(columns).await;
    for agent in agents::KNOWN {
        let (model, _) = agents::Setup::for_agent(agent, &llm).other_model;
        let arguments = ["agent", "models", agent, "--json"];
        let listed = run_cli(server.home(), &arguments).await;
        assert!(listed.status.success(), "{agent}: {}", stderr(&listed));
        let models: Value = serde_json::from_str(&stdout(&listed)).unwrap();
        let models = models["models"].as_array().unwrap();
        // These have names of their own for what the provider offers.
        let is_listed =
            matches!(agent, "claude" | "gemini") || models.iter().any(|name| name == model);
        assert!(is_listed && models.len() > 1, "{agent}: {models:?}");
    }
    tables::check("matrix.rs", &agents::KNOWN, &CAPABILITIES, &columns);
}

#[test(needs(copilot, qwen, sandbox), limit = 400, multi_thread)]
async fn the_table_of_other_agents_is_what_they_do() {
    // A model for each, because all of its answers fail at once.
    let servers = agents::OTHERS.map(|agent| agents::server_with_agent(agent, "sandbox"));
    let columns = agents::OTHERS.iter().zip(&servers);
    let columns = columns.map(async |(agent, (server, llm))| {
        let mut trial = AgentTrial::start(server, llm, agent).await;
        trial.has_own_model = true;
        let early = trial.has_first_words().await;
        llm.release();
        trial.column(early).await
    });
    let columns = join_all(columns).await;
    tables::check(
        "matrix.rs, others",
        &agents::OTHERS,
        &CAPABILITIES,
        &columns,
    );
}

/// A session of an agent in which everything is tried.
struct AgentTrial<'a> {
    server: &'a Server,
    llm: &'a Llm,
    agent: &'static str,
    admin: Modern,
    project: String,
    session: String,
    /// Whether no other agent uses the model.
    has_own_model: bool,
    /// The index of the last event that was looked at.
    since: Cell<i64>,
}

impl<'a> AgentTrial<'a> {
    async fn start(server: &'a Server, llm: &'a Llm, agent: &'static str) -> Self {
        let admin = server.admin();
        let scope = json!({ "agent_scope": "read" });
        let project = agents::project(server, agent, llm, scope).await;
        let context = json!({ "context": caller_tools(&["ping"]) });
        let prompt = format!(
            "This is {agent}.\nthink Pondering.\nsay Hello there.\nhold\nuse bash: printf 'made by %d\\n' 42"
        );
        let session = admin.spawn_with(&project, &prompt, context).await;
        let asked = eventually(WAIT_TIMEOUT, async || {
            let marker = format!("This is {agent}.");
            llm.count_steps(&marker) > 0
        });
        assert!(asked.await, "{agent} did not ask its model");
        Self {
            server,
            llm,
            agent,
            admin,
            project,
            session,
            has_own_model: false,
            since: Cell::new(-1),
        }
    }

    async fn has_first_words(&self) -> bool {
        let hello = |event: &Value| event["type"] == "delta" && event.to_string().contains("Hello");
        let early = self.admin.follow(&self.session, hello);
        tokio::time::timeout(scaled(DELTA_TIMEOUT), early)
            .await
            .is_ok()
    }

    /// The events of a turn, to its completion.
    async fn turn(&self) -> Vec<Value> {
        let is_end = |event: &Value| event["type"] == "completion" && event["kind"] != "background";
        let log = self
            .admin
            .follow_from(&self.session, self.since.get(), is_end)
            .await;
        let last = log.last().unwrap()["index"].as_i64();
        self.since.set(last.unwrap());
        log
    }

    /// Sends a message; the events of its turn.
    async fn say(&self, prompt: &str, mut more: Value) -> Vec<Value> {
        more["session_id"] = json!(self.session);
        more["prompt"] = json!(prompt);
        self.admin.call("session_message", more).await.ok();
        self.turn().await
    }

    /// Sends a message; the answer.
    async fn answer(&self, prompt: &str) -> String {
        let log = self.say(prompt, json!({})).await;
        log.last().unwrap()["text"].as_str().unwrap().to_owned()
    }

    /// The last step whose request mentions a prompt; an empty one if there is none, with the events on
    /// stderr.
    fn step(&self, prompt: &str, log: &[Value]) -> Request {
        self.llm.last_step(prompt).unwrap_or_else(|| {
            eprintln!("{} did not ask its model {prompt:?}: {log:#?}", self.agent);
            Request::default()
        })
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.server.workspace(&self.project).join(name)
    }

    async fn end(&self, session: &str) {
        let end = json!({ "session_id": session });
        self.admin.call("session_end", end).await.ok();
    }

    /// The cells of the agent, in the order of `CAPABILITIES`.
    async fn column(&mut self, early: bool) -> Vec<String> {
        let agent = self.agent;
        let log = self.turn().await;
        let of = |kind: &str| log.iter().filter(|event| event["type"] == kind).count();
        let text = log.last().unwrap()["text"].to_string();
        let answered = text.contains("made by 42");
        assert!(
            !text.contains("Warning"),
            "{agent} warns in its answer: {text}"
        );
        // Two steps and a title, and no suggestion of what to ask next.
        let calls = self.llm.count_requests(&format!("This is {agent}."));
        assert!(
            agent != "claude" || calls <= 3,
            "claude asked its model {calls} times"
        );
        let result = log.iter().find(|event| event["type"] == "tool_result");
        let result = result.map(ToString::to_string).unwrap_or_default();
        let seen = self.admin.session(&self.session).await;
        let has_tokens = seen["usage"]["input_tokens"].as_u64().unwrap_or(0) > 0;
        let has_output = result.contains("made by 42");
        let has_commands = of("commands") > 0;
        let mut cells = vec![
            cell(answered, early, "not before its end"),
            cell(of("thought") > 0, true, ""),
            cell(answered, has_output, "its output is not reported"),
            cell(
                has_tokens,
                seen["cost_usd"].is_number(),
                "tokens only; set a price",
            ),
        ];

        let text = self.answer("use tool config_limits {}").await;
        cells.push(cell(text.contains("max_"), true, ""));
        let called = self.call_caller("ping", json!({})).await;
        cells.push(cell(called, true, ""));
        // More than once: an agent can be faster or slower than its list of tools.
        let mut called = true;
        for n in 0..LATER_TOOLS.len() {
            let more = json!({ "context": caller_tools(&LATER_TOOLS[..=n]) });
            called &= self.call_caller(LATER_TOOLS[n], more).await;
        }
        cells.push(cell(called, true, ""));
        let text = self.answer("use tool oubliette_project_list {}").await;
        cells.push(cell(text.contains(&self.project), true, ""));

        let edited = format!("edited by {agent}");
        let prompt = format!("use write: /workspace/edited.txt {edited}");
        let log = self.say(&prompt, json!({})).await;
        let written = std::fs::read_to_string(self.file("edited.txt"));
        let has_content = |event: &Value| {
            let kind = &event["type"];
            (kind == "tool_call" || kind == "tool_result") && event.to_string().contains(&edited)
        };
        cells.push(cell(
            written.is_ok_and(|text| text.contains(&edited)),
            log.iter().any(has_content),
            "without its content",
        ));

        let picture = json!([{ "name": "dot.png", "content_base64": PICTURE }]);
        let prompt = format!("This is a picture for {agent}.");
        let log = self.say(&prompt, json!({ "attachments": picture })).await;
        let step = self.step(&prompt, &log);
        cells.push(cell(step.mentions(&PICTURE[..20]), true, ""));

        cells.push(self.slash_command(has_commands).await);
        let plan = self.plan(&self.session).await;
        self.turn().await;
        let place_of_plan = cells.len();
        cells.push(self.interrupt().await);
        cells.push(cell(self.fails().await, true, ""));

        self.end(&self.session).await;
        let prompt = format!("What did {agent} do before?");
        let log = self.say(&prompt, json!({})).await;
        let step = self.step(&prompt, &log);
        let this = format!("This is {agent}.");
        cells.push(cell(step.mentions(&this), true, ""));
        self.end(&self.session).await;

        let (plan_of_other, chosen) = self.choices().await;
        let plan = match plan {
            Some(has_plan) => cell(has_plan, true, ""),
            None if plan_of_other == Some(true) => {
                "partly: with models that have a tool for it".to_owned()
            }
            None => "no: its models have no tool for it".to_owned(),
        };
        cells.insert(place_of_plan, plan);
        cells.extend(chosen);
        cells.extend(self.question().await);
        cells
    }

    /// Whether a turn fails if its model does.
    async fn fails(&self) -> bool {
        let prompt = match self.has_own_model {
            // Not a part of the message: some agents send a message that failed again, before the next one.
            true => "This fails.",
            false => "fail 400",
        };
        if self.has_own_model {
            self.llm.fail_with(Some(400));
        }
        let log = self.say(prompt, json!({})).await;
        if self.has_own_model {
            self.llm.fail_with(None);
        }
        log.last().unwrap()["stop_reason"] == "error"
    }

    /// Whether a tool of the caller is called and its result reaches the model.
    async fn call_caller(&self, tool: &str, mut more: Value) -> bool {
        more["session_id"] = json!(self.session);
        more["prompt"] = json!(format!("use tool app_{tool} {{}}"));
        self.admin.call("session_message", more).await.ok();
        let is_next = |event: &Value| {
            event["type"] == "caller_tool_request"
                || (event["type"] == "completion" && event["kind"] != "background")
        };
        let log = self
            .admin
            .follow_from(&self.session, self.since.get(), is_next)
            .await;
        let request = log.last().unwrap();
        if request["type"] == "caller_tool_request" {
            let said = format!("{tool} was called");
            let answer = json!({
                "session_id": self.session, "request_id": request["request_id"],
                "result": { "said": said },
            });
            self.admin.call("caller_tool_response", answer).await.ok();
        }
        let log = self.turn().await;
        let text = log.last().unwrap()["text"].as_str().unwrap();
        text.contains(&format!("{tool} was called"))
    }

    async fn slash_command(&self, has_commands: bool) -> String {
        if !has_commands {
            return "no: it reports none".to_owned();
        }
        let command = match self.agent {
            "claude" => "/context",
            "codex" | "qwen" => "/status",
            "copilot" => "/permissions show",
            "gemini" => "/memory show",
            _ => "/init",
        };
        let log = self.say(command, json!({})).await;
        let text = log.last().unwrap()["text"].to_string();
        // One that the agent does not know is a message to its model.
        let is_message = text.contains(&format!("You said: {command}"));
        cell(
            log.last().unwrap()["stop_reason"] == "end_turn" && !is_message,
            true,
            "",
        )
    }

    /// Whether the agent's plan is in the log; none if its model has no tool for it.
    async fn plan(&self, session: &str) -> Option<bool> {
        let step = format!("the plan of {}", self.agent);
        let sent = self
            .admin
            .message(session, &format!("use plan: {step}"))
            .await;
        let since = sent["last_event_index"].as_i64().unwrap();
        let is_end = |event: &Value| event["type"] == "completion";
        let log = self.admin.follow_from(session, since, is_end).await;
        let text = log.last().unwrap()["text"].as_str().unwrap();
        let has_plan = |event: &Value| event["type"] == "plan" && event.to_string().contains(&step);
        let is_missing = text.contains("no tool for plans") || text.contains("not a function");
        (!is_missing).then(|| log.iter().any(has_plan))
    }

    async fn interrupt(&self) -> String {
        let mut names = agents::KNOWN.iter().chain(&agents::OTHERS);
        let place = names.position(|name| *name == self.agent);
        let seconds = 7000 + place.unwrap();
        let prompt = format!("use bash: touch started; sleep {seconds}");
        let message = json!({ "session_id": self.session, "prompt": prompt });
        self.admin.call("session_message", message).await.ok();
        let started = self.file("started");
        let appeared = eventually(WAIT_TIMEOUT, async || started.exists());
        assert!(appeared.await, "{} did not start its command", self.agent);
        let interrupt = json!({ "session_id": self.session });
        self.admin.call("session_interrupt", interrupt).await.ok();
        let log = self.turn().await;
        let gone = eventually(WAIT_TIMEOUT, async || {
            let look = format!("ps ax -o args= | grep '[s]leep {seconds}'");
            let look = json!({ "project_id": self.project, "command": look });
            let look = self.admin.call("container_exec", look).await;
            look.ok()["stdout"] == ""
        });
        let is_cancelled = log.last().unwrap()["stop_reason"] == "cancelled";
        cell(is_cancelled && gone.await, true, "")
    }

    /// A session with a model and a level of reasoning of its own: whether the plan is in its log, and the
    /// cells.
    async fn choices(&self) -> (Option<bool>, [String; 3]) {
        let (model, name) = agents::Setup::for_agent(self.agent, self.llm).other_model;
        let chosen = json!({ "model": model, "reasoning": "high", "new_session": true });
        let prompt = format!("{} was told what to use.", self.agent);
        let session = self.admin.spawn_with(&self.project, &prompt, chosen).await;
        self.admin.turn(&session, 1).await;
        let log = self.admin.log(&session).await;
        let seen = self.admin.session(&session).await;
        let is_chosen = |shown: &Value| {
            let shown = shown.as_str().unwrap_or_default();
            shown == model || shown.contains(name)
        };
        let is_in_usage = |event: &Value| event["type"] == "usage" && is_chosen(&event["model"]);
        let shown = cell(
            is_chosen(&seen["model"]),
            log.iter().any(is_in_usage),
            "not in `usage`",
        );
        let plan = self.plan(&session).await;
        self.end(&session).await;
        let step = self.step(&prompt, &log);
        let in_path = step.path.contains(&format!("/{name}:"));
        let uses_model = step.body["model"] == name || in_path;
        let is_unknown = |event: &Value| event.to_string().contains("no setting for `reasoning`");
        let reasoning = if log.iter().any(is_unknown) {
            "no: it has no such setting".to_owned()
        } else {
            cell(
                step.body.to_string().contains("effort\":\"high\""),
                true,
                "",
            )
        };
        (plan, [cell(uses_model, true, ""), shown, reasoning])
    }

    /// What an agent that asks for everything shows, and whether the answers hold.
    async fn question(&self) -> [String; 4] {
        let mut session: Option<String> = None;
        let mut shows_command = true;
        let mut ran = Vec::new();
        for decision in ["deny", "allow"] {
            let file = format!("{decision}-by-question");
            let prompt = format!("use bash: touch {file}");
            let request = self.asks(&mut session, &prompt, decision).await;
            shows_command &= request.to_string().contains(&file);
            ran.push(self.file(&file).exists());
        }
        let prompt = "use write: /workspace/asked.txt the new text";
        let request = self.asks(&mut session, prompt, "deny").await;
        let shown = request["input"].to_string();
        let shows_edit = shown.contains("asked.txt") && shown.contains("the new text");
        assert!(!self.file("asked.txt").exists(), "{}", self.agent);
        self.end(&session.unwrap()).await;
        [
            cell(true, shows_command, "without the command"),
            cell(true, shows_edit, "without the path or the text"),
            cell(!ran[0], true, ""),
            cell(ran[1], true, ""),
        ]
    }

    /// Has the agent of a session that asks for everything ask once; the request.
    async fn asks(&self, session: &mut Option<String>, prompt: &str, decision: &str) -> Value {
        let since = match session {
            Some(session) => {
                let sent = self.admin.message(session, prompt).await;
                sent["last_event_index"].as_i64().unwrap()
            }
            None => {
                let careful = json!({ "autonomy": "off", "new_session": true });
                *session = Some(self.admin.spawn_with(&self.project, prompt, careful).await);
                -1
            }
        };
        let session = session.as_ref().unwrap();
        let is_next =
            |event: &Value| event["type"] == "permission_request" || event["type"] == "completion";
        let log = self.admin.follow_from(session, since, is_next).await;
        let request = log.last().unwrap().clone();
        assert_eq!(
            request["type"], "permission_request",
            "{}: {log:#?}",
            self.agent
        );
        let answer = json!({
            "session_id": session, "request_id": request["request_id"], "decision": decision,
        });
        self.admin.call("session_permit", answer).await.ok();
        let since = request["index"].as_i64().unwrap();
        let is_end = |event: &Value| event["type"] == "completion";
        self.admin.follow_from(session, since, is_end).await;
        request
    }
}

/// The context of a message of a caller with these tools.
fn caller_tools(names: &[&str]) -> Value {
    let tool = |name: &&str| json!({ "name": name, "description": "x", "inputSchema": { "type": "object" } });
    let tools: Vec<Value> = names.iter().map(tool).collect();
    json!({ "caller_id": "app", "caller_tools": tools })
}

fn cell(works: bool, is_whole: bool, but: &str) -> String {
    match (works, is_whole) {
        (true, true) => "works".to_owned(),
        (true, false) => format!("partly: {but}"),
        (false, _) => "no".to_owned(),
    }
}
