//! The driver against an engine that answers at first and then fails.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::*;

/// How the fake engine handles every request but those of the connection.
#[derive(Clone, Copy)]
enum FailureMode {
    Silent = 0,
    Closing = 1,
    Failing = 2,
    /// Starts a response and never ends it.
    Endless = 3,
}

struct FakeEngine {
    directory: tempfile::TempDir,
    mode: Arc<AtomicU8>,
}

impl FakeEngine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("engine.sock")).unwrap();
        let mode = Arc::new(AtomicU8::new(0));
        let shared = mode.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), shared.clone());
                std::thread::spawn(move || serve_request(stream, shared.load(Ordering::SeqCst)));
            }
        });
        Self { directory, mode }
    }

    async fn connect(&self) -> Docker {
        let socket = self.directory.path().join("engine.sock");
        let env = EngineEnv {
            docker_host: Some(format!("unix://{}", socket.display()).into()),
            runtime_directory: None,
        };
        let (engine, capabilities) = EngineClient::find(&env).await.unwrap();
        Docker {
            engine,
            capabilities,
            names: DataDirNames::new(Path::new("/h")),
        }
    }

    fn set_mode(&self, mode: FailureMode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }
}

fn serve_request(mut stream: UnixStream, mode: u8) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let request = lines.next().unwrap().unwrap();
    let _headers: Vec<String> = lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .collect();
    let mut reply = |status: &str, body: &str| {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n");
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
    };
    if request.contains("/version") {
        return reply("200 OK", r#"{"ApiVersion":"1.41","Version":"9.9"}"#);
    }
    if request.contains("/info") {
        return reply("200 OK", r#"{"NCPU":4,"MemoryLimit":true}"#);
    }
    match mode {
        1 => {}
        2 => reply("500 Internal Server Error", r#"{"message":"disk full"}"#),
        3 => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            std::thread::park();
        }
        _ => std::thread::park(),
    }
}

#[tokio::test]
async fn an_engine_that_stops_answering_times_out() {
    let fake = FakeEngine::new();
    let docker = fake.connect().await;
    let id = ContainerId::new("c1").unwrap();
    for mode in [FailureMode::Silent, FailureMode::Endless] {
        fake.set_mode(mode);
        // A paused clock advances by itself when every task waits.
        tokio::time::pause();
        let outcomes = [
            docker.list().await.map(drop),
            docker.inspect(&id).await.map(drop),
            docker.logs(&id, 5).await.map(drop),
        ];
        tokio::time::resume();
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert!(matches!(error, RuntimeError::Unavailable(_)), "{error:?}");
            assert!(error.to_string().contains("in time"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_closed_connection_is_unavailable_and_an_error_response_is_a_failure() {
    let fake = FakeEngine::new();
    let docker = fake.connect().await;
    assert_eq!(
        docker.description().split(" at ").next(),
        Some("Docker 9.9"),
        "{}",
        docker.description()
    );
    let id = ContainerId::new("c1").unwrap();
    fake.set_mode(FailureMode::Closing);
    let closed = docker.start(&id).await.unwrap_err();
    assert!(matches!(closed, RuntimeError::Unavailable(_)), "{closed:?}");
    fake.set_mode(FailureMode::Failing);
    let failed = docker.remove(&id).await.unwrap_err();
    assert!(matches!(&failed, RuntimeError::Failed(text) if text == "disk full"));
}
