//! What a person reads: what was done, what does not hold, and what to do next.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use support::{Pty, Server, ServerOptions, binary, run_cli, stderr, stdout, wait_until};

fn sandbox() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

fn start_cli(home: &Path, arguments: &[&str]) -> std::process::Child {
    Command::new(binary())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("OUBLIETTE_HOME", home)
        .current_dir(home)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
async fn a_secret_is_marked_shown_as_hidden_and_never_lost_silently() {
    let server = Server::start();
    let home = server.home();
    let create = ["project", "create", "app", "--secret", "PIN=abcdefghij"];
    let made = run_cli(home, &[&create[..], &["--env", "DEBUG=1"]].concat()).await;
    assert!(
        stdout(&made).contains("DEBUG (shown), PIN (hidden)"),
        "{}{}",
        stdout(&made),
        stderr(&made)
    );
    let guessed = "PIN={\"value\": \"abcdefghij\", \"secret\": true}";
    let refused = run_cli(home, &["project", "update", "app", "--env", guessed]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("--secret PIN=VALUE"),
        "{}",
        stderr(&refused)
    );
    let from_help = "{\"CODE\": {\"value\": \"abcdefghij\", \"secret\": true}}";
    let replaced = run_cli(home, &["project", "update", "app", "--env", from_help]).await;
    assert!(
        stdout(&replaced).contains("CODE (hidden)"),
        "{}{}",
        stdout(&replaced),
        stderr(&replaced)
    );
    assert!(
        stderr(&replaced).contains("Removed from the environment: DEBUG, PIN."),
        "{}",
        stderr(&replaced)
    );
    let update = ["project", "update", "app", "--env", "SHORT_TOKEN=abc"];
    let short = run_cli(home, &update).await;
    assert!(
        stderr(&short).contains("never hidden") && stderr(&short).contains("SHORT_TOKEN"),
        "{}",
        stderr(&short)
    );
    let help = run_cli(home, &["project", "update", "--help"]).await;
    assert!(stdout(&help).contains("--secret"), "{}", stdout(&help));
}

#[test(needs(sandbox))]
async fn a_command_goes_on_while_its_server_is_restarted() {
    let mut server = sandbox();
    let home = server.home().to_owned();
    let project = server.admin().project("app").await;
    let command = "touch begun; while ! [ -e go ]; do sleep 0.05; done; echo late; exit 3";
    let running = start_cli(&home, &["container", "exec", "app", command]);
    let workspace = server.workspace(&project);
    wait_until("the command", async || workspace.join("begun").exists()).await;
    server.kill();
    // While no server runs.
    std::fs::write(workspace.join("go"), "").unwrap();
    server.start_again();
    let ended = tokio::task::spawn_blocking(move || running.wait_with_output());
    let ended = ended.await.unwrap().unwrap();
    assert_eq!(stdout(&ended), "late\n", "{}", stderr(&ended));
    assert_eq!(ended.status.code(), Some(3), "{}", stderr(&ended));
}

#[test(needs(sandbox), multi_thread)]
async fn a_run_says_that_its_server_is_gone_and_goes_on_when_it_is_back() {
    let mut server = sandbox();
    let home = server.home().to_owned();
    let mut pty = Pty::run(
        &home,
        (30, 100),
        &["run", "/sh sleep 8", "\n/say Done now."],
    );
    pty.wait_for("sleep 8");
    server.kill();
    pty.wait_for("the server does not answer; waiting for it");
    server.start_again();
    pty.wait_for("the server is back");
    pty.wait_for("Done now.");
    assert_eq!(pty.exit_code(), Some(0));
}

#[test(needs(sandbox), multi_thread)]
async fn a_reached_cost_limit_is_explained_with_amounts_and_the_next_command() {
    let server = sandbox();
    let home = server.home().to_owned();
    let create = ["project", "create", "app", "--max-cost-usd", "0.5"];
    assert_eq!(run_cli(&home, &create).await.status.code(), Some(0));
    let prompt = "/usage 100 100 0.7\n/sh sleep 1000";
    let stopped = run_cli(&home, &["run", "--project", "app", prompt]).await;
    assert_eq!(stopped.status.code(), Some(1));
    let error = stderr(&stopped);
    assert!(error.contains("has cost $0.70 of $0.50"), "{error}");
    assert!(error.contains("up to $1.20 in all"), "{error}");
    let permit = error.lines().find(|line| line.contains("session permit"));
    let permit: Vec<&str> = permit.unwrap().split_whitespace().skip(1).collect();
    let session = permit[2].to_owned();
    let allowed = run_cli(&home, &permit).await;
    assert_eq!(allowed.status.code(), Some(0), "{}", stderr(&allowed));

    // Again, at a terminal: only yes and no are answers, and Ctrl-C withdraws the question.
    let home = home.clone();
    let attached = session.clone();
    tokio::task::spawn_blocking(move || {
        let mut pty = Pty::run(&home, (30, 100), &["session", "attach", &attached]);
        pty.wait_for("Ctrl-D detaches");
        pty.type_keys("/usage 100 100 0.7\n");
        pty.wait_for("Allow up to $1.90 in all? [y]es, [n]o:");
        pty.type_keys("what does it cost?\n");
        pty.wait_for("Allow up to $1.90 in all? [y]es, [n]o:");
        pty.type_keys("\x03");
        pty.wait_for("interrupting");
        pty.wait_for("denied: the turn was interrupted");
        pty.type_keys("/say no answer\n");
        pty.wait_for("Allow up to $1.90 in all?");
        pty.type_keys("y\n");
        pty.wait_for("allowed");
        pty.wait_for("no answer");
        pty.type_keys("\x04");
        assert_eq!(pty.exit_code(), Some(0));
    })
    .await
    .unwrap();
}

#[test(needs(root))]
async fn limits_that_are_not_enforced_say_so() {
    // An ordinary user whose control groups are not delegated.
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        run_as: Some(support::RunAs {
            uid: 4242,
            gid: 4242,
            group: 4242,
        }),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    wait_until("the runtime", async || {
        let options = admin.call("project_options", json!({})).await;
        !options.ok()["runtimes"].as_array().unwrap().is_empty()
    })
    .await;
    let options = admin.call("project_options", json!({})).await;
    let limit = options.ok()["runtimes"][0]["memory_limit"].clone();
    let call = json!({ "name": "app", "memory_mb": 64 });
    let made = admin.call("project_create", call).await.ok().clone();
    let shown = run_cli(server.home(), &["project", "get", "app"]).await;
    let is_enforced = limit == "enforced";
    let unenforced = made["not_enforced"].as_array().cloned().unwrap_or_default();
    assert_eq!(
        unenforced.contains(&json!("memory_mb")),
        !is_enforced,
        "{made}"
    );
    let line = "64 (not enforced here: see `oubliette doctor`)";
    assert_eq!(
        stdout(&shown).contains(line),
        !is_enforced,
        "{}",
        stdout(&shown)
    );
    let warns = server.log().contains("have no effect on this machine");
    assert_eq!(warns, !unenforced.is_empty(), "{}", server.log());
}

#[test(multi_thread)]
async fn deleting_a_project_and_a_mistyped_name_are_asked_about_at_a_terminal() {
    let server = Server::start();
    let home = server.home().to_owned();
    server.admin().project("playground").await;
    let asked = home.clone();
    tokio::task::spawn_blocking(move || {
        let mut pty = Pty::run(&asked, (30, 100), &["project", "delete", "playground"]);
        pty.wait_for("Delete the project playground, its files, its history and its tokens");
        pty.type_keys("\n");
        pty.wait_for("nothing was deleted");
        assert_eq!(pty.exit_code(), Some(1));
        let mut pty = Pty::run(&asked, (30, 100), &["run", "--project", "playgruond", "hi"]);
        pty.wait_for("There is no project playgruond, but playground.");
        pty.type_keys("n\n");
        pty.wait_for("nothing was created");
        assert_eq!(pty.exit_code(), Some(1));
        let delete = ["project", "delete", "--yes", "playground"];
        let mut pty = Pty::run(&asked, (30, 100), &delete);
        assert_eq!(pty.exit_code(), Some(0));
    })
    .await
    .unwrap();
    let listed = run_cli(&home, &["project", "list"]).await;
    assert_eq!(stdout(&listed), "No projects.\n");
}

#[test]
async fn errors_name_the_directory_the_command_and_options_that_have_no_effect() {
    let server = Server::start();
    let home = server.home();
    let wrong = run_cli(home, &["--token", "oub_wrong", "project", "list"]).await;
    let name = format!("the server of {} does not accept", home.display());
    assert!(stderr(&wrong).contains(&name), "{}", stderr(&wrong));
    for command in ["down", "doctor"] {
        let refused = run_cli(home, &["--token", "oub_x", command]).await;
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            stderr(&refused).contains("uses no --token"),
            "{}",
            stderr(&refused)
        );
    }
    for (words, expected) in [
        (&["project", "rm", "x"][..], "'delete'"),
        (&["project", "show", "x"][..], "'get'"),
        (&["exec", "x"][..], "'container exec'"),
    ] {
        let unknown = run_cli(home, words).await;
        assert_eq!(unknown.status.code(), Some(2));
        assert!(stderr(&unknown).contains(expected), "{}", stderr(&unknown));
    }
    let dash = run_cli(home, &["backup", "-"]).await;
    assert!(
        stderr(&dash).contains("standard output"),
        "{}",
        stderr(&dash)
    );
    let stopped = run_cli(home, &["down"]).await;
    assert!(
        stdout(&stopped).contains("Stopped the server"),
        "{}",
        stdout(&stopped)
    );
    let other = tempfile::tempdir().unwrap();
    let other = other.path().to_str().unwrap();
    let none = run_cli(home, &["--data-dir", other, "project", "list"]).await;
    let start = format!("oubliette --data-dir {other} up");
    assert!(stderr(&none).contains(&start), "{}", stderr(&none));
}

#[test(needs(sandbox))]
async fn a_prompt_is_read_from_a_file() {
    let server = sandbox();
    let file = server.home().join("prompt");
    std::fs::write(&file, "/say from a file\n").unwrap();
    let run = ["run", "--prompt-file", file.to_str().unwrap()];
    let ran = run_cli(server.home(), &run).await;
    assert_eq!(stdout(&ran), "from a file\n", "{}", stderr(&ran));
    // The standard input of the tests is empty.
    let mut ran = start_cli(server.home(), &["run", "-"]);
    let code = tokio::task::spawn_blocking(move || ran.wait());
    assert_eq!(code.await.unwrap().unwrap().code(), Some(1));
}

#[test]
async fn doctor_names_variables_that_change_settings_and_no_other_platform() {
    let server = Server::start();
    let home = server.home();
    let output = Command::new(binary())
        .env("OUBLIETTE_HOME", home)
        .env("OUBLIETTE_SERVER__LISTEN", "127.0.0.1:7777")
        .arg("doctor")
        .output()
        .unwrap();
    let findings = stdout(&output);
    assert!(
        findings.contains("settings are changed by OUBLIETTE_SERVER__LISTEN"),
        "{findings}"
    );
    assert!(
        !findings.contains("every setting has its default"),
        "{findings}"
    );
    if cfg!(target_os = "linux") {
        assert!(!findings.contains("macOS"), "{findings}");
    }
    std::fs::set_permissions(home, std::fs::Permissions::from_mode(0o777)).unwrap();
    let open = run_cli(home, &["doctor"]).await;
    std::fs::set_permissions(home, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(
        !stdout(&open).contains("ok    data directory"),
        "{}",
        stdout(&open)
    );
    assert!(stdout(&open).contains("FAIL"), "{}", stdout(&open));
}
