//! The levels of autonomy mean the same for every agent: `off` asks for everything, `low` lets it read,
//! `medium` lets it edit in the workspace, `high` asks for nothing.

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::{Llm, Modern, Server, agents};

const LEVELS: [&str; 4] = ["off", "low", "medium", "high"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Read,
    Edit,
    EditOutside,
    Command,
    /// A tool of Oubliette for child sessions.
    Tool,
    /// A tool of the agent's key.
    Operation,
    /// A tool of an MCP server of the project.
    OtherServer,
}

const ACTIONS: [Action; 7] = [
    Action::Read,
    Action::Edit,
    Action::EditOutside,
    Action::Command,
    Action::Tool,
    Action::Operation,
    Action::OtherServer,
];

/// The project's own MCP server, in the workspace.
const MCP_SERVER: &str = include_str!("../../support/mcp-server.sh");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Asked,
    Allowed,
    /// The agent itself does not do it, and does not ask.
    Refused,
}

/// What an agent does at a level, with the exceptions that `docs/agents.md` names.
fn expected(agent: &str, level: &str, action: Action) -> Answer {
    match (agent, level, action) {
        ("copilot" | "droid", _, Action::Read) | ("codex", _, Action::Tool) => Answer::Allowed,
        ("gemini", _, Action::EditOutside) => Answer::Refused,
        (_, "high", _) => Answer::Allowed,
        (_, "low" | "medium", Action::Read | Action::Tool) => Answer::Allowed,
        (_, "medium", Action::Edit) => Answer::Allowed,
        _ => Answer::Asked,
    }
}

/// How often an agent asks for a command that runs twice, if the first answer is `allow_always`.
fn expected_questions(agent: &str) -> usize {
    match agent {
        // It offers a lasting answer for few commands, and `touch` is none of them.
        "claude" => 2,
        _ => 1,
    }
}

/// A session at a level, and the files that its actions make.
struct Session {
    admin: Modern,
    project: String,
    name: String,
    session: Option<String>,
    choices: Value,
    actions: usize,
    /// Questions about an edit that do not show which file gets which text.
    unclear: Vec<String>,
    /// What the agent said at the end of the last action.
    answer: String,
}

impl Session {
    fn new(server: &Server, project: &str, name: &str, choices: Value) -> Self {
        let mut choices = choices;
        choices["new_session"] = json!(true);
        Self {
            admin: server.admin(),
            project: project.to_owned(),
            name: name.to_owned(),
            session: None,
            choices,
            actions: 0,
            unclear: Vec::new(),
            answer: String::new(),
        }
    }

    async fn end(&self) {
        let end = json!({ "session_id": self.session });
        self.admin.call("session_end", end).await.ok();
    }

    async fn send(&mut self, prompt: &str) -> (String, i64) {
        match &self.session {
            Some(session) => {
                let last = self.admin.log(session).await.pop().unwrap();
                self.admin.message(session, prompt).await;
                (session.clone(), last["index"].as_i64().unwrap())
            }
            None => {
                let choices = self.choices.clone();
                let session = self.admin.spawn_with(&self.project, prompt, choices).await;
                self.session = Some(session.clone());
                (session, -1)
            }
        }
    }

    /// Does an action and decides if it is asked for; whether it was asked, and whether it happened.
    async fn act(&mut self, server: &Server, action: Action, decision: &str) -> (bool, bool) {
        self.actions += 1;
        let file = format!("{}-{}", self.name, self.actions);
        let outside = format!("/root/{file}");
        let secret = format!("content {} of {}", self.actions, self.name);
        let workspace = server.workspace(&self.project);
        let prompt = match action {
            Action::Read => {
                std::fs::write(workspace.join(&file), format!("{secret}\n")).unwrap();
                format!("use read: /workspace/{file}")
            }
            Action::Edit => format!("use write: /workspace/{file} {secret}"),
            Action::EditOutside => format!("use write: {outside} {secret}"),
            Action::Command => format!("use bash: touch {file}"),
            Action::Tool => {
                let child = json!({ "agent": "demo", "prompt": "/say the child spoke" });
                format!("use tool session_message {child}")
            }
            Action::Operation => {
                let exec =
                    json!({ "project_id": self.project, "command": format!("touch {file}") });
                format!("use tool oubliette_container_exec {exec}")
            }
            Action::OtherServer => {
                format!("use tool app_echo {}", json!({ "text": secret }))
            }
        };
        let (requests, text) = self.run(&prompt, decision).await;
        if matches!(action, Action::Edit | Action::EditOutside) {
            let is_clear = |request: &&Value| {
                let shown = request["input"].to_string();
                // Copilot asks for the directory first, and then for the edit.
                let is_place = request["title"] == "Access paths outside trusted directories";
                shown.contains(&file) && (is_place || shown.contains(&secret))
            };
            if let Some(unclear) = requests.iter().find(|request| !is_clear(request)) {
                let what = format!("{} {action:?}: {unclear}", self.name);
                self.unclear.push(what);
            }
        }
        let has_happened = match action {
            Action::Read => text.contains(&secret),
            Action::Tool => text.contains("the child spoke"),
            Action::OtherServer => text.contains(&format!("echo: {secret}")),
            Action::Edit | Action::Command | Action::Operation => workspace.join(&file).exists(),
            Action::EditOutside => {
                let look =
                    json!({ "project_id": self.project, "command": format!("test -e {outside}") });
                let look = self.admin.call("container_exec", look).await;
                look.ok()["exit_code"] == 0
            }
        };
        self.answer = text;
        (!requests.is_empty(), has_happened)
    }

    /// Sends a prompt and gives the same decision on everything that is asked; the requests, and the answer.
    async fn run(&mut self, prompt: &str, decision: &str) -> (Vec<Value>, String) {
        let (session, mut since) = self.send(prompt).await;
        let mut requests = Vec::new();
        loop {
            let is_next = |event: &Value| {
                event["type"] == "permission_request" || event["type"] == "completion"
            };
            let log = self.admin.follow_from(&session, since, is_next).await;
            let last = log.last().unwrap();
            since = last["index"].as_i64().unwrap();
            if last["type"] == "completion" {
                return (requests, last["text"].as_str().unwrap().to_owned());
            }
            requests.push(last.clone());
            let answer = json!({
                "session_id": session, "request_id": last["request_id"], "decision": decision,
            });
            self.admin.call("session_permit", answer).await.ok();
        }
    }

    /// Allows a command for always, and runs it again: how often it was asked for, and how often it ran.
    async fn run_twice_with_one_answer(&mut self, server: &Server) -> (usize, usize) {
        let file = format!("{}-always", self.name);
        let prompt = format!("use bash: touch {file}");
        let file = server.workspace(&self.project).join(file);
        let (mut asked, mut ran) = (0, 0);
        for _ in 0..2 {
            let (requests, _) = self.run(&prompt, "allow_always").await;
            asked += requests.len();
            ran += usize::from(std::fs::remove_file(&file).is_ok());
        }
        (asked, ran)
    }
}

/// The cells of an agent that are not as expected.
async fn differences(server: &Server, llm: &Llm, agent: &str) -> Vec<String> {
    let marks = json!({
        "name": "marks", "command": "/bin/sh", "args": ["/workspace/mcp-server.sh", "/tmp"],
    });
    let more = json!({ "agent_scope": "write", "mcp_servers": [marks] });
    let project = agents::project(server, agent, llm, more).await;
    std::fs::write(server.workspace(&project).join("mcp-server.sh"), MCP_SERVER).unwrap();
    let mut differences = Vec::new();
    for level in LEVELS {
        let name = format!("{agent}-{level}");
        let mut session = Session::new(server, &project, &name, json!({ "autonomy": level }));
        for action in ACTIONS {
            // Codex shows its model no tools of servers that its settings do not name.
            if agent == "codex" && action == Action::OtherServer {
                continue;
            }
            let cell = expected(agent, level, action);
            for decision in ["deny", "allow"] {
                // What is allowed need not be tried twice.
                let is_answered = level == "off" || (level == "low" && action == Action::Command);
                if decision == "allow" && (cell != Answer::Asked || !is_answered) {
                    continue;
                }
                let (asked, has_happened) = session.act(server, action, decision).await;
                let is_expected = match cell {
                    Answer::Asked => asked && has_happened == (decision == "allow"),
                    Answer::Allowed => !asked && has_happened,
                    Answer::Refused => !asked && !has_happened,
                };
                if !is_expected {
                    differences.push(format!(
                        "{agent} {level} {action:?} ({decision}): expected {cell:?}, asked: {asked}, \
                         happened: {has_happened}: {}",
                        session.answer
                    ));
                }
            }
        }
        if level == "medium" {
            let found = session.run_twice_with_one_answer(server).await;
            if found != (expected_questions(agent), 2) {
                let what = format!("{agent} allow_always: (questions, commands) is {found:?}");
                differences.push(what);
            }
        }
        differences.append(&mut session.unclear);
        session.end().await;
    }
    differences
}

#[test(needs(claude, codex, droid, gemini, opencode, sandbox), limit = 400)]
async fn a_level_means_the_same_for_every_agent() {
    let (server, llm) = agents::server_with_agents(&agents::KNOWN, "sandbox");
    let agents = agents::KNOWN.iter();
    let found = join_all(agents.map(|agent| differences(&server, &llm, agent))).await;
    let found: Vec<String> = found.into_iter().flatten().collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test(needs(copilot, qwen, sandbox), limit = 400)]
async fn a_level_means_the_same_for_other_agents() {
    let (server, llm) = agents::server_with_agents(&agents::OTHERS, "sandbox");
    let agents = agents::OTHERS.iter();
    let found = join_all(agents.map(|agent| differences(&server, &llm, agent))).await;
    let found: Vec<String> = found.into_iter().flatten().collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test(needs(claude, codex, droid, gemini, opencode, sandbox), limit = 300)]
async fn a_level_holds_after_a_restart_and_a_resume() {
    let (mut server, llm) = agents::server_with_agents(&agents::KNOWN, "sandbox");
    let mut sessions = Vec::new();
    for agent in agents::KNOWN {
        let project = agents::project(&server, agent, &llm, json!({})).await;
        let medium = json!({ "autonomy": "medium" });
        sessions.push(Session::new(&server, &project, agent, medium));
    }
    let act = async |server: &Server, sessions: &mut Vec<Session>, action| {
        join_all(
            sessions
                .iter_mut()
                .map(|session| session.act(server, action, "deny")),
        )
        .await
    };
    let allowed = [(false, true); 5];
    let denied = [(true, false); 5];
    let found = act(&server, &mut sessions, Action::Read).await;
    assert_eq!(found, allowed, "{:?}", agents::KNOWN);
    server.kill();
    server.start_again();
    let found = act(&server, &mut sessions, Action::Command).await;
    assert_eq!(found, denied, "after a restart: {:?}", agents::KNOWN);
    // Their agents end, and the next message starts them again.
    for session in &sessions {
        session.end().await;
    }
    let found = act(&server, &mut sessions, Action::Command).await;
    assert_eq!(found, denied, "after a resume: {:?}", agents::KNOWN);
    let found = act(&server, &mut sessions, Action::Edit).await;
    assert_eq!(found, allowed, "after a resume: {:?}", agents::KNOWN);
}

#[test(needs(copilot, qwen, sandbox), limit = 300)]
async fn other_agents_keep_to_the_tools_of_their_session() {
    keep_to_their_tools(&[
        ("copilot", "bash", "view"),
        ("qwen", "run_shell_command", "read_file"),
    ])
    .await;
}

#[test(needs(claude, droid, gemini, opencode, sandbox), limit = 300)]
async fn agents_keep_to_the_tools_of_their_session() {
    keep_to_their_tools(&[
        ("claude", "Bash", "Read"),
        ("droid", "Execute", "Read"),
        ("gemini", "run_shell_command", "read_file"),
        ("opencode", "bash", "read"),
    ])
    .await;
}

/// Tries agents without their shell, and with nothing but their tool for reading.
async fn keep_to_their_tools(rows: &[(&str, &str, &str)]) {
    let names: Vec<&str> = rows.iter().map(|(agent, ..)| *agent).collect();
    let (server, llm) = agents::server_with_agents(&names, "sandbox");
    let try_agent = async |(agent, shell, reader): (&str, &str, &str)| {
        let project = agents::project(&server, agent, &llm, json!({})).await;
        let name = |kind: &str| format!("{agent}-{kind}");
        let (refused, allowed) = ((false, false), (false, true));

        let without = json!({ "tools_disallowed": [shell] });
        let mut session = Session::new(&server, &project, &name("without"), without);
        for (action, expected) in [
            (Action::Command, refused),
            (Action::Read, allowed),
            (Action::Edit, allowed),
        ] {
            let found = session.act(&server, action, "deny").await;
            assert_eq!(found, expected, "{agent} without {shell}: {action:?}");
        }
        // Nor does an agent that is started again have more.
        session.end().await;
        let found = session.act(&server, Action::Command, "deny").await;
        assert_eq!(found, refused, "{agent} without {shell}, resumed");
        session.end().await;

        let only = json!({ "tools_allowed": [reader] });
        let mut session = Session::new(&server, &project, &name("only"), only);
        for (action, expected) in [
            (Action::Command, refused),
            (Action::Edit, refused),
            (Action::Tool, refused),
            (Action::Read, allowed),
        ] {
            let found = session.act(&server, action, "deny").await;
            assert_eq!(found, expected, "{agent} with only {reader}: {action:?}");
        }
        session.end().await;
    };
    join_all(rows.iter().copied().map(try_agent)).await;
}

#[test(needs(claude, codex, droid, gemini, opencode, sandbox), limit = 300)]
async fn a_tool_of_the_caller_is_not_asked_for_at_low() {
    let (server, llm) = agents::server_with_agents(&agents::KNOWN, "sandbox");
    let admin = server.admin();
    let call = async |agent: &str| {
        let project = agents::project(&server, agent, &llm, json!({})).await;
        let tool =
            json!({ "name": "ping", "description": "x", "inputSchema": { "type": "object" } });
        let context = json!({ "caller_id": "app", "caller_tools": [tool] });
        let low = json!({ "autonomy": "low", "context": context });
        let session = admin
            .spawn_with(&project, "use tool app_ping {}", low)
            .await;
        let is_next = |event: &Value| {
            let kinds = ["caller_tool_request", "permission_request", "completion"];
            kinds.contains(&event["type"].as_str().unwrap())
        };
        let log = admin.follow(&session, is_next).await;
        let request = log.last().unwrap();
        assert_eq!(request["type"], "caller_tool_request", "{agent}: {log:#?}");
        let answer = json!({
            "session_id": session, "request_id": request["request_id"], "result": "pong",
        });
        admin.call("caller_tool_response", answer).await.ok();
        let completion = admin.turn(&session, 1).await;
        let text = completion["text"].as_str().unwrap();
        assert!(text.contains("pong"), "{agent}: {completion}");
    };
    join_all(agents::KNOWN.map(call)).await;
}

#[test(needs(sandbox))]
async fn a_child_has_no_wider_level_than_its_parent() {
    let server = support::server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let ask = json!({ "prompt": "/sh touch made", "autonomy": "high" });
    let prompt = format!("/tool session_message {ask}");
    let low = json!({ "autonomy": "low" });
    let session = admin.spawn_with(&project, &prompt, low).await;
    let is_child = |event: &Value| event["type"] == "child_spawned";
    let log = admin.follow(&session, is_child).await;
    let child = log.last().unwrap()["child_id"].as_str().unwrap().to_owned();
    let waiting = admin.status(&child, "waiting").await;
    let request = &waiting["waiting_for"]["request_id"];
    let deny = json!({ "session_id": child, "request_id": request, "decision": "deny" });
    admin.call("session_permit", deny).await.ok();
    admin.turn(&session, 1).await;
    assert!(!server.workspace(&project).join("made").exists());
    let log = admin.log(&session).await;
    assert!(
        log.iter()
            .all(|event| event["type"] != "permission_request")
    );
}

#[test(needs(sandbox))]
async fn requests_that_do_not_fit_the_level_are_asked_for() {
    let server = support::server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    std::os::unix::fs::symlink("/root", server.workspace(&project).join("link")).unwrap();
    let edit = |path: &str| json!({ "kind": "edit", "rawInput": { "file_path": path } });
    let calls = [
        ("plain", edit("/workspace/new/file"), true),
        ("link", edit("/workspace/link/file"), false),
        ("parent", edit("/workspace/../root/file"), false),
        ("hook", edit("/workspace/.git/hooks/pre-commit"), false),
        ("settings", edit(".claude/settings.json"), false),
        ("nothing", json!({ "kind": "edit" }), false),
        (
            "lie",
            json!({ "kind": "read", "rawInput": { "command": "rm -rf ." } }),
            false,
        ),
    ];
    let mut prompt = String::new();
    for (title, call, _) in &calls {
        let mut call = call.clone();
        call["title"] = json!(title);
        call["toolCallId"] = json!(title);
        let options = json!([{ "optionId": "y", "name": "Yes", "kind": "allow_once" }]);
        let params = json!({ "sessionId": "s", "toolCall": call, "options": options });
        let request = json!({ "jsonrpc": "2.0", "id": title,
            "method": "session/request_permission", "params": params });
        prompt += &format!("/garbage {request}\n");
    }
    // An option that allows more than the call is not chosen for the caller.
    let mut always = edit("/workspace/file");
    always["title"] = json!("always");
    let options = json!([{ "optionId": "y", "name": "Yes", "kind": "allow_always" }]);
    let params = json!({ "sessionId": "s", "toolCall": always, "options": options });
    let request = json!({ "jsonrpc": "2.0", "id": "always",
        "method": "session/request_permission", "params": params });
    prompt += &format!("/garbage {request}\n/sleep 60");
    let medium = json!({ "autonomy": "medium" });
    let session = admin.spawn_with(&project, &prompt, medium).await;
    let log = admin
        .follow(&session, |event| {
            event["type"] == "permission_request" && event["title"] == "always"
        })
        .await;
    for (title, _, is_allowed) in calls {
        let is_asked =
            |event: &Value| event["type"] == "permission_request" && event["title"] == title;
        assert_eq!(log.iter().any(is_asked), !is_allowed, "{title}: {log:#?}");
        let logged = format!("allowed at the level `medium`: `{title}`");
        let is_logged = log.iter().any(|event| event["message"] == logged.as_str());
        assert_eq!(is_logged, is_allowed, "{title}: {log:#?}");
    }
}
