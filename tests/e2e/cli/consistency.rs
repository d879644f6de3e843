//! The same options everywhere: JSON, quiet, projects as arguments, questions, completions.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{Pty, Server, ServerOptions, binary, run_cli, stderr, stdout};

#[test]
async fn every_kind_of_command_prints_json() {
    let server = Server::start();
    let home = server.home();
    server.admin().project("hello").await;
    let backup = home.join("backup.tar");
    let backup = backup.to_str().unwrap();
    let man = home.join("man");
    let man = man.to_str().unwrap();
    for (arguments, field) in [
        (&["project", "list"][..], "projects"),
        (&["project", "get", "hello"], "project_id"),
        (&["session", "list", "hello"], "sessions"),
        (&["schedule", "list", "hello"], "schedules"),
        (&["config", "limits", "hello"], "max_recursion_depth"),
        (&["audit", "list", "hello"], "entries"),
        (&["credential", "list"], "credentials"),
        (&["agent", "list"], "agents"),
        (&["agent", "install", "demo"], "state"),
        (&["mcp", "list"], "clients"),
        (&["mcp", "setup", "zed"], "transport"),
        (&["mcp", "remove", "zed"], "revoked"),
        (&["completions", "bash"], "script"),
        (&["man", man], "directory"),
        (&["doctor"], "findings"),
        (&["backup", backup], "bytes"),
        (&["down"], "stopped_server"),
        (&["token", "reset-admin"], "file"),
        (&["restore", "--replace", backup], "verified"),
    ] {
        let ended = run_cli(home, &[arguments, &["--json"]].concat()).await;
        let printed: Result<Value, _> = serde_json::from_str(&stdout(&ended));
        let Ok(printed) = printed else {
            panic!("{arguments:?}: {}{}", stdout(&ended), stderr(&ended));
        };
        assert!(!printed[field].is_null(), "{arguments:?}: {printed}");
    }
    let mut serve = Command::new(binary())
        .env("OUBLIETTE_HOME", home)
        .args(["serve", "--json", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(serve.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let down = run_cli(home, &["down"]).await;
    serve.wait().unwrap();
    assert_eq!(ready["pid"], serve.id());
    assert!(
        stdout(&down).contains("Stopped the server"),
        "{}",
        stdout(&down)
    );
}

#[test]
async fn a_project_is_an_argument_and_a_flag_of_lists() {
    let server = Server::start();
    let home = server.home();
    let hello = server.admin().project("hello").await;
    server.admin().project("other").await;
    for arguments in [
        &["config", "limits", "hello", "--json"][..],
        &["config", "limits", "--project", "hello", "--json"],
    ] {
        let shown = run_cli(home, arguments).await;
        let shown: Value = serde_json::from_str(&stdout(&shown)).unwrap();
        assert!(shown["max_recursion_depth"].is_object(), "{arguments:?}");
        assert!(shown["projects"].is_null(), "{arguments:?}: {shown}");
    }
    let audit = run_cli(home, &["audit", "list", "hello", "--json"]).await;
    let audit: Value = serde_json::from_str(&stdout(&audit)).unwrap();
    let mut entries = audit["entries"].as_array().unwrap().iter();
    assert!(
        entries.all(|entry| entry["project_id"] == hello.as_str()),
        "{audit}"
    );
    let by = [
        "audit",
        "list",
        "--by",
        "admin",
        "--operation",
        "project create",
    ];
    let by = run_cli(home, &by).await;
    assert_eq!(stdout(&by).lines().count(), 3, "{}", stdout(&by));
    let wrong = run_cli(home, &["audit", "list", "--token", "admin"]).await;
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("--by NAME"), "{}", stderr(&wrong));
}

#[test(needs(sandbox))]
async fn a_quiet_run_prints_only_the_answer() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let run = ["run", "--quiet", "/sh true", "\n/say Done."];
    let ran = run_cli(server.home(), &run).await;
    assert_eq!(
        (stdout(&ran).as_str(), stderr(&ran).as_str()),
        ("Done.\n", "")
    );
}

#[test(multi_thread)]
async fn what_cannot_be_undone_is_asked_about_and_yes_answers() {
    let server = Server::start();
    let home = server.home().to_owned();
    server.admin().token("read").await;
    let created = run_cli(&home, &["token", "create", "ci", "read"]).await;
    assert_eq!(created.status.code(), Some(0), "{}", stderr(&created));
    tokio::task::spawn_blocking(move || {
        let mut pty = Pty::run(&home, (30, 100), &["token", "revoke", "ci"]);
        pty.wait_for("Revoke the token ci?");
        pty.type_keys("n\n");
        pty.wait_for("nothing was changed");
        assert_eq!(pty.exit_code(), Some(1));
        let mut pty = Pty::run(&home, (30, 100), &["token", "revoke", "ci", "-y"]);
        assert_eq!(pty.exit_code(), Some(0));
        let mut pty = Pty::run(&home, (30, 100), &["--no-color", "session", "--help"]);
        pty.wait_for("Global options:");
        assert_eq!(pty.exit_code(), Some(0));
    })
    .await
    .unwrap();
}

/// What a shell would offer for the last of these words.
fn complete(server: &Server, words: &[&str]) -> Vec<String> {
    let output = Command::new(binary())
        .env_clear()
        .env("HOME", server.home())
        .env("OUBLIETTE_HOME", server.home())
        .env("_OUBLIETTE_COMPLETE", "fish")
        .args(["--", "oubliette"])
        .args(words)
        .output()
        .unwrap();
    let lines = stdout(&output);
    let names = lines.lines().map(|line| line.split('\t').next().unwrap());
    // Where nothing is typed, options are offered as well.
    let names = names.filter(|name| !name.starts_with('-'));
    names.map(str::to_owned).collect()
}

#[test(multi_thread)]
async fn completions_offer_what_the_server_has() {
    let mut server = Server::start();
    let admin = server.admin();
    let hello = admin.project("hello").await;
    admin.project("other").await;
    let spawn = json!({ "project_id": hello, "prompt": "/say hi", "agent": "demo" });
    let session = admin.call("session_spawn", spawn).await;
    let session = session.ok()["session_id"].as_str().unwrap().to_owned();
    assert_eq!(
        complete(&server, &["project", "get", ""]),
        ["hello", "other"]
    );
    assert_eq!(complete(&server, &["project", "get", "he"]), ["hello"]);
    assert_eq!(complete(&server, &["session", "list", "ot"]), ["other"]);
    assert_eq!(complete(&server, &["run", "--project", "ot"]), ["other"]);
    assert_eq!(
        complete(&server, &["session", "get", &session[..4]]),
        [session]
    );
    assert_eq!(complete(&server, &["run", "--agent", "cl"]), ["claude"]);
    assert_eq!(complete(&server, &["mcp", "setup", "ze"]), ["zed"]);
    assert!(complete(&server, &["proj"]).contains(&"project".to_owned()));
    server.kill();
    assert!(complete(&server, &["project", "get", "he"]).is_empty());
}

/// Runs a script with the completions of bash.
fn bash(server: &Server, script: &str) -> std::process::Output {
    let directory = binary().parent().unwrap().display();
    let path = format!("{directory}:{}", std::env::var("PATH").unwrap());
    Command::new("bash")
        .env_clear()
        .env("PATH", path)
        .env("HOME", server.home())
        .env("OUBLIETTE_HOME", server.home())
        .args(["--norc", "-c", script])
        .output()
        .unwrap()
}

#[test(multi_thread)]
async fn a_name_that_an_agent_chose_cannot_run_a_command_in_the_shell() {
    let server = Server::start();
    let admin = server.admin();
    let project = admin.project("app").await;
    let bad = format!("$(touch {})", server.home().join("ran").display());
    let targets = json!([{ "project_id": project }]);
    let create = json!({ "name": bad, "cron_expr": "@daily", "prompt": "x", "targets": targets });
    let created = admin.call("schedule_create", create).await;
    let id = created.ok()["schedule_id"].as_str().unwrap().to_owned();
    assert_eq!(complete(&server, &["schedule", "get", ""]), [&*id]);
    assert!(complete(&server, &["schedule", "get", "$"]).is_empty());
    let typed = "source <(oubliette completions bash)
        COMP_WORDS=(oubliette schedule get '') COMP_CWORD=3 COMP_TYPE=9
        _clap_complete_oubliette oubliette '' get 2> /dev/null
        for word in \"${COMPREPLY[@]}\"; do case $word in -*) ;; *) eval \"oubliette schedule get $word\" ;; esac; done";
    let ended = bash(&server, typed);
    assert!(stdout(&ended).contains(&id), "{}", stderr(&ended));
    assert!(!server.home().join("ran").exists());
}
