//! `oubliette run` and `oubliette session …` as a person uses them.

use serde_json::json;
use support::{FreshHome, Leftovers, Pty, Server, ServerOptions, run_cli, stderr, stdout};

#[test(needs(sandbox))]
async fn a_prompt_on_a_new_machine_is_a_whole_session_and_down_leaves_nothing_running() {
    let home = FreshHome::new();
    let first = home
        .run(&["run", "/say Hello.", "\n/sh echo hi; pwd"])
        .await;
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    assert_eq!(stdout(&first), "Hello.\n\nhi\n/workspace\n");
    let said = stderr(&first);
    assert!(said.contains("✓ echo hi"), "{said}");
    let about_server = said.lines().filter(|line| line.contains("server")).count();
    assert_eq!(about_server, 1, "{said}");
    let second = home.run(&["run", "--continue", "how many turns?"]).await;
    assert!(
        stdout(&second).contains("turn 2"),
        "{}{}",
        stdout(&second),
        stderr(&second)
    );
    assert!(!stderr(&second).contains("server"), "{}", stderr(&second));
    let failed = home.run(&["run", "/fail out of luck"]).await;
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(stderr(&failed).lines().last(), Some("error: out of luck"));
    let unknown = home.run(&["run", "--agent", "dmeo", "hi"]).await;
    assert!(
        stderr(&unknown).contains("did you mean `demo`?"),
        "{}",
        stderr(&unknown)
    );
    let server = home.server_pid().unwrap();
    let listed = home.run(&["session", "list", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(home.server_pid(), Some(server));
    let down = home.run(&["down", "--remove", "--yes"]).await;
    assert_eq!(down.status.code(), Some(0), "{}", stderr(&down));
    let leftovers = Leftovers::find(home.path(), 0);
    assert!(leftovers.processes.is_empty(), "{leftovers}");
    assert!(!home.path().join("run/server.json").exists());
}

#[test(needs(sandbox))]
async fn sessions_are_driven_from_the_command_line() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let home = server.home();
    let ran = run_cli(home, &["run", "--project", "app", "/say one"]).await;
    assert_eq!(stdout(&ran), "one\n", "{}", stderr(&ran));
    let spawned = run_cli(home, &["session", "spawn", "app", "/say two", "--json"]).await;
    let spawned: serde_json::Value = serde_json::from_slice(&spawned.stdout).unwrap();
    let session = spawned["session_id"].as_str().unwrap().to_owned();
    assert_eq!(server.admin().turn(&session, 2).await["text"], "two");
    let sent = run_cli(home, &["session", "message", &session, "/say three"]).await;
    assert_eq!(sent.status.code(), Some(0), "{}", stderr(&sent));
    assert_eq!(server.admin().turn(&session, 3).await["text"], "three");
    let listed = run_cli(home, &["session", "list"]).await;
    assert!(stdout(&listed).contains(&session), "{}", stdout(&listed));
    let shown = run_cli(home, &["session", "get", &session]).await;
    assert!(stdout(&shown).contains("idle"), "{}", stdout(&shown));
    let events = run_cli(home, &["session", "events", &session, "--json"]).await;
    let events: serde_json::Value = serde_json::from_slice(&events.stdout).unwrap();
    assert_eq!(events["completed"], json!(true));
    let ended = run_cli(home, &["session", "end", &session]).await;
    assert!(stdout(&ended).contains("completed"), "{}", stdout(&ended));
}

#[test(needs(sandbox), multi_thread)]
async fn at_a_terminal_text_is_streamed_questions_are_answered_and_turns_interrupted() {
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
        pty.type_keys("y\n");
        pty.wait_for("I go on.");
        pty.wait_for("Allow it?");
        pty.type_keys("y\n");
        pty.wait_for("sleep 1000");
        pty.type_keys("\x03");
        pty.wait_for("interrupting");
        assert_eq!(pty.exit_code(), Some(130));
    })
    .await
    .unwrap();
}

#[test(needs(sandbox), multi_thread)]
async fn an_attached_terminal_shows_a_session_and_sends_it_messages() {
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
        pty.type_keys("/say Typed at a terminal.\n");
        pty.wait_for("Typed at a terminal.\r\n");
        pty.type_keys("\x04");
        pty.wait_for("reattach with");
        assert_eq!(pty.exit_code(), Some(0));
    })
    .await
    .unwrap();
    assert_eq!(
        admin.turn(&session, 2).await["text"],
        "Typed at a terminal."
    );
}

#[test(needs(sandbox))]
async fn a_command_of_this_machine_is_a_tool_of_the_agent() {
    let home = FreshHome::new();
    let script = home.path().join("notify.sh");
    let kept = home.path().join("kept");
    let text = format!("#!/bin/sh\ntee -a {}\n", kept.display());
    std::fs::write(&script, text).unwrap();
    let tool = format!("notify=sh {}", script.display());
    let call = "/tool local_notify {\"message\": \"hello\"}";
    let ran = home.run(&["run", "--tool", &tool, call]).await;
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    assert_eq!(stdout(&ran).trim(), "{\"message\":\"hello\"}");
    let kept = std::fs::read_to_string(kept).unwrap();
    assert_eq!(kept.trim(), "{\"message\":\"hello\"}");

    let failing = "fail=echo no luck >&2; exit 3";
    let ran = home
        .run(&["run", "--tool", failing, "/tool local_fail {}"])
        .await;
    assert!(
        stdout(&ran).contains("no luck"),
        "{}{}",
        stdout(&ran),
        stderr(&ran)
    );
    let wrong = home.run(&["run", "--tool", "notify", "hi"]).await;
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        stderr(&wrong).contains("--tool 'notify=./notify.sh'"),
        "{}",
        stderr(&wrong)
    );
}
