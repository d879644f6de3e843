//! SIGTERM: calls in flight finish, streams end, nothing hangs.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::json;
use support::{Legacy, Server, ServerOptions, binary, wait_until};

#[test]
async fn a_call_in_flight_finishes_and_new_connections_are_refused() {
    let slow = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x", slow.local_addr().unwrap());
    let mut server = Server::start();
    let session = Legacy::connect(server.url(), &server.admin_key()).await;
    let stream = session.stream().await;
    let admin = server.admin();
    let call = tokio::spawn(async move {
        admin
            .call("project_create", json!({ "name": "x", "remote_url": url }))
            .await
    });
    let accepted = tokio::task::spawn_blocking(move || slow.accept().unwrap().0);
    let mut connection = accepted.await.unwrap();
    server.signal(Signal::TERM);
    // The stream ends first: it would never end by itself.
    tokio::time::timeout(Duration::from_secs(60), stream.bytes())
        .await
        .unwrap()
        .ok();
    connection
        .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    drop(connection);
    let reply = call.await.unwrap();
    assert!(reply.sentence().contains("failed"), "{}", reply.sentence());
    assert_eq!(server.wait(), Some(0));
    assert!(!server.home().join("run/server.json").exists());
}

#[test]
async fn a_call_that_does_not_finish_is_cut_off_after_the_grace_period() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x", silent.local_addr().unwrap());
    let mut server = Server::start_with(ServerOptions {
        config: "[server]\ndrain_seconds = 1\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let call = tokio::spawn(async move {
        let arguments = json!({ "name": "x", "remote_url": url });
        let call = json!({ "name": "project_create", "arguments": arguments });
        admin.try_send("tools/call", call).await
    });
    let connection = tokio::task::spawn_blocking(move || silent.accept().unwrap().0)
        .await
        .unwrap();
    assert_eq!(server.stop(), Some(0));
    // The connection may close before the reply.
    if let Some(reply) = call.await.unwrap() {
        assert_eq!(reply.status, 503, "{}", reply.text);
        assert!(reply.text.contains("stopped"), "{}", reply.text);
    }
    drop(connection);
    server.start_again();
    server.admin().project("x").await;
}

#[test(needs(sandbox))]
async fn calls_that_only_wait_end_at_once() {
    let mut server = Server::start_with(ServerOptions {
        config: "[server]\ndrain_seconds = 60\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say hello").await;
    admin.turn(&session, 1).await;
    let shown = admin
        .call("session_get", json!({ "session_id": session }))
        .await;
    let last = &shown.ok()["last_index"];
    let poll = json!({ "session_id": session, "since_index": last, "wait_seconds": 50 });
    let turn = json!({ "project_id": project, "prompt": "/sleep 100", "new_session": true, "wait_seconds": 50 });
    let caller = server.admin();
    let for_turn = tokio::spawn(async move { caller.call("session_spawn", turn).await });
    let waiting = tokio::spawn(async move { admin.call("session_events", poll).await });
    let other = server.admin();
    wait_until("the turn", async || {
        let listed = json!({ "project_id": project, "status": "running" });
        let listed = other.call("session_list", listed).await;
        listed.ok()["sessions"] != json!([])
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished() && !for_turn.is_finished());
    let started = Instant::now();
    assert_eq!(server.stop(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(30), "it waited");
    let page = waiting.await.unwrap();
    assert_eq!(page.ok()["events"], json!([]), "{}", page.text);
    let unfinished = for_turn.await.unwrap();
    assert_eq!(unfinished.ok()["completed"], false, "{}", unfinished.text);
}

#[test]
async fn a_server_whose_log_reader_is_gone_answers_calls_and_stops() {
    let home = tempfile::tempdir().unwrap();
    let mut server = Command::new(binary())
        .arg("--data-dir")
        .arg(home.path())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("OUBLIETTE_LOG", "debug")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Every line that the server logs from now on fails with a broken pipe.
    drop(server.stderr.take());
    let info = home.path().join("run/server.json");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !info.exists() {
        assert!(Instant::now() < deadline, "the server does not start");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let listed = Command::new(binary())
        .arg("--data-dir")
        .arg(home.path())
        .args(["project", "list"])
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let pid = Pid::from_child(&server);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let status = loop {
        if let Some(status) = server.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            server.kill().unwrap();
            panic!("the server does not stop");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(status.success(), "{status:?}");
}
