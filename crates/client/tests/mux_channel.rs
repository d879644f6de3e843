//! The real supervisor without a mounted socket of the host; the test is the server at the other end
//! of the runtime's channel.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use oubliette_wire::mux::{MuxSession, MuxStream, answer_challenge, hash_key};
use oubliette_wire::{
    Message, OpenStream, Start, StreamKind, StreamOpened, Supervise, supervisor_methods,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

const KEY: &str = "the container's key";
/// For each stream of the supervisor and each read from it.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

/// A running supervisor.
struct Container {
    directory: TempDir,
    socket_name: String,
    _child: Child,
}

/// The server's side of the channel.
struct Server {
    incoming: mpsc::Receiver<MuxStream>,
    session: tokio::task::JoinHandle<std::io::Result<()>>,
    _channel: Child,
}

impl Container {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket_name = directory.path().to_string_lossy().into_owned();
        let child = Command::new(env!("CARGO_BIN_EXE_oubliette-client"))
            .arg("init")
            .env_clear()
            .env("OUBLIETTE_CARRIED", "1")
            .env("OUBLIETTE_CARRY", &socket_name)
            .env("OUBLIETTE_SOCKET", directory.path().join("mcp/relay.sock"))
            .env("OUBLIETTE_SPOOLS", directory.path())
            .env("OUBLIETTE_CONTAINER_ID", "c1")
            .env("OUBLIETTE_CONTAINER_KEY", KEY)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            directory,
            socket_name,
            _child: child,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("mcp/relay.sock")
    }

    fn channel(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_oubliette-client"))
            .arg("carry")
            .env_clear()
            .env("OUBLIETTE_CARRY", &self.socket_name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    async fn serve(&self) -> Server {
        let mut channel = self.channel();
        let (stdin, stdout) = (
            channel.stdin.take().unwrap(),
            channel.stdout.take().unwrap(),
        );
        let mut stream = tokio::io::join(stdout, stdin);
        answer_challenge(&mut stream, &hash_key(KEY)).await.unwrap();
        let (sender, incoming) = mpsc::channel(64);
        let (_, running) = MuxSession::new(stream, Some(sender));
        Server {
            incoming,
            session: tokio::spawn(running),
            _channel: channel,
        }
    }
}

impl Server {
    /// The next stream, and its first line.
    async fn next(&mut self) -> (Message, BufReader<MuxStream>) {
        let opened = timeout(STREAM_TIMEOUT, self.incoming.recv());
        let mut connection = BufReader::new(opened.await.expect("no stream is opened").unwrap());
        let mut line = String::new();
        let read = timeout(STREAM_TIMEOUT, connection.read_line(&mut line));
        read.await.expect("the stream says nothing").unwrap();
        (serde_json::from_str(&line).unwrap(), connection)
    }
}

#[tokio::test]
async fn commands_and_clients_use_the_runtimes_channel() {
    let container = Container::start();
    let mut server = container.serve().await;
    let (hello, mut control) = server.next().await;
    let hello: Supervise = hello.params().unwrap();
    assert_eq!(
        (hello.container_id.as_str(), hello.container_key.as_str()),
        ("c1", KEY)
    );
    let start = Start {
        process_id: "a".to_owned(),
        argv: ["/bin/sh", "-c", "head -c 3000000 /dev/zero"]
            .map(str::to_owned)
            .to_vec(),
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        cwd: "/".to_owned(),
        user: None,
        pty: None,
        spool_limit: 8 << 20,
        isolated: false,
        streams: vec![OpenStream {
            stream_id: "s".to_owned(),
            process_id: "a".to_owned(),
            kind: StreamKind::Stdout,
            from: 0,
        }],
    };
    let line = Message::request(1, supervisor_methods::START, &start).to_line();
    control.get_mut().write_all(&line).await.unwrap();
    let (opened, mut stream) = server.next().await;
    assert_eq!(opened.params::<StreamOpened>().unwrap().stream_id, "s");
    let mut output = Vec::new();
    stream.read_to_end(&mut output).await.unwrap();
    assert_eq!(output.len(), 3_000_000);

    let mut client = UnixStream::connect(container.socket()).await.unwrap();
    client
        .write_all(b"{\"method\":\"attach\"}\n")
        .await
        .unwrap();
    let (request, mut connection) = server.next().await;
    assert_eq!(request.method.as_deref(), Some("attach"));
    connection
        .get_mut()
        .write_all(b"{\"result\":1}\n")
        .await
        .unwrap();
    drop(connection);
    let mut reply = String::new();
    let read = timeout(STREAM_TIMEOUT, client.read_to_string(&mut reply));
    read.await.expect("the client gets no reply").unwrap();
    assert_eq!(reply, "{\"result\":1}\n");
}

#[tokio::test]
async fn a_second_server_replaces_the_first_and_finds_the_same_processes() {
    let container = Container::start();
    let mut first = container.serve().await;
    let (hello, mut control) = first.next().await;
    let boot = hello.params::<Supervise>().unwrap().boot_id;
    let start = json!({
        "process_id": "a", "argv": ["/bin/sleep", "1000"], "cwd": "/", "spool_limit": 1000,
    });
    let line = Message::request(1, supervisor_methods::START, &start).to_line();
    control.get_mut().write_all(&line).await.unwrap();
    let mut reply = String::new();
    let read = timeout(STREAM_TIMEOUT, control.read_line(&mut reply));
    read.await.expect("the start is not confirmed").unwrap();
    assert!(reply.contains("pid"), "{reply}");
    // The first server is still connected, as one that hangs would be.
    let mut second = container.serve().await;
    let (hello, _control) = second.next().await;
    let hello: Supervise = hello.params().unwrap();
    assert_eq!(hello.boot_id, boot);
    assert_eq!(hello.processes.len(), 1);
    let ended = timeout(STREAM_TIMEOUT, first.session);
    assert!(ended.await.is_ok(), "the first session did not end");
}

#[tokio::test]
async fn a_peer_without_the_key_receives_nothing() {
    let container = Container::start();
    let mut channel = container.channel();
    let (stdin, stdout) = (
        channel.stdin.take().unwrap(),
        channel.stdout.take().unwrap(),
    );
    let mut stream = tokio::io::join(stdout, stdin);
    answer_challenge(&mut stream, &hash_key("a guess"))
        .await
        .unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"", "it received bytes without the key");
    // It does not keep the server from connecting.
    let mut server = container.serve().await;
    assert_eq!(
        server.next().await.0.method.as_deref(),
        Some(supervisor_methods::SUPERVISE)
    );
}
