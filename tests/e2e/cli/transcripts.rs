//! Sessions as transcripts, and sessions without their ids.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use support::{Pty, Server, ServerOptions, binary, run_cli, stderr, stdout};

fn sandbox() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

#[test(needs(sandbox), multi_thread)]
async fn a_session_is_a_transcript_that_is_folded_only_on_a_terminal() {
    let server = sandbox();
    let admin = server.admin();
    let project = admin.project("app").await;
    let prompt = "/say Let me count.\n/sh seq 1 30; echo x > made\n/usage 10 10 0.25";
    let session = admin.spawn(&project, prompt).await;
    admin.turn(&session, 1).await;
    let home = server.home().to_owned();
    for words in [
        ["session", "show", &session],
        ["session", "events", &session],
    ] {
        let shown = stdout(&run_cli(&home, &words).await);
        assert!(
            shown.contains("› /say Let me count.\n  /sh seq 1 30"),
            "{shown}"
        );
        assert!(shown.contains("\nLet me count.\n"), "{shown}");
        assert!(shown.contains("  ✓ seq 1 30; echo x > made"), "{shown}");
        assert!(shown.contains("    │ 30\n"), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown}");
        let end = shown.lines().last().unwrap();
        assert!(
            end.starts_with("── turn 1 done") && end.contains("$0.25"),
            "{shown}"
        );
        assert!(end.contains("1 file changed, +1 −0"), "{shown}");
    }
    let header = stdout(&run_cli(&home, &["session", "show"]).await);
    assert!(
        header.starts_with(&format!("{session} idle\napp · demo")),
        "{header}"
    );
    let raw = stdout(&run_cli(&home, &["session", "events", &session, "--raw"]).await);
    let (titles, rows) = raw.split_once('\n').unwrap();
    assert!(
        titles.contains("TYPE") && !titles.contains("SESSION ID"),
        "{raw}"
    );
    // Hours, minutes and seconds, without a date.
    let time = |word: &str| word.len() == 8 && word.split(':').count() == 3;
    assert!(
        rows.lines().all(|row| row.split_whitespace().any(time)),
        "{raw}"
    );
    let table = ["session", "show", &session, "--json"];
    let shown: Value = serde_json::from_slice(&run_cli(&home, &table).await.stdout).unwrap();
    assert_eq!(shown["events"][0]["type"], "status");
    tokio::task::spawn_blocking(move || {
        let shown_with = |more: &[&str]| {
            let words = [&["session", "show", "latest"], more].concat();
            let mut terminal = Pty::run(&home, (24, 60), &words);
            terminal.wait_for("turn 1 done");
            assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
            terminal.shown()
        };
        let folded = shown_with(&[]);
        assert!(folded.contains("│ … 25 more lines"), "{folded}");
        assert!(!folded.contains("│ 30"), "{folded}");
        let full = shown_with(&["--full"]);
        assert!(full.contains("│ 30"), "{full}");
    })
    .await
    .unwrap();
}

#[test(needs(sandbox), multi_thread)]
async fn a_transcript_is_followed_until_the_session_ends() {
    let server = sandbox();
    let admin = server.admin();
    let project = admin.project("app").await;
    let session = admin.spawn(&project, "/say said before").await;
    admin.turn(&session, 1).await;
    let mut following = Command::new(binary())
        .env_clear()
        .env("OUBLIETTE_HOME", server.home())
        .args(["session", "events", "-f", &session])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut wait_for = move |text: &'static str| {
        let found = lines.any(|line| line.unwrap() == text);
        assert!(found, "no line is {text}");
        lines.next();
    };
    let mut wait_for = tokio::task::spawn_blocking(move || {
        wait_for("said before");
        wait_for
    })
    .await
    .unwrap();
    admin.message(&session, "/say said later").await;
    let waited = tokio::task::spawn_blocking(move || wait_for("said later"));
    waited.await.unwrap();
    let end = json!({ "session_id": session });
    admin.call("session_end", end).await.ok();
    let status = tokio::task::spawn_blocking(move || following.wait());
    assert_eq!(status.await.unwrap().unwrap().code(), Some(0));
}

/// Runs the command line in a directory.
async fn run_in(directory: &Path, home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("OUBLIETTE_HOME", home)
        .current_dir(directory)
        .args(arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

#[test(needs(sandbox))]
async fn latest_is_the_newest_session_of_the_directory_and_a_dash_the_one_used_last() {
    let server = sandbox();
    let home = server.home();
    let none = run_cli(home, &["session", "get", "latest"]).await;
    assert!(
        stderr(&none).contains("there is no session yet"),
        "{}",
        stderr(&none)
    );
    let none = run_cli(home, &["session", "get", "-"]).await;
    assert!(
        stderr(&none).contains("none has used one yet"),
        "{}",
        stderr(&none)
    );

    let checkout = tempfile::tempdir().unwrap();
    let git = Command::new("git")
        .args(["init", "-q"])
        .arg(checkout.path())
        .status();
    assert!(git.unwrap().success());
    std::fs::write(checkout.path().join("file"), "text").unwrap();
    let here = run_in(checkout.path(), home, &["run", "--json", "/say here"]).await;
    let elsewhere = run_cli(home, &["run", "--json", "/say elsewhere"]).await;
    let id = |output: &Output| {
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        result["session_id"].as_str().unwrap().to_owned()
    };
    let (here, elsewhere) = (id(&here), id(&elsewhere));
    assert_ne!(here, elsewhere);
    // `run` used it.
    let last = run_cli(home, &["session", "get", "-", "--json"]).await;
    assert_eq!(id(&last), elsewhere, "{}", stderr(&last));
    let newest = run_cli(home, &["session", "get", "latest", "--json"]).await;
    assert_eq!(id(&newest), elsewhere, "{}", stderr(&newest));
    let of_directory = run_in(
        checkout.path(),
        home,
        &["session", "get", "latest", "--json"],
    )
    .await;
    assert_eq!(id(&of_directory), here, "{}", stderr(&of_directory));
    let shown = run_cli(home, &["session", "show", "-"]).await;
    assert!(stdout(&shown).starts_with(&here), "{}", stdout(&shown));
    // A session that was only listed was not used.
    run_cli(home, &["session", "list"]).await;
    let sent = run_cli(home, &["session", "message", "-", "/say again"]).await;
    assert_eq!(sent.status.code(), Some(0), "{}", stderr(&sent));
    assert_eq!(server.admin().turn(&here, 2).await["text"], "again");
}
