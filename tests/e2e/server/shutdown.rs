//! SIGTERM: calls in flight finish, streams end, nothing hangs.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use support::{Legacy, Server, ServerOptions};

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
    tokio::time::timeout(Duration::from_secs(5), stream.bytes())
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
    drop((call.await, connection));
    server.start_again();
    server.admin().project("x").await;
}
