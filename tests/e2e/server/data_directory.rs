//! The data directory: one server at a time, nothing overwritten that is not ours or not whole.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use support::{Server, ServerOptions, binary, cli};

fn serve(home: &Path) -> std::process::Output {
    cli(home, ["serve", "--listen", "127.0.0.1:0"])
}

#[test]
async fn a_second_server_on_the_same_directory_is_refused() {
    let server = Server::start();
    let second = serve(server.home());
    assert_eq!(second.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&second.stderr);
    assert!(errors.contains("another Oubliette server"), "{errors}");
    assert!(errors.contains(&server.pid().to_string()), "{errors}");
    server.admin().call("project_list", json!({})).await.ok();
}

#[test]
fn foreign_damaged_and_newer_databases_are_refused_with_a_sentence() {
    for (bytes, expected) in [
        (
            b"precious text of another user ".repeat(50),
            "not an Oubliette database",
        ),
        (b"SQLite format 3\0garbage".repeat(50), "Oubliette database"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("oubliette.db");
        std::fs::write(&path, &bytes).unwrap();
        let refused = serve(home.path());
        assert_eq!(refused.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(errors.contains(expected), "{errors}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "the file was changed");
    }
}

#[test]
async fn files_with_secrets_are_readable_only_by_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start();
    server.admin().project("one").await;
    for name in [
        "oubliette.db",
        "oubliette.db-wal",
        "admin.token",
        "projects",
        "run",
    ] {
        let mode = std::fs::metadata(server.home().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{name} has mode {mode:o}");
    }
}

#[test]
fn a_wrong_configuration_is_refused_with_the_nearest_key() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(
        home.path().join("oubliette.toml"),
        "[server]\nlissen = \"x\"\n",
    )
    .unwrap();
    let refused = serve(home.path());
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(errors.contains("did you mean `server.listen`?"), "{errors}");
}

#[test]
async fn a_database_that_another_program_locks_is_a_clear_error_and_passes() {
    let server = Server::start();
    let database = server.home().join("oubliette.db");
    let locked = tokio::task::spawn_blocking(move || lock(&database))
        .await
        .unwrap();
    let reply = server
        .admin()
        .call("project_create", json!({ "name": "x" }))
        .await;
    let sentence = reply.sentence();
    assert!(sentence.contains("locked by another program"), "{sentence}");
    server.admin().call("project_list", json!({})).await.ok();
    drop(locked);
    server.admin().project("x").await;
}

/// Holds the write lock of a database as any other program would.
fn lock(database: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(database).unwrap();
    connection.execute_batch("begin exclusive").unwrap();
    connection
}

/// A disk that fills up needs a file system of its own, and that a namespace; `.ci/run` names it.
#[test(needs(namespaces))]
async fn a_full_disk_is_reported_and_nothing_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=2m,mode=700 none \"$1\" && exec \"$2\" --data-dir \"$1\" serve \
                  --listen 127.0.0.1:0";
    let mut child = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "sh"])
        .arg(home.path())
        .arg(binary())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let first = lines.next().unwrap().unwrap();
    let url = first.split_once(" is ready: ").unwrap().1.to_owned();
    // The directory is mounted only for the server.
    let seen = format!("/proc/{}/root", child.id());
    let home_inside = home.path().strip_prefix("/").unwrap();
    let token = Path::new(&seen).join(home_inside).join("admin.token");
    let key = std::fs::read_to_string(token).unwrap();
    let admin = support::Modern::new(&url, key.trim());
    let padding = "x".repeat(9_000);
    let mut made = 0;
    let refusal = loop {
        let parameters = json!({ "name": format!("p{made}"), "description": padding });
        let reply = admin.call("project_create", parameters).await;
        if reply.is_error() || reply.body.get("error").is_some() {
            break reply;
        }
        made += 1;
        assert!(made < 10_000, "the disk never fills");
    };
    assert!(made > 3, "{}", refusal.text);
    assert!(refusal.sentence().contains("full"), "{}", refusal.text);
    let listed = admin.call("project_list", json!({ "limit": 1000 })).await;
    assert_eq!(
        listed.ok()["projects"].as_array().unwrap().len(),
        made,
        "{}",
        refusal.text
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
async fn split_and_unified_names_follow_the_configuration() {
    let names = async |style: &str| {
        let server = Server::start_with(ServerOptions {
            config: format!("[tools]\nstyle = \"{style}\"\n"),
            ..ServerOptions::default()
        });
        let tools = server.admin().tools().await;
        tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (unified, split, both) = (
        names("unified").await,
        names("split").await,
        names("both").await,
    );
    assert!(
        unified.contains(&"project".to_owned()) && !unified.contains(&"project_get".to_owned())
    );
    assert!(!split.contains(&"project".to_owned()) && split.contains(&"project_get".to_owned()));
    assert!(both.contains(&"project".to_owned()) && both.contains(&"project_get".to_owned()));
}
