//! The command line as a person uses it.

use serde_json::{Value, json};
use support::{Server, run_cli, stderr, stdout};

#[test]
async fn projects_are_managed_by_name_with_tables_and_json() {
    let server = Server::start();
    let home = server.home();
    let empty = run_cli(home, &["project", "list"]).await;
    assert_eq!(stdout(&empty), "No projects.\n");
    let made = run_cli(
        home,
        &[
            "project",
            "create",
            "hello world",
            "--agent",
            "demo",
            "--env",
            "A=1",
            "--init-git=false",
        ],
    )
    .await;
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    let listed = run_cli(home, &["project", "list"]).await;
    assert!(stdout(&listed).starts_with("NAME"), "{}", stdout(&listed));
    assert!(
        stdout(&listed).contains("hello world"),
        "{}",
        stdout(&listed)
    );
    let shown = run_cli(home, &["project", "get", "hello world", "--json"]).await;
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["env_names"], json!(["A"]));
    assert!(
        !server
            .workspace(shown["id"].as_str().unwrap())
            .join(".git")
            .exists()
    );

    let update = [
        "project",
        "update",
        "hello world",
        "--max-cost-usd",
        "2.5",
        "--name",
        "hello",
    ];
    assert_eq!(run_cli(home, &update).await.status.code(), Some(0));
    let limits = run_cli(home, &["config", "limits", "--project", "hello"]).await;
    assert!(
        stdout(&limits).contains("2.5 (project)"),
        "{}",
        stdout(&limits)
    );
    let spaces = run_cli(home, &["workspace", "list", "hello"]).await;
    assert!(
        stdout(&spaces).contains("/workspace"),
        "{}",
        stdout(&spaces)
    );
    let wrong = run_cli(home, &["project", "get", "helo"]).await;
    assert_eq!(wrong.status.code(), Some(1));
    assert_eq!(
        stderr(&wrong),
        "error: project `helo` not found; did you mean `hello`?\n"
    );
    let project = run_cli(home, &["project", "get", "hello", "--json"]).await;
    let project: Value = serde_json::from_slice(&project.stdout).unwrap();
    let id = project["project_id"].as_str().unwrap();
    for command in [
        &["project", "get", &id[..8]][..],
        &["workspace", "list", &id[..4]],
        &["config", "limits", "--project", &id[..13]],
    ] {
        let by_beginning = run_cli(home, command).await;
        let said = stderr(&by_beginning);
        assert_eq!(by_beginning.status.code(), Some(0), "{command:?}: {said}");
    }

    let token = run_cli(
        home,
        &["token", "create", "ci", "project:hello:ro", "--json"],
    )
    .await;
    let token: Value = serde_json::from_slice(&token.stdout).unwrap();
    let key = token["key"].as_str().unwrap();
    let refused = run_cli(home, &["--token", key, "project", "delete", "hello"]).await;
    let refused = stderr(&refused);
    assert!(
        refused.starts_with(
            "error: tool not allowed for this token scope: `oubliette project delete` needs write access;"
        ),
        "{refused}"
    );
    let deleted = run_cli(home, &["project", "delete", "hello"]).await;
    assert_eq!(deleted.status.code(), Some(0), "{}", stderr(&deleted));
    let audit = run_cli(home, &["audit", "list", "--operation", "project_delete"]).await;
    assert!(
        stdout(&audit).contains("refused") && stdout(&audit).contains("ok"),
        "{}",
        stdout(&audit)
    );
}

#[test]
async fn lists_longer_than_a_page_are_shown_whole() {
    let server = Server::start();
    let admin = server.admin();
    for n in 0..120 {
        admin.project(&format!("p{n:03}")).await;
    }
    let listed = run_cli(server.home(), &["project", "list", "--json"]).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["projects"].as_array().unwrap().len(), 120);
    let page = run_cli(
        server.home(),
        &["project", "list", "--limit", "7", "--json"],
    )
    .await;
    let page: Value = serde_json::from_slice(&page.stdout).unwrap();
    assert_eq!(page["projects"].as_array().unwrap().len(), 7);
}

#[test]
async fn without_autostart_the_error_names_the_command_that_starts_a_server() {
    let home = tempfile::tempdir().unwrap();
    let none = run_cli(home.path(), &["project", "list"]).await;
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains(" up`"), "{}", stderr(&none));
    let mut server = Server::start();
    server.kill();
    let dead = run_cli(server.home(), &["project", "list"]).await;
    assert!(stderr(&dead).contains(" up`"), "{}", stderr(&dead));
    let usage = run_cli(home.path(), &["project", "fly"]).await;
    assert_eq!(usage.status.code(), Some(2));
    let key = [
        "--url",
        "http://127.0.0.1:9",
        "--token",
        "oub_x",
        "project",
        "list",
    ];
    let nothing = run_cli(home.path(), &key).await;
    assert!(
        stderr(&nothing).contains("nothing answers"),
        "{}",
        stderr(&nothing)
    );
}

#[test]
async fn a_wrong_key_is_refused_and_not_printed() {
    let server = Server::start();
    let wrong = run_cli(server.home(), &["--token", "oub_wrong", "project", "list"]).await;
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        stderr(&wrong).contains("does not accept this API key"),
        "{}",
        stderr(&wrong)
    );
    assert!(!stderr(&wrong).contains("oub_wrong"));
}

#[test]
async fn a_backup_taken_under_load_restores_to_a_working_server() {
    let server = Server::start();
    let admin = server.admin();
    let id = admin.project("kept").await;
    std::fs::write(server.workspace(&id).join("work.txt"), "precious").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", server.workspace(&id).join("link")).unwrap();
    let busy = tokio::spawn({
        let admin = admin.clone();
        async move {
            for n in 0..200 {
                admin
                    .call("project_create", json!({ "name": format!("busy {n}") }))
                    .await;
            }
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup.tar");
    let file = file.to_str().unwrap();
    let saved = run_cli(server.home(), &["backup", file]).await;
    assert_eq!(saved.status.code(), Some(0), "{}", stderr(&saved));
    busy.await.unwrap();
    assert_eq!(
        run_cli(server.home(), &["backup", file])
            .await
            .status
            .code(),
        Some(1),
        "overwrites"
    );
    let running = run_cli(server.home(), &["restore", file]).await;
    assert!(
        stderr(&running).contains("another Oubliette server"),
        "{}",
        stderr(&running)
    );

    let mut other = Server::start();
    other.admin().project("replaced").await;
    assert_eq!(other.stop(), Some(0));
    let refused = run_cli(other.home(), &["restore", file]).await;
    assert!(
        stderr(&refused).contains("--replace"),
        "{}",
        stderr(&refused)
    );
    let restored = run_cli(other.home(), &["restore", "--replace", file]).await;
    assert_eq!(restored.status.code(), Some(0), "{}", stderr(&restored));
    other.start_again();
    let shown = other.with_key(&server.admin_key());
    let shown = shown.call("project_get", json!({ "project_id": id })).await;
    assert_eq!(shown.ok()["name"], "kept");
    let work = other.workspace(&id).join("work.txt");
    assert_eq!(std::fs::read_to_string(work).unwrap(), "precious");
    let link = std::fs::symlink_metadata(other.workspace(&id).join("link")).unwrap();
    assert!(link.is_symlink());

    std::fs::write(directory.path().join("junk.tar"), vec![7; 4096]).unwrap();
    let junk = directory.path().join("junk.tar");
    let empty = tempfile::tempdir().unwrap();
    let refused = run_cli(empty.path(), &["restore", junk.to_str().unwrap()]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(!empty.path().join("oubliette.db").exists());
}

#[test]
async fn a_lost_admin_key_is_replaced_without_a_server() {
    let mut server = Server::start();
    let old = server.admin_key();
    let running = run_cli(server.home(), &["token", "reset-admin"]).await;
    assert!(
        stderr(&running).contains("another Oubliette server"),
        "{}",
        stderr(&running)
    );
    assert_eq!(server.stop(), Some(0));
    let reset = run_cli(server.home(), &["token", "reset-admin"]).await;
    // The key is in the file; the output is not a terminal.
    assert_eq!(stdout(&reset), "");
    assert_ne!(server.admin_key(), old);
    server.start_again();
    server.admin().call("project_list", json!({})).await.ok();
    assert_eq!(
        server
            .with_key(&old)
            .call("project_list", json!({}))
            .await
            .status,
        401
    );
    let empty = tempfile::tempdir().unwrap();
    let nothing = run_cli(empty.path(), &["token", "reset-admin"]).await;
    assert!(
        stderr(&nothing).contains("no database"),
        "{}",
        stderr(&nothing)
    );
}

#[test]
async fn client_setup_keeps_the_settings_of_the_client() {
    let server = Server::start();
    let home = server.home();
    let file = home.join(".cursor/mcp.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(
        &file,
        "{\n  // mine\n  \"mcpServers\": { \"other\": { \"url\": \"x\" } }\n}\n",
    )
    .unwrap();
    let dry = run_cli(home, &["mcp", "setup", "cursor", "--dry-run"]).await;
    assert_eq!(dry.status.code(), Some(0), "{}", stderr(&dry));
    assert!(
        !std::fs::read_to_string(&file)
            .unwrap()
            .contains("oubliette")
    );
    let set = run_cli(home, &["mcp", "setup", "cursor"]).await;
    assert_eq!(set.status.code(), Some(0), "{}", stderr(&set));
    assert!(
        !stderr(&set).contains(&server.admin_key()),
        "the key is shown: {}",
        stderr(&set)
    );
    let text = std::fs::read_to_string(&file).unwrap();
    for kept in ["// mine", "\"other\"", server.url(), "Bearer oub_"] {
        assert!(text.contains(kept), "{kept} is not in {text}");
    }
    let again = run_cli(home, &["mcp", "setup", "cursor"]).await;
    assert!(stderr(&again).contains("already"), "{}", stderr(&again));
    let wrong = run_cli(home, &["mcp", "setup", "cursr"]).await;
    assert!(
        stderr(&wrong).contains("Did you mean `cursor`"),
        "{}",
        stderr(&wrong)
    );
}

#[test]
async fn completions_and_help_name_commands_and_options() {
    let server = Server::start();
    for shell in ["bash", "zsh", "fish"] {
        let script = run_cli(server.home(), &["completions", shell]).await;
        assert!(stdout(&script).contains("_OUBLIETTE_COMPLETE"), "{shell}");
    }
    let help = run_cli(server.home(), &["project", "create", "--help"]).await;
    assert!(stdout(&help).contains("--remote-url"), "{}", stdout(&help));
    let version = run_cli(server.home(), &["--version"]).await;
    assert!(
        stdout(&version).starts_with("oubliette 0."),
        "{}",
        stdout(&version)
    );
}

#[test]
async fn doctor_lists_passed_checks_and_fails_for_problems() {
    let mut server = Server::start();
    let home = server.home().to_owned();
    let healthy = run_cli(&home, &["doctor"]).await;
    let findings = stdout(&healthy);
    assert_eq!(
        healthy.status.code(),
        Some(0),
        "{findings}{}",
        stderr(&healthy)
    );
    for expected in [
        format!("ok    data directory {}", home.display()),
        "ok    the database is sound".to_owned(),
        "ok    git version".to_owned(),
        format!("ok    a server (process {}", server.pid()),
    ] {
        assert!(
            findings.contains(&expected),
            "no {expected:?} in {findings}"
        );
    }
    assert!(!findings.contains("FAIL"), "{findings}");

    server.kill();
    std::fs::write(home.join("oubliette.toml"), "runtme = \"sandbox\"\n").unwrap();
    std::fs::write(home.join("oubliette.db"), "not a database").unwrap();
    for log in ["oubliette.db-wal", "oubliette.db-shm"] {
        let _ = std::fs::remove_file(home.join(log));
    }
    std::fs::remove_file(home.join("admin.token")).unwrap();
    let broken = run_cli(&home, &["doctor"]).await;
    let findings = stdout(&broken);
    assert_ne!(broken.status.code(), Some(0), "{findings}");
    assert!(
        stderr(&broken).contains("2 problems"),
        "{findings}{}",
        stderr(&broken)
    );
    let failures: Vec<&str> = findings
        .lines()
        .filter(|line| line.starts_with("FAIL"))
        .collect();
    assert_eq!(failures.len(), 2, "{findings}");
    assert!(findings.contains("runtme"), "{findings}");
    assert!(findings.contains("reset-admin"), "{findings}");
    assert!(
        findings.contains("hint  no server is running"),
        "{findings}"
    );
}
