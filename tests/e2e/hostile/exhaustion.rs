//! One client that takes all connections, streams and sessions it can get. Others are served meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use oubliette_test_harness::scaled;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use support::{FreshHome, Legacy, Server, eventually, http, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// More than the server's maximum.
const CONNECTIONS: usize = 4400;
/// Others are answered within this time; a server without free places does not answer at all. A server that
/// only waits for the headers of the others (15 s) must not pass.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(12);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The share of one token.
const MAX_PER_TOKEN: usize = 512;

/// Tests with many connections need as many files.
fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum.map_or(65_536, |maximum| maximum.min(65_536));
    assert!(current > 10_000, "this machine allows only {current} files");
    let raised = Rlimit {
        current: Some(current),
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

fn address(server: &Server) -> SocketAddr {
    server.base().trim_start_matches("http://").parse().unwrap()
}

/// Opens connections, some at once, and sends the same bytes on each.
async fn flood(server: &Server, count: usize, bytes: &str) -> Vec<TcpStream> {
    const AT_ONCE: usize = 20;
    let address = address(server);
    let opening = (0..AT_ONCE).map(|_| {
        let bytes = bytes.to_owned();
        tokio::spawn(async move {
            let mut open = Vec::new();
            for _ in 0..count / AT_ONCE {
                let connecting = TcpStream::connect(address);
                // A server without places lets connections wait in the kernel.
                let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
                let Ok(Ok(mut stream)) = connected else {
                    break;
                };
                let _ = stream.write_all(bytes.as_bytes()).await;
                open.push(stream);
            }
            open
        })
    });
    let mut open = Vec::new();
    for opened in opening.collect::<Vec<_>>() {
        open.extend(opened.await.unwrap());
    }
    open
}

fn resident_mib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() >> 10
}

async fn assert_others_are_served(server: &Server, keys: &[&str]) {
    let health = http().get(format!("{}/healthz", server.base())).send();
    let health = tokio::time::timeout(ANSWER_TIMEOUT, health).await;
    assert_eq!(health.expect("no answer").unwrap().status(), 200);
    for key in keys {
        let client = server.with_key(key);
        let listed = client.call("project_list", json!({}));
        let listed = tokio::time::timeout(ANSWER_TIMEOUT, listed).await;
        listed.expect("no answer").ok();
    }
}

fn post(server: &Server, key: &str, length: usize) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\n\
         accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{{\"jsonrpc\":",
        address(server)
    )
}

/// A token that may only read one project, another project's token, and the admin's key.
async fn tokens(server: &Server) -> [String; 3] {
    let admin = server.admin();
    let project = admin.project("one").await;
    let other = admin.project("two").await;
    [
        admin.token(&format!("project:{project}:ro")).await,
        admin.token(&format!("project:{other}")).await,
        server.admin_key(),
    ]
}

/// The first line of a response; empty if the connection is over, none if nothing comes.
async fn status_line(stream: &mut TcpStream) -> Option<String> {
    let mut buffer = [0; 4096];
    let reading = stream.read(&mut buffer);
    let read = tokio::time::timeout(ANSWER_TIMEOUT, reading).await;
    let read = read.ok()?.unwrap_or(0);
    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
    Some(text.lines().next().unwrap_or_default().to_owned())
}

#[test(limit = 240)]
async fn a_token_with_unfinished_bodies_keeps_no_other_out() {
    raise_open_file_limit();
    let server = Server::start();
    let [reader, other, admin] = tokens(&server).await;
    let before = resident_mib(&server);
    let held = flood(&server, CONNECTIONS, &post(&server, &reader, 60_000)).await;
    assert_others_are_served(&server, &[&other, &admin]).await;
    let grown = resident_mib(&server).saturating_sub(before);
    assert!(grown < 150, "{grown} MiB more than before");
    // The token itself is told why it is not served.
    let refused = server.with_key(&reader).send("tools/list", json!({})).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(
        refused.text.contains("max_connections_per_token"),
        "{}",
        refused.text
    );
    drop(held);
    support::wait_until("the places of the closed connections", async || {
        let reply = server.with_key(&reader).send("tools/list", json!({})).await;
        reply.status == 200
    })
    .await;
}

/// Large bodies of one token that the server reads at once.
const MAX_LARGE_BODIES: usize = 8;

#[test(limit = 240)]
async fn large_bodies_of_one_token_are_read_a_few_at_a_time() {
    const BODY_BYTES: usize = 15 << 20;
    /// More than the buffers of a connection that is not read.
    const SENT_BYTES: usize = 14 << 20;
    let server = Server::start();
    let [reader, other, admin] = tokens(&server).await;
    let before = resident_mib(&server);
    let (sent, mut sent_all) = tokio::sync::mpsc::channel(MAX_LARGE_BODIES * 3);
    let mut sending = tokio::task::JoinSet::new();
    for _ in 0..MAX_LARGE_BODIES * 3 {
        let (address, header) = (address(&server), post(&server, &reader, BODY_BYTES));
        let sent = sent.clone();
        sending.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(header.as_bytes()).await.unwrap();
            stream.write_all(&vec![b' '; SENT_BYTES]).await.unwrap();
            sent.send(stream).await.unwrap();
        });
    }
    let mut read = Vec::new();
    while read.len() < MAX_LARGE_BODIES {
        let next = tokio::time::timeout(scaled(ANSWER_TIMEOUT), sent_all.recv()).await;
        let next = next.unwrap_or_else(|_| panic!("only {} bodies are read at once", read.len()));
        read.push(next.unwrap());
    }
    assert_others_are_served(&server, &[&other, &admin]).await;
    let more = tokio::time::timeout(Duration::from_secs(2), sent_all.recv()).await;
    assert!(
        more.is_err(),
        "more than {MAX_LARGE_BODIES} bodies are read"
    );
    let grown = resident_mib(&server).saturating_sub(before);
    assert!(grown < 200, "{grown} MiB more than before");
    // A body that ends makes room for the next.
    drop(read.pop());
    let next = tokio::time::timeout(Duration::from_secs(30), sent_all.recv());
    assert!(next.await.is_ok(), "no other body is read");
}

#[test(limit = 240)]
async fn connections_without_a_key_keep_no_other_out() {
    raise_open_file_limit();
    let server = Server::start();
    let [reader, other, admin] = tokens(&server).await;
    let half_a_header = "POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: ";
    let held = flood(&server, CONNECTIONS, half_a_header).await;
    for _ in 0..3 {
        assert_others_are_served(&server, &[&reader, &other, &admin]).await;
        drop(flood(&server, 300, half_a_header).await);
    }
    drop(held);
}

#[test(limit = 240)]
async fn the_streams_of_one_token_are_bounded() {
    raise_open_file_limit();
    let server = Server::start();
    let [reader, other, admin] = tokens(&server).await;
    let client = Legacy::connect(server.url(), &reader).await;
    let before = resident_mib(&server);
    let get = format!(
        "GET /mcp HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {reader}\r\naccept: text/event-stream\r\n\
         mcp-session-id: {}\r\nmcp-protocol-version: {}\r\n\r\n",
        address(&server),
        client.session(),
        Legacy::VERSION
    );
    let mut streams = flood(&server, 1200, &get).await;
    let (mut open, mut refused) = (0, 0);
    for line in join_all(streams.iter_mut().map(status_line)).await {
        match line.as_deref() {
            Some("HTTP/1.1 200 OK") => open += 1,
            Some(line) if line.contains(" 429 ") => refused += 1,
            other => eprintln!("{other:?}"),
        }
    }
    assert!(
        open <= MAX_PER_TOKEN && refused >= 600,
        "{open} streams, {refused} refused"
    );
    let grown = resident_mib(&server).saturating_sub(before);
    assert!(grown < 200, "{grown} MiB more than before");
    assert_others_are_served(&server, &[&other, &admin]).await;
}

#[test(limit = 240)]
async fn a_token_with_too_many_mcp_sessions_is_told_so() {
    raise_open_file_limit();
    let server = Server::start();
    let [reader, other, _] = tokens(&server).await;
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": { "name": "raw", "version": "0" } } });
    let send = async || {
        let request = http().post(server.url()).bearer_auth(&reader);
        let request = request.header("accept", "application/json, text/event-stream");
        let response = request.json(&initialize).send().await.unwrap();
        let session = response.headers().get("mcp-session-id").cloned();
        let session = session.map(|id| id.to_str().unwrap().to_owned());
        (
            response.status().as_u16(),
            session,
            response.text().await.unwrap(),
        )
    };
    let mut streams = Vec::new();
    let refused = loop {
        let (status, session, text) = send().await;
        let Some(session) = session else {
            break (status, text);
        };
        assert!(
            streams.len() < 1000,
            "the number of sessions is not bounded"
        );
        let stream = http().get(server.url()).bearer_auth(&reader);
        let stream = stream
            .header("accept", "text/event-stream")
            .header("mcp-session-id", session)
            .send()
            .await
            .unwrap();
        assert_eq!(stream.status(), 200);
        streams.push(stream);
    };
    assert_eq!(refused.0, 429, "{}", refused.1);
    assert!(refused.1.contains("MCP sessions"), "{}", refused.1);
    Legacy::connect(server.url(), &other).await;
    // A session without a stream makes room for a new one.
    drop(streams.pop());
    support::wait_until("room for another session", async || send().await.0 == 200).await;
}

/// A server that a command has started ends when it is idle, whatever other processes of the machine do.
#[test]
async fn a_process_without_a_key_does_not_keep_a_server_running() {
    let home = FreshHome::new();
    let mut list = home.command(&["project", "list"]);
    list.env("OUBLIETTE_AUTOSTART__IDLE_SECONDS", "2");
    assert!(run(list).await.status.success());
    let url = home.server().unwrap()["url"].as_str().unwrap().to_owned();
    let address = url.trim_start_matches("http://").trim_end_matches("/mcp");
    // One that stays, and others that ask for something now and then.
    let _open = TcpStream::connect(address).await.unwrap();
    let ended = eventually(ANSWER_TIMEOUT, async || {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            let request = "GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let _ = stream.write_all(request.as_bytes()).await;
        }
        home.server().is_none()
    });
    assert!(ended.await, "{}", home.log());
    assert!(home.log().contains("nothing is at work"), "{}", home.log());
}
