//! Projects that start from a repository.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use serde_json::{Value, json};
use support::{Legacy, Server, ServerOptions};
use tokio::io::AsyncReadExt;

const CLONE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

fn git(directory: &Path, arguments: &[&str]) {
    let status = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(arguments)
        .status()
        .unwrap();
    assert!(status.success());
}

/// A repository with one commit, also readable over plain static HTTP.
fn repository() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    git(directory.path(), &["init", "-q"]);
    std::fs::write(directory.path().join("README"), "hello\n").unwrap();
    let hook = directory.path().join(".git/hooks/post-checkout");
    std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
    std::fs::write(&hook, "#!/bin/sh\ntouch /tmp/never\n").unwrap();
    git(directory.path(), &["add", "README"]);
    git(directory.path(), &["commit", "-qm", "first"]);
    git(directory.path(), &["update-server-info"]);
    directory
}

/// A static HTTP server: its files, its rules and the requests that it got.
struct Site {
    root: std::path::PathBuf,
    /// The `Authorization` header without which nothing is served.
    wanted: Option<String>,
    /// Where everything is redirected to, if anywhere.
    elsewhere: Option<String>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Site {
    fn open(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                self.answer(stream);
            }
        });
        format!("http://{address}")
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let authorization = head
            .lines()
            .find_map(|line| line.strip_prefix("Authorization: "))
            .unwrap_or_default()
            .to_owned();
        self.seen.lock().unwrap().push(authorization.clone());
        let path = head
            .split(' ')
            .nth(1)
            .unwrap_or("/")
            .split('?')
            .next()
            .unwrap()
            .to_owned();
        let (status, extra, body) = if let Some(elsewhere) = &self.elsewhere {
            (
                "302 Found",
                format!("Location: {elsewhere}{path}\r\n"),
                Vec::new(),
            )
        } else if self
            .wanted
            .as_ref()
            .is_some_and(|wanted| *wanted != authorization)
        {
            (
                "401 Unauthorized",
                "WWW-Authenticate: Basic realm=\"x\"\r\n".to_owned(),
                Vec::new(),
            )
        } else {
            match std::fs::read(self.root.join(path.trim_start_matches('/'))) {
                Ok(body) => ("200 OK", String::new(), body),
                Err(_) => ("404 Not Found", String::new(), Vec::new()),
            }
        };
        let head = format!(
            "HTTP/1.1 {status}\r\n{extra}Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&body);
    }
}

fn site(root: &Path) -> Site {
    Site {
        root: root.join(".git"),
        wanted: None,
        elsewhere: None,
        seen: Arc::default(),
    }
}

fn leftovers(server: &Server) -> usize {
    let projects = std::fs::read_dir(server.home().join("projects"))
        .unwrap()
        .count();
    let scratch = std::fs::read_dir(server.home().join("run/git"))
        .unwrap()
        .count();
    projects + scratch
}

#[test]
async fn a_repository_is_cloned_over_http_without_foreign_hooks_and_with_progress() {
    let repository = repository();
    let url = site(repository.path()).open();
    let server = Server::start();
    let admin = server.admin();
    let parameters = json!({ "name": "cloned", "remote_url": url });
    let mut call = json!({ "name": "project_create", "arguments": parameters });
    call["_meta"]["progressToken"] = json!("p");
    let reply = admin.send("tools/call", call).await;
    let id = reply.ok()["project_id"].as_str().unwrap();
    let workspace = server.workspace(id);
    assert_eq!(
        std::fs::read_to_string(workspace.join("README")).unwrap(),
        "hello\n"
    );
    let hooks = std::fs::read_dir(workspace.join(".git/hooks")).unwrap();
    let hooks: Vec<_> = hooks.map(|hook| hook.unwrap().file_name()).collect();
    assert_eq!(hooks, ["prepare-commit-msg"], "only the hook of Oubliette");
    assert_eq!(reply.ok()["remote_url"], json!(url));
}

#[test]
async fn a_credential_is_sent_only_to_its_host() {
    let repository = repository();
    // Basic x-access-token:hunter2
    let wanted = "Basic eC1hY2Nlc3MtdG9rZW46aHVudGVyMg==";
    let guarded = Site {
        wanted: Some(wanted.to_owned()),
        ..site(repository.path())
    };
    let guarded_seen = guarded.seen.clone();
    let url = guarded.open();
    let thief = Site {
        wanted: Some("never".to_owned()),
        ..site(repository.path())
    };
    let thief_seen = thief.seen.clone();
    let thief_url = thief.open();
    let redirect = Site {
        elsewhere: Some(thief_url),
        ..site(repository.path())
    }
    .open();

    let server = Server::start_with(ServerOptions {
        config: "[credentials.github]\nkind = \"git\"\nenv = \"GIT_SECRET\"\n".to_owned(),
        env: vec![("GIT_SECRET".to_owned(), "hunter2".to_owned())],
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let create = |name: &str, url: &str, credential: Option<&str>| {
        let parameters = json!({ "name": name, "remote_url": url, "git_credential": credential });
        let admin = admin.clone();
        async move { admin.call("project_create", parameters).await }
    };
    let without = create("without", &url, None).await;
    assert!(
        without.sentence().contains("git_credential"),
        "{}",
        without.sentence()
    );
    create("with", &url, Some("github")).await.ok();
    assert!(
        guarded_seen
            .lock()
            .unwrap()
            .iter()
            .any(|seen| seen == wanted)
    );

    let stolen = create("stolen", &redirect, Some("github")).await;
    assert!(stolen.is_error());
    assert!(
        !thief_seen.lock().unwrap().is_empty(),
        "the redirect was followed"
    );
    let seen = thief_seen.lock().unwrap().join(" ");
    assert!(
        !seen.contains("Basic"),
        "the credential went to another host: {seen}"
    );
    for text in [&server.log(), &without.text, &stolen.text] {
        assert!(!text.contains("hunter2"), "{text}");
    }
    let options = admin.call("project_options", json!({})).await;
    assert_eq!(
        options.ok()["accounts"],
        json!([{ "name": "github", "kind": "git" }])
    );
    assert_eq!(leftovers(&server), 1, "only the project that was made");
}

#[test]
async fn addresses_that_run_programs_or_read_the_disk_are_refused() {
    let repository = repository();
    let path = repository.path().to_str().unwrap();
    let server = Server::start();
    let admin = server.admin();
    for (url, expected) in [
        ("ext::sh -c touch% /tmp/never", "address"),
        ("ext::sh", "transport helper"),
        ("--upload-pack=touch", "dash"),
        ("ssh://-oProxyCommand=touch/x", "host"),
        (path, "allow_local_clone"),
        (&format!("file://{path}"), "allow_local_clone"),
        ("https://me:hunter2@example.org/x", "password"),
    ] {
        let reply = admin
            .call("project_create", json!({ "name": "x", "remote_url": url }))
            .await;
        assert!(
            reply.sentence().contains(expected),
            "{url}: {}",
            reply.sentence()
        );
        assert!(!reply.text.contains("hunter2"));
    }
    assert_eq!(leftovers(&server), 0);

    let local = Server::start_with(ServerOptions {
        config: "[projects]\nallow_local_clone = true\n".to_owned(),
        ..ServerOptions::default()
    });
    let made = local
        .admin()
        .call("project_create", json!({ "name": "x", "remote_url": path }))
        .await;
    let id = made.ok()["project_id"].as_str().unwrap();
    assert!(local.workspace(id).join("README").exists());
}

#[test]
async fn a_clone_from_a_silent_host_times_out_and_leaves_nothing() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x", silent.local_addr().unwrap());
    let server = Server::start_with(ServerOptions {
        config: "[projects]\nclone_timeout_seconds = 1\n".to_owned(),
        ..ServerOptions::default()
    });
    let reply = server
        .admin()
        .call("project_create", json!({ "name": "x", "remote_url": url }))
        .await;
    assert!(
        reply.sentence().contains("longer than 1 seconds"),
        "{}",
        reply.sentence()
    );
    assert_eq!(leftovers(&server), 0);
    server.admin().project("x").await;
}

#[test]
async fn a_cancelled_clone_ends_its_processes_and_leaves_nothing() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/x", silent.local_addr().unwrap());
    let server = Server::start();
    let parameters = json!({ "name": "x", "remote_url": url });
    let call = json!({ "name": "project_create", "arguments": parameters });
    let request = server.admin().request("tools/call", call).send();
    let request = tokio::spawn(request);
    // The clone has begun when it connects.
    let accepted = tokio::time::timeout(CLONE_TIMEOUT, silent.accept()).await;
    let (mut connection, _) = accepted.expect("no clone").unwrap();
    request.abort();
    // A dropped request is a cancellation in this protocol: git ends, and closes its connection.
    let mut rest = Vec::new();
    let closed = connection.read_to_end(&mut rest);
    let _ = tokio::time::timeout(CLONE_TIMEOUT, closed)
        .await
        .expect("git still runs");
    support::wait_until("the name to be free", async || {
        let again = json!({ "name": "x" });
        !server
            .admin()
            .call("project_create", again)
            .await
            .is_error()
    })
    .await;
}

#[test]
async fn a_clone_is_cancelled_by_a_notification_in_the_older_protocol() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x", silent.local_addr().unwrap());
    let server = Server::start();
    let session = Arc::new(Legacy::connect(server.url(), &server.admin_key()).await);
    let call = tokio::spawn({
        let session = session.clone();
        async move {
            session
                .call("project_create", json!({ "name": "x", "remote_url": url }))
                .await
        }
    });
    let accepted = tokio::task::spawn_blocking(move || silent.accept().unwrap().0);
    let mut connection = accepted.await.unwrap();
    // The call was the second request of its session; initializing was the first.
    session
        .notify(
            "notifications/cancelled",
            json!({ "requestId": 2, "reason": "enough" }),
        )
        .await;
    let ended = tokio::task::spawn_blocking(move || {
        let _ = connection.read_to_end(&mut Vec::new());
    });
    tokio::time::timeout(std::time::Duration::from_secs(60), ended)
        .await
        .unwrap()
        .unwrap();
    let reply = call.await.unwrap();
    assert!(
        reply.body.get("result").is_none(),
        "a cancelled request is not answered: {reply:?}"
    );
}

#[test]
async fn progress_of_a_clone_reaches_the_caller_before_the_result() {
    let repository = repository();
    for n in 0..300 {
        std::fs::write(repository.path().join(format!("file{n}")), format!("{n}")).unwrap();
    }
    git(repository.path(), &["add", "."]);
    git(repository.path(), &["commit", "-qm", "many"]);
    git(repository.path(), &["repack", "-adq"]);
    let server = Server::start_with(ServerOptions {
        config: "[projects]\nallow_local_clone = true\n".to_owned(),
        ..ServerOptions::default()
    });
    let url = format!("file://{}", repository.path().display());
    let mut call =
        json!({ "name": "project_create", "arguments": { "name": "x", "remote_url": url } });
    call["_meta"]["progressToken"] = json!("p");
    let response = server
        .admin()
        .request("tools/call", call)
        .send()
        .await
        .unwrap();
    let mut stream = response.bytes_stream();
    let mut text = String::new();
    while let Some(chunk) = stream.next().await {
        text.push_str(&String::from_utf8_lossy(&chunk.unwrap()));
    }
    let messages: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?.trim()).ok())
        .collect();
    let progress: Vec<&Value> = messages
        .iter()
        .filter(|m| m["method"] == "notifications/progress")
        .collect();
    assert!(!progress.is_empty(), "{text}");
    assert!(
        progress[0]["params"]["message"]
            .as_str()
            .unwrap()
            .contains("cloning"),
        "{text}"
    );
    assert!(
        messages.last().unwrap().get("result").is_some(),
        "the result is last: {text}"
    );
}
