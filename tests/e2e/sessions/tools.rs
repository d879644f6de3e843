//! Sessions that may use only some tools.

use serde_json::{Value, json};
use support::{Modern, Server, agents, server_with};

async fn sandboxed() -> (Server, Modern, String) {
    let server = server_with("sandbox", "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    (server, admin, project)
}

fn texts(log: &[Value], kind: &str, field: &str) -> Vec<String> {
    let events = log.iter().filter(|event| event["type"] == kind);
    let field = events.map(|event| event[field].as_str().unwrap_or_default().to_owned());
    field.collect()
}

#[test(needs(sandbox))]
async fn the_demo_agent_keeps_to_the_tools_of_its_session() {
    let (mut server, admin, project) = sandboxed().await;
    let made = |name: &str| server.workspace(&project).join(name);
    let (one, two, three) = (made("one"), made("two"), made("three"));
    let prompt = "/sh touch one\n/tool limits {}\n/tool config_limits {}";
    let only = json!({ "tools_allowed": ["sh"] });
    let session = admin.spawn_with(&project, prompt, only).await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "not permitted: config_limits");
    assert!(one.exists());
    let log = admin.log(&session).await;
    let results = texts(&log, "tool_result", "status");
    assert_eq!(results, ["completed", "failed", "failed"], "{log:#?}");
    let denied = texts(&log, "log", "message");
    let denied = denied
        .iter()
        .filter(|text| text.contains("`config_limits`"));
    assert_eq!(denied.count(), 2, "also by the end of its name: {log:#?}");
    assert!(texts(&log, "permission_request", "title").is_empty());
    let seen = admin.session(&session).await;
    assert_eq!(seen["tools_allowed"], json!(["sh"]));

    // Tools are those of a session: others begin another one, and none stay with the newest.
    let without = json!({ "tools_disallowed": ["s*", "x"], "tools_allowed": ["sh", "config_*"] });
    let prompt = "/sh touch two\n/tool config_limits {}";
    let other = admin.spawn_with(&project, prompt, without).await;
    assert_ne!(other, session);
    let completion = admin.turn(&other, 1).await;
    let text = completion["text"].as_str().unwrap();
    assert!(text.contains("max_cost_usd"), "{completion}");
    assert!(!two.exists());
    assert_eq!(admin.spawn(&project, "/sh touch three").await, other);
    let completion = admin.turn(&other, 2).await;
    assert_eq!(completion["text"], "not permitted: touch three");

    // Nor is it forgotten by a server that is started again, or by an agent that is.
    server.kill();
    server.start_again();
    admin.message(&other, "/sh touch three").await;
    assert_eq!(
        admin.turn(&other, 3).await["text"],
        "not permitted: touch three"
    );
    let ended = json!({ "session_id": other });
    admin.call("session_end", ended).await.ok();
    admin.message(&other, "/sh touch three").await;
    assert_eq!(
        admin.turn(&other, 4).await["text"],
        "not permitted: touch three"
    );
    assert!(!three.exists());
}

#[test(needs(sandbox))]
async fn an_allowed_tool_still_needs_permission() {
    let (_server, admin, project) = sandboxed().await;
    let careful = json!({ "tools_allowed": ["sh"], "autonomy": "low" });
    let prompt = "/sh echo one\n/tool config_limits {}\n/sh echo two";
    let session = admin.spawn_with(&project, prompt, careful).await;
    for title in ["echo one", "echo two"] {
        let is_asked =
            |event: &Value| event["type"] == "permission_request" && event["title"] == title;
        let log = admin.follow(&session, is_asked).await;
        let request = &log.last().unwrap()["request_id"];
        let always = json!({
            "session_id": session, "request_id": request, "decision": "allow_always"
        });
        admin.call("session_permit", always).await.ok();
    }
    assert_eq!(admin.turn(&session, 1).await["text"], "two");
    let log = admin.log(&session).await;
    assert_eq!(texts(&log, "permission_request", "title").len(), 2);
}

/// A fork that an agent makes of its parent is a session below its own.
#[test(needs(sandbox))]
async fn a_fork_has_no_more_tools_than_the_agent_that_makes_it() {
    let (_server, admin, project) = sandboxed().await;
    let with_key = json!({ "agent_scope": format!("project:{project}") });
    let parent = admin.spawn_with(&project, "/say one", with_key).await;
    admin.turn(&parent, 1).await;
    let fork = json!({ "session_id": parent, "turn": 1, "prompt": "/sh touch /workspace/one" });
    let child = json!({
        "prompt": format!("/tool oubliette_session_fork {fork}"),
        "tools_allowed": ["oubliette_*"],
    });
    admin
        .message(&parent, &format!("/tool session_message {child}"))
        .await;
    let completion = admin.turn(&parent, 2).await;
    let children = &admin.session(&parent).await["children"];
    let child = children[0]["session_id"].as_str().unwrap();
    let forks = &admin.session(child).await["children"];
    let fork = forks[0]["session_id"].as_str();
    let fork = fork.unwrap_or_else(|| panic!("{completion}"));
    let completion = admin.turn(fork, 1).await;
    // The demo agent also answers the transcript.
    let text = completion["text"].as_str().unwrap();
    assert!(
        text.ends_with("not permitted: touch /workspace/one"),
        "{text}"
    );
    let seen = admin.session(fork).await;
    assert_eq!(seen["tools_allowed"], json!(["oubliette_*"]), "{seen}");
}

#[test(needs(sandbox))]
async fn child_sessions_have_no_more_tools_than_their_parent() {
    let (server, admin, project) = sandboxed().await;
    let below = |prompt: &str, more: Value| {
        let mut ask = more;
        ask["prompt"] = json!(prompt);
        format!("/tool session_message {ask}")
    };
    let tools = json!({ "tools_allowed": ["session_*", "config_limits"] });
    let prompt = below("/sh touch one\n/say done", json!({}));
    let session = admin.spawn_with(&project, &prompt, tools).await;
    let completion = admin.turn(&session, 1).await;
    let text = completion["text"].as_str().unwrap();
    assert!(text.contains("not permitted: touch one"), "{completion}");
    assert!(!server.workspace(&project).join("one").exists());
    let children = &admin.session(&session).await["children"];
    let child = children[0]["session_id"].as_str().unwrap();
    assert_eq!(
        admin.session(child).await["tools_allowed"],
        json!(["session_*", "config_limits"])
    );
    for (turn, more, expected) in [
        (2, json!({ "tools_allowed": ["sh"] }), "names no tool"),
        (3, json!({ "agent": "opencode" }), "has other names"),
    ] {
        admin.message(&session, &below("/say x", more)).await;
        let completion = admin.turn(&session, turn).await;
        let text = completion["text"].as_str().unwrap();
        assert!(text.contains(expected), "{completion}");
    }
}

#[test]
async fn tool_limits_that_the_agent_cannot_keep_are_refused() {
    let server = Server::start();
    let admin = server.admin();
    let project = admin.project("one").await;
    for (parameters, expected) in [
        (
            json!({ "agent": "codex", "tools_disallowed": ["shell"] }),
            "cannot be limited to some of its tools: its models call tools from programs",
        ),
        (
            json!({ "agent": "gemini", "tools_allowed": ["read_*"] }),
            "and none for `read_*`; name each tool",
        ),
        (
            json!({ "agent": "opencode", "tools_disallowed": ["write"] }),
            "`edit` and `write` together",
        ),
        (
            json!({ "tools_allowed": ["a b"] }),
            "not the name of a tool",
        ),
        (json!({ "tools_allowed": [""] }), "not the name of a tool"),
        (
            json!({ "tools_disallowed": vec!["x"; 201] }),
            "maximum is 200",
        ),
    ] {
        let mut parameters = parameters;
        parameters["project_id"] = json!(project);
        parameters["prompt"] = json!("x");
        let refused = admin.call("session_spawn", parameters).await;
        assert!(
            refused.sentence().contains(expected),
            "{}",
            refused.sentence()
        );
    }
    let options = admin.call("project_options", json!({})).await;
    let agents = options.ok()["agents"].as_array().unwrap();
    let takes = agents.iter().filter(|agent| agent["takes_tools"] == true);
    let names: Vec<_> = takes.map(|agent| agent["name"].as_str().unwrap()).collect();
    let expected = [
        "claude", "copilot", "demo", "droid", "gemini", "opencode", "qwen",
    ];
    assert_eq!(names, expected);
    let session = admin.spawn(&project, "/say one").await;
    let message = json!({ "session_id": session, "prompt": "x", "tools_allowed": ["sh"] });
    let refused = admin.call("session_message", message).await;
    assert!(refused.sentence().contains("are set for a whole session"));
}

#[test(needs(opencode, sandbox))]
async fn opencode_keeps_to_the_tools_of_its_session() {
    let (server, llm) = agents::server_with_agent("opencode", "sandbox");
    let admin = server.admin();
    let project = agents::project(&server, "opencode", &llm, json!({})).await;
    // The agent's settings in a repository must not give it more tools.
    let config = r#"{ "permission": { "bash": "allow" },
        "agent": { "build": { "permission": { "bash": "allow", "*": "allow" } } } }"#;
    std::fs::write(server.workspace(&project).join("opencode.json"), config).unwrap();
    for (tools, absent, present) in [
        (json!({ "tools_disallowed": ["bash"] }), "bash", "read"),
        (
            json!({ "tools_allowed": ["read", "oubliette_*"] }),
            "bash",
            "oubliette_session_message",
        ),
    ] {
        let before = llm.steps().len();
        let prompt = "use bash: touch made.txt";
        let session = admin.spawn_with(&project, prompt, tools.clone()).await;
        let completion = admin.turn(&session, 1).await;
        let text = completion["text"].as_str().unwrap();
        assert!(text.contains("There is no shell"), "{completion}");
        let steps = llm.steps();
        let given = steps[before].body["tools"].as_array().unwrap().iter();
        let given = given.map(|tool| tool["function"]["name"].as_str().unwrap());
        let given: Vec<&str> = given.collect();
        assert!(!given.contains(&absent), "{tools}: {given:?}");
        assert!(given.contains(&present), "{tools}: {given:?}");
        let is_meant = |name: &&str| *name == "read" || name.starts_with("oubliette_");
        let only = tools.get("tools_allowed").is_some();
        assert!(!only || given.iter().all(is_meant), "{given:?}");
    }
    assert!(!server.workspace(&project).join("made.txt").exists());
}
