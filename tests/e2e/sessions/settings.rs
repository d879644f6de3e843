//! What an agent is started with: its model, its home and its settings.

use std::time::Duration;

use serde_json::json;
use support::{Modern, Server, ServerOptions, agents, eventually, run_cli, stderr};

const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// An agent that offers the models `a`, `b` and `c`, and answers each prompt with the one it uses.
const CHOOSER: &str = r#"
model=its-own
reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/^{"jsonrpc":"2.0","id":\([0-9]*\).*/\1/')
    case $line in
    *'"method":"initialize"'*) reply '{"protocolVersion":1}' ;;
    *'"method":"session/new"'*)
        reply '{"sessionId":"s","configOptions":[{"id":"model","category":"model","currentValue":"its-own","options":[
            {"value":"a"},{"value":"b"},{"value":"c"}]}]}' | tr -d '\n'; echo ;;
    *'"method":"session/set_mode"'*) reply '{}' ;;
    *'"method":"session/set_config_option"'*)
        model=$(printf '%s' "$line" | sed 's/.*"value":"\([^"]*\)".*/\1/')
        reply '{"configOptions":[]}' ;;
    *'"method":"session/prompt"'*)
        printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%s"}}}}\n' "$model"
        reply '{"stopReason":"end_turn"}' ;;
    esac
done
"#;

/// A server with two agents, `one` and `two`, that can choose their model.
fn choosers() -> Server {
    let mut config = "runtime = \"sandbox\"\n".to_owned();
    for name in ["one", "two"] {
        let args = json!(["-c", CHOOSER]);
        config += &format!("[agents.{name}]\ncommand = \"/bin/sh\"\nargs = {args}\n");
    }
    Server::start_with(ServerOptions {
        config,
        ..ServerOptions::default()
    })
}

async fn model_of(admin: &Modern, project: &str, mut choices: serde_json::Value) -> String {
    choices["new_session"] = json!(true);
    let session = admin.spawn_with(project, "which model?", choices).await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    // What the agent really uses is shown.
    let seen = admin.session(&session).await;
    assert_eq!(seen["model"], completion["text"], "{seen}");
    completion["text"].as_str().unwrap().to_owned()
}

#[test(needs(sandbox))]
async fn the_model_of_a_project_is_for_its_own_agent_and_models_are_for_others() {
    let server = choosers();
    let admin = server.admin();
    let made = json!({ "name": "p", "agent": "one", "model": "a" });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let two = json!({ "agent": "two" });
    assert_eq!(model_of(&admin, &project, json!({})).await, "a");
    // It used to be given `a`, which another agent may not have.
    assert_eq!(model_of(&admin, &project, two.clone()).await, "its-own");

    let models = json!({ "project_id": project, "models": { "two": "b" } });
    let updated = admin.call("project_update", models).await;
    assert_eq!(updated.ok()["models"], json!({ "two": "b" }));
    assert_eq!(model_of(&admin, &project, two).await, "b");
    assert_eq!(model_of(&admin, &project, json!({})).await, "a");
    let of_spawn = json!({ "agent": "two", "models": { "two": "c" } });
    assert_eq!(model_of(&admin, &project, of_spawn).await, "c");
    let own = json!({ "agent": "two", "model": "a", "models": { "two": "c" } });
    assert_eq!(model_of(&admin, &project, own).await, "a");

    // What an agent offered when it was started is listed.
    let options = admin.call("project_options", json!({})).await;
    assert_eq!(options.ok()["models"], json!(["a", "b", "c"]));
    let agents = options.ok()["agents"].as_array().unwrap().clone();
    let one = agents.iter().find(|agent| agent["name"] == "one").unwrap();
    assert_eq!(one["models"], json!(["a", "b", "c"]));
    let listed = run_cli(server.home(), &["agent", "models", "one", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["models"], json!(["a", "b", "c"]));
    let listed = run_cli(server.home(), &["agent", "models", "demo"]).await;
    assert_eq!(listed.status.code(), Some(1));
    let error = stderr(&listed);
    assert!(error.contains("`demo` are not known yet"), "{error}");

    let unknown = json!({ "project_id": project, "models": { "tow": "b" } });
    let refused = admin.call("project_update", unknown).await;
    let refused = refused.sentence();
    assert!(refused.contains("unknown name `tow`"), "{refused}");
}

#[test(needs(sandbox))]
async fn children_have_the_models_of_the_session_that_started_their_tree() {
    let server = choosers();
    let admin = server.admin();
    let made = json!({ "name": "p", "agent": "demo", "models": { "one": "a" } });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let ask = |agent: &str| {
        let message = json!({ "agent": agent, "prompt": "which model?", "wait_seconds": 60 });
        format!("/tool session_message {message}\n")
    };
    let prompt = ask("one") + &ask("two") + "/say done";
    let session = admin
        .spawn_with(&project, &prompt, json!({ "models": { "two": "c" } }))
        .await;
    admin.turn(&session, 1).await;
    let children = admin.session(&session).await["children"].clone();
    for child in children.as_array().unwrap() {
        let id = child["session_id"].as_str().unwrap();
        let expected = if child["agent"] == "one" { "a" } else { "c" };
        assert_eq!(admin.turn(id, 1).await["text"], expected, "{child}");
    }
    assert_eq!(children.as_array().unwrap().len(), 2, "{children}");
}

/// What a command that the agent of a session ran has printed.
async fn output_of(admin: &Modern, session: &str, turn: usize) -> String {
    let completion = admin.turn(session, turn).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    let log = admin.log(session).await;
    let mut results = log.iter().filter(|e| e["type"] == "tool_result");
    let output = results.next_back().unwrap()["output"].as_str().unwrap();
    output.trim().to_owned()
}

#[test(needs(sandbox))]
async fn each_session_has_a_home_of_its_own_that_is_removed_with_it() {
    let server = choosers();
    let admin = server.admin();
    let project = admin.project("p").await;
    let demo = json!({ "agent": "demo", "new_session": true });
    let shared =
        "echo shared > /root/tool; mkdir -p /root/.codex; echo secret > /root/.codex/auth.json";
    admin.exec(&project, shared).await;
    let prompt = "/sh cat ~/tool; cat ~/.codex/auth.json 2>&1; touch ~/mark; echo $HOME";
    let mut homes = Vec::new();
    for _ in 0..2 {
        let session = admin.spawn_with(&project, prompt, demo.clone()).await;
        let output = output_of(&admin, &session, 1).await;
        assert!(output.starts_with("shared\n"), "{output}");
        assert!(!output.contains("secret"), "{output}");
        let home = format!("/root/.sessions/{session}");
        assert!(output.ends_with(&home), "{output}");
        homes.push((
            session,
            server
                .home()
                .join(format!("projects/{project}/home/.sessions")),
        ));
    }
    for (session, directory) in &homes {
        let home = directory.join(session);
        assert!(home.join("mark").exists() && home.join(".oubliette-demo").exists());
    }
    // A deleted session takes its home with it, and only its own.
    let (first, directory) = &homes[0];
    let end = json!({ "session_id": first });
    admin.call("session_end", end).await.ok();
    let cleanup = json!({ "project_id": project, "max_age_hours": 0 });
    let cleaned = admin.call("session_cleanup", cleanup).await;
    assert_eq!(cleaned.ok()["deleted"], json!([first]));
    let removed = eventually(WAIT_TIMEOUT, async || !directory.join(first).exists());
    assert!(removed.await, "the home is still there");
    assert!(directory.join(&homes[1].0).join("mark").exists());
}

#[test(needs(sandbox))]
async fn a_session_of_an_older_version_is_resumed_in_the_home_of_its_project() {
    let server = choosers();
    let admin = server.admin();
    let project = admin.project("p").await;
    let demo = json!({ "agent": "demo" });
    let session = admin.spawn_with(&project, "/say remember me", demo).await;
    admin.turn(&session, 1).await;
    let end = json!({ "session_id": session });
    admin.call("session_end", end).await.ok();
    // Where its agent kept its conversation before.
    let home = server.home().join(format!("projects/{project}/home"));
    let own = home.join(".sessions").join(&session);
    std::fs::rename(own.join(".oubliette-demo"), home.join(".oubliette-demo")).unwrap();
    std::fs::remove_dir_all(own).unwrap();
    admin.message(&session, "/sh echo $HOME").await;
    assert_eq!(output_of(&admin, &session, 2).await, "/root");
    let log = admin.log(&session).await;
    let resumed = log.iter().find(|e| !e["resumed_by"].is_null()).unwrap();
    assert_ne!(resumed["resumed_by"], "transcript", "{resumed}");
}

#[test(needs(sandbox))]
async fn files_of_the_configuration_are_not_shadowed_by_older_ones() {
    let args = json!(["-c", "exec /usr/local/bin/oubliette-client demo-agent"]);
    let server = Server::start_with(ServerOptions {
        config: format!(
            "runtime = \"sandbox\"\n[agents.odd]\ncommand = \"/bin/sh\"\nargs = {args}\n\
             [agents.odd.files]\n\".odd/settings\" = \"new\"\n"
        ),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("p").await;
    admin
        .exec(
            &project,
            "mkdir /root/.odd; echo old > /root/.odd/settings; echo x > /root/.odd/own",
        )
        .await;
    let odd = json!({ "agent": "odd" });
    let read = "/sh cat ~/.odd/settings; echo changed > ~/.odd/settings";
    let session = admin.spawn_with(&project, read, odd).await;
    assert_eq!(output_of(&admin, &session, 1).await, "new");
    let end = json!({ "session_id": session });
    admin.call("session_end", end).await.ok();
    admin.message(&session, read).await;
    assert_eq!(output_of(&admin, &session, 2).await, "new");
}

#[test(each(claude, copilot, droid, gemini, opencode, qwen), needs(sandbox))]
async fn an_agent_is_told_what_its_tools_are_for(agent: &str) {
    let (server, llm) = agents::server_with_agent(agent, "sandbox");
    let admin = server.admin();
    let project = agents::project(&server, agent, &llm, json!({})).await;
    let session = admin.spawn(&project, "say Hello.").await;
    admin.turn(&session, 1).await;
    let step = llm.steps().pop().unwrap();
    assert!(step.mentions("Tools of Oubliette, which runs this agent"));
}

#[test(needs(sandbox))]
async fn an_agent_that_lists_its_tools_only_once_is_restarted_for_new_ones() {
    // Codex's row of the catalogue, with an agent that needs no model.
    let args = json!(["-c", "exec /usr/local/bin/oubliette-client demo-agent"]);
    let server = Server::start_with(ServerOptions {
        config: format!(
            "runtime = \"sandbox\"\n[agents.codex]\ncommand = \"/bin/sh\"\nargs = {args}\n"
        ),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("p").await;
    let codex = json!({ "agent": "codex" });
    let session = admin.spawn_with(&project, "/say first", codex).await;
    admin.turn(&session, 1).await;
    let starts = async || {
        let log = admin.log(&session).await;
        log.iter().filter(|e| !e["resumed_by"].is_null()).count()
    };
    for (turn, tools, expected) in [
        (2, json!([{ "name": "one" }]), 1),
        (3, json!([{ "name": "one" }]), 1),
        (4, json!([{ "name": "one" }, { "name": "two" }]), 2),
    ] {
        let context = json!({ "caller_id": "app", "caller_tools": tools });
        let message = json!({ "session_id": session, "prompt": "/say x", "context": context });
        admin.call("session_message", message).await.ok();
        admin.turn(&session, turn).await;
        assert_eq!(starts().await, expected, "{tools}");
    }
    let log = admin.log(&session).await;
    let failed = |e: &&serde_json::Value| e["resumed_by"] == "transcript";
    assert_eq!(log.iter().find(failed), None);
}

#[test(needs(sandbox))]
async fn a_model_that_the_agent_does_not_offer_can_be_pinned() {
    // Claude's row of the catalogue: its model is in a variable.
    let script = CHOOSER.replace("model=its-own", "model=$ANTHROPIC_MODEL");
    let args = json!(["-c", script]);
    let server = Server::start_with(ServerOptions {
        config: format!(
            "runtime = \"sandbox\"\n[agents.claude]\ncommand = \"/bin/sh\"\nargs = {args}\n"
        ),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("p").await;
    let pinned = json!({ "agent": "claude", "model": "claude-next-5" });
    assert_eq!(model_of(&admin, &project, pinned).await, "claude-next-5");
    let offered = json!({ "agent": "claude", "model": "b" });
    assert_eq!(model_of(&admin, &project, offered).await, "b");
}

#[test(needs(sandbox))]
async fn an_agent_that_is_not_signed_in_names_the_credential_that_would_do() {
    let script = CHOOSER.replace(
        "reply '{\"stopReason\":\"end_turn\"}'",
        r#"printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"Authentication required"}}\n' "$id""#,
    );
    let args = json!(["-c", script]);
    let server = Server::start_with(ServerOptions {
        config: format!(
            "runtime = \"sandbox\"\n[agents.claude]\ncommand = \"/bin/sh\"\nargs = {args}\n"
        ),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("p").await;
    let claude = json!({ "agent": "claude" });
    let session = admin.spawn_with(&project, "hi", claude).await;
    let completion = admin.turn(&session, 1).await;
    let error = completion["error"].as_str().unwrap();
    assert!(error.contains("Authentication required"), "{error}");
    assert!(
        error.contains("credential of kind `anthropic` or `claude_oauth`"),
        "{error}"
    );
}

#[test(needs(codex, sandbox))]
async fn codex_is_told_of_our_tools_and_leaves_its_key_in_no_file() {
    let (server, llm) = agents::server_with_agent("codex", "sandbox");
    let admin = server.admin();
    let project = agents::project(&server, "codex", &llm, json!({})).await;
    let session = admin.spawn(&project, "say Hello.").await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    let told = |text: &str| llm.requests().iter().any(|request| request.mentions(text));
    assert!(told("Tools of Oubliette, which runs this agent"));
    assert!(told("session_message"));
    let files = server.home().join("projects").join(&project);
    let grep = std::process::Command::new("grep")
        .args(["-rlF", agents::KEY])
        .arg(files)
        .output()
        .unwrap();
    let found = String::from_utf8_lossy(&grep.stdout).into_owned();
    assert_eq!(found, "");
}
