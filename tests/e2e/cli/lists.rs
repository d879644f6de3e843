//! Lists and progress in terminals of different widths, and tokens by their names.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{Pty, Server, ServerOptions, binary, run_cli, stderr, stdout};

fn sandbox() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

/// What a command prints in a terminal.
fn shown_at(columns: u16, home: &Path, arguments: &[&str]) -> String {
    let mut terminal = Pty::run(home, (24, columns), arguments);
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    terminal.shown()
}

#[test(needs(sandbox), multi_thread)]
async fn lists_fit_the_terminal_and_have_short_ids_there_and_whole_ones_in_a_pipe() {
    let server = sandbox();
    let (admin, home) = (server.admin(), server.home().to_owned());
    let name = "a project with quite a long name that goes on and on";
    let made = json!({ "name": name, "description": "It has a description as well. ".repeat(5) });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let session = admin.spawn(&project, "/say hi").await;
    admin.turn(&session, 1).await;
    let scope = format!("project:{project}:ro");
    let token = json!({ "name": "token of the continuous integration", "scope": scope });
    let token = admin.call("token_create", token).await.ok()["token_id"].clone();
    let schedule = json!({
        "name": "every night at three", "cron_expr": "0 3 * * *", "prompt": "hi", "timezone": "Europe/Berlin",
        "targets": [{ "project_id": project }],
    });
    let schedule = admin.call("schedule_create", schedule).await.ok()["schedule_id"].clone();
    let id = |id: &Value| id.as_str().unwrap().to_owned();
    let lists = [
        (vec!["project", "list"], project.clone(), 8),
        (vec!["session", "list"], session.clone(), 14),
        (vec!["token", "list"], id(&token), 8),
        (vec!["schedule", "list"], id(&schedule), 8),
        (vec!["workspace", "list", &project], "default".to_owned(), 7),
        (vec!["audit", "list"], "project_create".to_owned(), 14),
    ];
    let lists: Vec<(Vec<String>, String, usize)> = lists
        .into_iter()
        .map(|(words, id, short)| (words.into_iter().map(str::to_owned).collect(), id, short))
        .collect();
    tokio::task::spawn_blocking(move || {
        for (arguments, id, short) in lists {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            for width in [80, 120] {
                let shown = shown_at(width, &home, &arguments);
                for line in shown.lines() {
                    let columns = line.trim_end().chars().count();
                    assert!(
                        columns <= usize::from(width),
                        "{arguments:?}: {columns}: {line}"
                    );
                }
                assert!(shown.contains(&id[..short]), "{arguments:?}: {shown}");
                assert!(
                    id.len() == short || !shown.contains(&id),
                    "{arguments:?}: {shown}"
                );
                if matches!(arguments[0], "session" | "audit") {
                    assert!(shown.contains("a project"), "{arguments:?}: {shown}");
                    assert!(!shown.contains(&project), "{arguments:?}: {shown}");
                }
            }
            let piped = stdout(&support::cli(&home, &arguments));
            assert!(piped.contains(&id), "{arguments:?}: {piped}");
            assert!(!piped.contains('…'), "{arguments:?}: {piped}");
        }
        let listed = shown_at(120, &home, &["session", "list"]);
        assert!(
            listed.contains("/say hi") && listed.contains("demo"),
            "{listed}"
        );
        let piped = support::cli(&home, ["token", "list"]);
        let scope = "project:a project with quite a long name";
        assert!(stdout(&piped).contains(scope), "{}", stdout(&piped));
    })
    .await
    .unwrap();
}

#[test(needs(sandbox), multi_thread)]
async fn the_spinner_is_one_line_at_every_width_and_absent_in_a_pipe() {
    let server = sandbox();
    let home = server.home().to_owned();
    tokio::task::spawn_blocking(move || {
        let prompt = "/sh : cargo test --workspace --all-features -- --nocapture; sleep 6";
        let mut terminal = Pty::run(&home, (24, 60), &["run", prompt]);
        terminal.wait_for("cargo test");
        terminal.resize(24, 40);
        let at = terminal.shown().len();
        terminal.wait_for(" 2s");
        let shown = terminal.shown();
        let at = shown.floor_char_boundary(at);
        let frames = |text: &str| -> Vec<String> {
            let frames = text.split("\r\u{1b}[K").skip(2);
            frames.map(str::to_owned).collect()
        };
        assert!(frames(&shown[at..]).len() > 3, "{shown:?}");
        // The first of them was shown before the window was narrower.
        for frame in frames(&shown[at..]) {
            assert!(!frame.contains('\n'), "{frame:?}");
            assert!(frame.chars().count() < 40, "{frame:?}");
        }
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        let piped = support::cli(&home, ["run", "/sh sleep 1; echo end"]);
        assert!(!stderr(&piped).contains('\r'), "{}", stderr(&piped));
    })
    .await
    .unwrap();
}

#[test]
async fn tokens_go_by_name_and_a_shared_name_asks_for_the_id() {
    let server = Server::start();
    let home = server.home();
    let create = async |name: &str| {
        let made = run_cli(home, &["token", "create", name, "read", "--json"]).await;
        let token: Value = serde_json::from_slice(&made.stdout).unwrap();
        (
            token["token_id"].as_str().unwrap().to_owned(),
            stderr(&made),
        )
    };
    let (first, warned) = create("nightly").await;
    assert_eq!(warned, "");
    let mistyped = run_cli(home, &["token", "revoke", "nighly", "-y"]).await;
    assert_eq!(
        stderr(&mistyped),
        "error: token `nighly` not found; did you mean `nightly`?\n"
    );
    let (second, warned) = create("nightly").await;
    assert!(
        warned.contains("has the name `nightly`") && warned.contains("`oubliette token revoke`"),
        "{warned}"
    );
    let shared = run_cli(home, &["token", "revoke", "nightly", "-y"]).await;
    let shared = stderr(&shared);
    assert!(
        shared.contains("2 tokens match `nightly`")
            && shared.contains(&first)
            && shared.contains(&second),
        "{shared}"
    );
    let by_id = run_cli(home, &["token", "revoke", &first, "-y"]).await;
    assert_eq!(by_id.status.code(), Some(0), "{}", stderr(&by_id));
    let by_name = run_cli(home, &["token", "revoke", "nightly", "-y"]).await;
    assert_eq!(by_name.status.code(), Some(0), "{}", stderr(&by_name));
    assert!(stdout(&by_name).contains(&second), "{}", stdout(&by_name));
    let again = run_cli(home, &["token", "revoke", "nightly", "-y"]).await;
    assert_eq!(
        stderr(&again),
        "error: the token `nightly` has already been revoked or has expired\n"
    );
}

#[test]
async fn the_first_start_names_commands_that_use_its_data_directory() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("data");
    let mut server = Command::new(binary())
        .env_clear()
        .env("HOME", directory.path())
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&home)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut lines = lines.map(|line| line.unwrap().trim().to_owned());
    let command = format!("oubliette --data-dir {}", home.display());
    for rest in ["mcp setup claude", "project create hello"] {
        let wanted = format!("{command} {rest}");
        assert!(lines.any(|line| line == wanted), "no line is {wanted}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test(needs(sandbox))]
async fn run_creates_a_workspace_only_when_told_to() {
    let server = sandbox();
    let home = server.home();
    let run = ["run", "--workspace", "w2", "/say hi"];
    let missing = run_cli(home, &run).await;
    assert_eq!(missing.status.code(), Some(1));
    let said = stderr(&missing);
    assert!(said.contains("`--create-workspace` creates it"), "{said}");
    let made = run_cli(home, &[&run[..], &["--create-workspace"]].concat()).await;
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    assert_eq!(stdout(&made), "hi\n");
}
