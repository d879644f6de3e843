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
        (&["token", "reset-admin", "-y"], "file"),
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

#[test]
async fn without_a_terminal_what_cannot_be_undone_needs_yes() {
    let server = Server::start();
    let home = server.home();
    server.admin().project("piped").await;
    for (arguments, would) in [
        (
            &["project", "delete", "piped"][..],
            "delete the project piped",
        ),
        (&["token", "revoke", "admin"], "revoke the token admin"),
        (&["session", "cleanup"], "delete the ended sessions"),
        (
            &["container", "stop", "piped"],
            "stop the container of piped",
        ),
        (&["down", "--remove"], "remove all containers"),
        (&["token", "reset-admin"], "replace the admin token"),
    ] {
        let refused = run_cli(home, arguments).await;
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        let error = stderr(&refused);
        assert!(error.contains(&format!("this would {would}")), "{error}");
        assert!(error.trim_end().ends_with("; give --yes"), "{error}");
    }
    let listed = run_cli(home, &["project", "list"]).await;
    assert!(stdout(&listed).contains("piped"), "{}", stdout(&listed));
    let deleted = run_cli(home, &["project", "delete", "piped", "--yes"]).await;
    assert_eq!(deleted.status.code(), Some(0), "{}", stderr(&deleted));
}

#[test]
async fn output_that_cannot_be_written_is_a_failure_and_a_closed_pipe_is_none() {
    let server = Server::start();
    let home = server.home();
    server.admin().project("app").await;
    for arguments in [
        &["project", "list", "--json"][..],
        &["project", "list"],
        &["session", "list"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let run = |output: Stdio| {
            let child = Command::new(binary())
                .env("OUBLIETTE_HOME", home)
                .args(arguments)
                .stdout(output)
                .stderr(Stdio::piped())
                .spawn();
            child.unwrap().wait_with_output().unwrap()
        };
        let full = std::fs::File::options().write(true).open("/dev/full");
        let failed = run(full.unwrap().into());
        assert_eq!(failed.status.code(), Some(1), "{arguments:?}");
        let error = stderr(&failed);
        assert!(error.contains("error: cannot write the output"), "{error}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = run(writer.into());
        assert_eq!(closed.status.code(), Some(0), "{arguments:?}");
        assert_eq!(stderr(&closed), "", "{arguments:?}");
    }
}

#[test]
async fn a_command_without_its_verb_is_help_and_an_empty_variable_is_none() {
    let home = tempfile::tempdir().unwrap();
    let run = |data_dir: &str, arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.env_clear().env("HOME", home.path());
        command
            .env("OUBLIETTE_HOME", data_dir)
            .env("OUBLIETTE_URL", "");
        command.args(arguments).output().unwrap()
    };
    let set = home.path().join("set");
    for (arguments, expected) in [(&[][..], "Work with agents"), (&["token"], "reset-admin")] {
        let help = run(set.to_str().unwrap(), arguments);
        assert_eq!(help.status.code(), Some(0), "{}", stderr(&help));
        assert!(stdout(&help).contains(expected), "{}", stdout(&help));
    }
    let wrong = run(set.to_str().unwrap(), &["project", "get"]);
    assert!(!stderr(&wrong).contains("--data-dir"), "{}", stderr(&wrong));
    let status = run("", &["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let default = home.path().join(".oubliette");
    assert!(
        status.to_string().contains(default.to_str().unwrap()),
        "{status}"
    );
}

#[test]
async fn mistakes_are_found_before_anything_is_created_or_sent() {
    let server = Server::start();
    let home = server.home();
    let made = run_cli(home, &["project", "create", "playground", "--quiet"]).await;
    assert_eq!(stdout(&made).trim().len(), 36, "{}", stdout(&made));
    let mistyped = run_cli(home, &["run", "--project", "playgruond", "hi"]).await;
    assert_eq!(mistyped.status.code(), Some(1));
    let error = stderr(&mistyped);
    assert!(error.contains("--project 'playground'"), "{error}");
    assert!(error.contains("project create 'playgruond'"), "{error}");
    let empty = run_cli(home, &["run", "--here", " "]).await;
    assert_eq!(
        stderr(&empty),
        "error: there is no prompt in the command line\n"
    );
    let absent = run_cli(home, &["run", "--here", "--agent", "droid", "hi"]).await;
    let error = stderr(&absent);
    assert!(
        error.starts_with("error: the agent `droid` is not installed"),
        "{error}"
    );
    let listed = run_cli(home, &["project", "list"]).await;
    assert_eq!(stdout(&listed).lines().count(), 2, "{}", stdout(&listed));
    let scope = run_cli(home, &["token", "create", "ci", "playground"]).await;
    assert!(
        stderr(&scope).contains("`project:playground`"),
        "{}",
        stderr(&scope)
    );
    let schedule = [
        "schedule",
        "create",
        "s",
        "every day",
        "hi",
        "--target",
        "playground",
    ];
    let schedule = run_cli(home, &schedule).await;
    assert!(
        stderr(&schedule).contains("`0 9 * * 1-5`"),
        "{}",
        stderr(&schedule)
    );
    let mut add = Command::new(binary())
        .env("OUBLIETTE_HOME", home)
        .args(["credential", "add", "work", "--kind", "anthropic"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut add.stdin.take().unwrap(), b"sk-piped-value\n").unwrap();
    let added = add.wait_with_output().unwrap();
    assert_eq!(added.status.code(), Some(0), "{}", stderr(&added));
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
