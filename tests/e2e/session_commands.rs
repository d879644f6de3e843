//! `oubliette run` and `oubliette session …` as a person uses them.

use std::path::Path;
use std::process::Output;

use serde_json::json;
use support::{Pty, Server, ServerOptions, Traces, cli};

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn run(home: &Path, arguments: &[&str]) -> Output {
    let (home, arguments) = (home.to_owned(), arguments.iter().map(|a| (*a).to_owned()));
    let arguments: Vec<String> = arguments.collect();
    tokio::task::spawn_blocking(move || cli(&home, arguments))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_prompt_on_a_new_machine_is_a_whole_session_and_leaves_nothing_running() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let first = run(home, &["run", "/say Hello.", "\n/sh echo hi; pwd"]).await;
    assert_eq!(first.status.code(), Some(0), "{}", err(&first));
    assert_eq!(out(&first), "Hello.\n\nhi\n/workspace\n");
    assert!(err(&first).contains("✓ echo hi"), "{}", err(&first));
    let second = run(home, &["run", "--continue", "how many turns?"]).await;
    assert!(
        out(&second).contains("turn 2"),
        "{}{}",
        out(&second),
        err(&second)
    );
    let failed = run(home, &["run", "/fail out of luck"]).await;
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(err(&failed).lines().last(), Some("error: out of luck"));
    let unknown = run(home, &["run", "--agent", "dmeo", "hi"]).await;
    assert!(
        err(&unknown).contains("did you mean `demo`?"),
        "{}",
        err(&unknown)
    );
    // A server of its own ends with its command, and so do its containers.
    let traces = Traces::of(home, 0);
    assert!(traces.processes.is_empty(), "{traces}");
    assert!(!home.join("run/server.json").exists());
    let down = run(home, &["down", "--remove"]).await;
    assert_eq!(down.status.code(), Some(0), "{}", err(&down));
}

#[tokio::test]
async fn sessions_are_driven_from_the_command_line() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let home = server.home();
    let ran = run(home, &["run", "--project", "app", "/say one"]).await;
    assert_eq!(out(&ran), "one\n", "{}", err(&ran));
    let spawned = run(home, &["session", "spawn", "app", "/say two", "--json"]).await;
    let spawned: serde_json::Value = serde_json::from_slice(&spawned.stdout).unwrap();
    let session = spawned["session_id"].as_str().unwrap().to_owned();
    assert_eq!(server.admin().turn(&session, 2).await["text"], "two");
    let sent = run(home, &["session", "message", &session, "/say three"]).await;
    assert_eq!(sent.status.code(), Some(0), "{}", err(&sent));
    assert_eq!(server.admin().turn(&session, 3).await["text"], "three");
    let listed = run(home, &["session", "list"]).await;
    assert!(out(&listed).contains(&session), "{}", out(&listed));
    let shown = run(home, &["session", "get", &session]).await;
    assert!(out(&shown).contains("idle"), "{}", out(&shown));
    let events = run(home, &["session", "events", &session, "--json"]).await;
    let events: serde_json::Value = serde_json::from_slice(&events.stdout).unwrap();
    assert_eq!(events["completed"], json!(true));
    let ended = run(home, &["session", "end", &session]).await;
    assert!(out(&ended).contains("completed"), "{}", out(&ended));
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_at_a_terminal_sees_text_as_it_comes_answers_and_interrupts() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let home = server.home().to_owned();
    tokio::task::spawn_blocking(move || {
        let prompt = "/say I begin.\n/ask May I?\n/say I go on.\n/sh sleep 1000";
        let mut pty = Pty::run(&home, (30, 100), &["run", "--autonomy", "off", prompt]);
        pty.wait_for("I begin.");
        pty.wait_for("Allow it?");
        pty.press("y\n");
        pty.wait_for("I go on.");
        pty.wait_for("Allow it?");
        pty.press("y\n");
        pty.wait_for("sleep 1000");
        pty.press("\x03");
        pty.wait_for("interrupting");
        assert_eq!(pty.exit_code(), Some(130));
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_can_be_attached_to_and_talked_to() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say The first words.").await;
    admin.turn(&session, 1).await;
    let home = server.home().to_owned();
    let attached = session.clone();
    tokio::task::spawn_blocking(move || {
        let mut pty = Pty::run(&home, (30, 100), &["session", "attach", &attached]);
        pty.wait_for("The first words.");
        pty.press("/say Typed at a terminal.\n");
        pty.wait_for("Typed at a terminal.\r\n");
        pty.press("\x04");
        pty.wait_for("comes back");
        assert_eq!(pty.exit_code(), Some(0));
    })
    .await
    .unwrap();
    assert_eq!(
        admin.turn(&session, 2).await["text"],
        "Typed at a terminal."
    );
}

#[tokio::test]
async fn a_command_of_this_machine_is_a_tool_of_the_agent() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let script = home.join("notify.sh");
    let kept = home.join("kept");
    let text = format!("#!/bin/sh\ntee -a {}\n", kept.display());
    std::fs::write(&script, text).unwrap();
    let tool = format!("notify=sh {}", script.display());
    let call = "/tool local_notify {\"message\": \"hello\"}";
    let ran = run(home, &["run", "--tool", &tool, call]).await;
    assert_eq!(ran.status.code(), Some(0), "{}", err(&ran));
    assert_eq!(out(&ran).trim(), "{\"message\":\"hello\"}");
    let kept = std::fs::read_to_string(kept).unwrap();
    assert_eq!(kept.trim(), "{\"message\":\"hello\"}");

    let failing = "fail=echo no luck >&2; exit 3";
    let ran = run(home, &["run", "--tool", failing, "/tool local_fail {}"]).await;
    assert!(out(&ran).contains("no luck"), "{}{}", out(&ran), err(&ran));
    let wrong = run(home, &["run", "--tool", "notify", "hi"]).await;
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        err(&wrong).contains("--tool 'notify=./notify.sh'"),
        "{}",
        err(&wrong)
    );
    let down = run(home, &["down", "--remove"]).await;
    assert_eq!(down.status.code(), Some(0), "{}", err(&down));
}
