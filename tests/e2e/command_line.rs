//! The command line as a person uses it.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use support::{Server, cli};

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
async fn projects_are_managed_by_name_with_tables_and_json() {
    let server = Server::start();
    let home = server.home();
    let empty = run(home, &["project", "list"]).await;
    assert_eq!(out(&empty), "No projects.\n");
    let made = run(
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
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let listed = run(home, &["project", "list"]).await;
    assert!(out(&listed).starts_with("NAME"), "{}", out(&listed));
    assert!(out(&listed).contains("hello world"), "{}", out(&listed));
    let shown = run(home, &["project", "get", "hello world", "--json"]).await;
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
    assert_eq!(run(home, &update).await.status.code(), Some(0));
    let limits = run(home, &["config", "limits", "--project", "hello"]).await;
    assert!(out(&limits).contains("2.5 (project)"), "{}", out(&limits));
    let spaces = run(home, &["workspace", "list", "hello"]).await;
    assert!(out(&spaces).contains("/workspace"), "{}", out(&spaces));
    let wrong = run(home, &["project", "get", "helo"]).await;
    assert_eq!(wrong.status.code(), Some(1));
    assert_eq!(
        err(&wrong),
        "error: there is no project `helo`; did you mean `hello`?\n"
    );

    let token = run(
        home,
        &["token", "create", "ci", "project:hello:ro", "--json"],
    )
    .await;
    let token: Value = serde_json::from_slice(&token.stdout).unwrap();
    let key = token["key"].as_str().unwrap();
    let refused = run(home, &["--token", key, "project", "delete", "hello"]).await;
    assert_eq!(
        err(&refused),
        "error: tool not allowed for this token scope\n"
    );
    let deleted = run(home, &["project", "delete", "hello"]).await;
    assert_eq!(deleted.status.code(), Some(0), "{}", err(&deleted));
    let audit = run(home, &["audit", "list", "--operation", "project_delete"]).await;
    assert!(
        out(&audit).contains("refused") && out(&audit).contains("ok"),
        "{}",
        out(&audit)
    );
}

#[tokio::test]
async fn lists_longer_than_a_page_are_shown_whole() {
    let server = Server::start();
    let admin = server.admin();
    for n in 0..120 {
        admin.project(&format!("p{n:03}")).await;
    }
    let listed = run(server.home(), &["project", "list", "--json"]).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["projects"].as_array().unwrap().len(), 120);
    let page = run(
        server.home(),
        &["project", "list", "--limit", "7", "--json"],
    )
    .await;
    let page: Value = serde_json::from_slice(&page.stdout).unwrap();
    assert_eq!(page["projects"].as_array().unwrap().len(), 7);
}

#[tokio::test]
async fn without_a_server_the_error_says_how_to_start_one() {
    let home = tempfile::tempdir().unwrap();
    let none = run(home.path(), &["project", "list"]).await;
    assert_eq!(none.status.code(), Some(1));
    assert!(err(&none).contains("oubliette serve"), "{}", err(&none));
    let mut server = Server::start();
    server.kill();
    let dead = run(server.home(), &["project", "list"]).await;
    assert!(err(&dead).contains("oubliette serve"), "{}", err(&dead));
    let usage = run(home.path(), &["project", "fly"]).await;
    assert_eq!(usage.status.code(), Some(2));
    let key = [
        "--url",
        "http://127.0.0.1:9",
        "--token",
        "oub_x",
        "project",
        "list",
    ];
    let nothing = run(home.path(), &key).await;
    assert!(
        err(&nothing).contains("nothing answers"),
        "{}",
        err(&nothing)
    );
}

#[tokio::test]
async fn a_wrong_key_is_said_in_one_sentence() {
    let server = Server::start();
    let wrong = run(server.home(), &["--token", "oub_wrong", "project", "list"]).await;
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        err(&wrong).contains("does not accept this API key"),
        "{}",
        err(&wrong)
    );
    assert!(!err(&wrong).contains("oub_wrong"));
}

#[tokio::test]
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
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("backup.tar");
    let file = file.to_str().unwrap();
    let saved = run(server.home(), &["backup", file]).await;
    assert_eq!(saved.status.code(), Some(0), "{}", err(&saved));
    busy.await.unwrap();
    assert_eq!(
        run(server.home(), &["backup", file]).await.status.code(),
        Some(1),
        "overwrites"
    );
    let running = run(server.home(), &["restore", file]).await;
    assert!(
        err(&running).contains("another Oubliette server"),
        "{}",
        err(&running)
    );

    let mut other = Server::start();
    other.admin().project("replaced").await;
    assert_eq!(other.stop(), Some(0));
    let refused = run(other.home(), &["restore", file]).await;
    assert!(err(&refused).contains("--replace"), "{}", err(&refused));
    let restored = run(other.home(), &["restore", "--replace", file]).await;
    assert_eq!(restored.status.code(), Some(0), "{}", err(&restored));
    other.start_again();
    let shown = other.with_key(&server.admin_key());
    let shown = shown.call("project_get", json!({ "project_id": id })).await;
    assert_eq!(shown.ok()["name"], "kept");
    let work = other.workspace(&id).join("work.txt");
    assert_eq!(std::fs::read_to_string(work).unwrap(), "precious");
    let link = std::fs::symlink_metadata(other.workspace(&id).join("link")).unwrap();
    assert!(link.is_symlink());

    std::fs::write(place.path().join("junk.tar"), vec![7; 4096]).unwrap();
    let junk = place.path().join("junk.tar");
    let empty = tempfile::tempdir().unwrap();
    let refused = run(empty.path(), &["restore", junk.to_str().unwrap()]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(!empty.path().join("oubliette.db").exists());
}

#[tokio::test]
async fn a_lost_admin_key_is_replaced_without_a_server() {
    let mut server = Server::start();
    let old = server.admin_key();
    let running = run(server.home(), &["token", "reset-admin"]).await;
    assert!(
        err(&running).contains("another Oubliette server"),
        "{}",
        err(&running)
    );
    assert_eq!(server.stop(), Some(0));
    let reset = run(server.home(), &["token", "reset-admin"]).await;
    let new = out(&reset).trim().to_owned();
    assert_eq!(new, server.admin_key());
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
    let nothing = run(empty.path(), &["token", "reset-admin"]).await;
    assert!(err(&nothing).contains("no database"), "{}", err(&nothing));
}

#[tokio::test]
async fn clients_are_set_up_and_what_they_had_stays() {
    let server = Server::start();
    let home = server.home();
    let file = home.join(".cursor/mcp.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(
        &file,
        "{\n  // mine\n  \"mcpServers\": { \"other\": { \"url\": \"x\" } }\n}\n",
    )
    .unwrap();
    let dry = run(home, &["mcp", "setup", "cursor", "--dry-run"]).await;
    assert_eq!(dry.status.code(), Some(0), "{}", err(&dry));
    assert!(
        !std::fs::read_to_string(&file)
            .unwrap()
            .contains("oubliette")
    );
    let set = run(home, &["mcp", "setup", "cursor"]).await;
    assert_eq!(set.status.code(), Some(0), "{}", err(&set));
    assert!(
        !err(&set).contains(&server.admin_key()),
        "the key is shown: {}",
        err(&set)
    );
    let text = std::fs::read_to_string(&file).unwrap();
    for kept in ["// mine", "\"other\"", server.url(), &server.admin_key()] {
        assert!(text.contains(kept), "{kept} is not in {text}");
    }
    let again = run(home, &["mcp", "setup", "cursor"]).await;
    assert!(err(&again).contains("already"), "{}", err(&again));
    let wrong = run(home, &["mcp", "setup", "cursr"]).await;
    assert!(
        err(&wrong).contains("Did you mean `cursor`"),
        "{}",
        err(&wrong)
    );
}

#[tokio::test]
async fn completions_help_and_doctor_answer() {
    let server = Server::start();
    for shell in ["bash", "zsh", "fish"] {
        let script = run(server.home(), &["completions", shell]).await;
        assert!(out(&script).contains("reset-admin"), "{shell}");
    }
    let help = run(server.home(), &["project", "create", "--help"]).await;
    assert!(out(&help).contains("--remote-url"), "{}", out(&help));
    let doctor = run(server.home(), &["doctor"]).await;
    assert_eq!(
        doctor.status.code(),
        Some(0),
        "{}{}",
        out(&doctor),
        err(&doctor)
    );
    assert!(
        out(&doctor).contains("database is sound"),
        "{}",
        out(&doctor)
    );
    let version = run(server.home(), &["--version"]).await;
    assert!(
        out(&version).starts_with("oubliette 0."),
        "{}",
        out(&version)
    );
}
