//! The gateway against providers that behave badly, and agents that do.

mod attacks;
mod budget;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use oubliette_model::{ApiKey, NetworkRules};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::*;
use crate::container::Gate;
use crate::control::Registration;
use crate::limits::Limits;
use crate::{EGRESS_SOCKET_NAME, socket};

const REAL: &str = "sk-real-0123456789abcdef";
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A provider that a test plays: each connection is given to the function, with what the gate sent until the end of
/// its head and of the body that it announces.
pub(super) fn provider(
    serve: impl Fn(&str, &mut TcpStream) + Send + 'static,
) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            while let Some(request) = read_request(&stream) {
                let _ = sender.send(request.clone());
                serve(&request, &mut stream);
            }
        }
    });
    (address, requests)
}

fn read_request(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::with_capacity(1, stream);
    let (mut head, mut line, mut length) = (String::new(), String::new(), 0);
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&std::mem::take(&mut line));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    (!head.is_empty()).then(|| head + "\r\n" + &String::from_utf8_lossy(&body))
}

pub(super) struct Bench {
    _directory: TempDir,
    pub(super) gate: Arc<Gate>,
    pub(super) key: ApiKey,
}

impl Bench {
    pub(super) fn new(upstream: SocketAddr) -> Self {
        Self::with(upstream, GatewayLimits::default())
    }

    fn with(upstream: SocketAddr, limits: GatewayLimits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut gate = Gate::new(directory.path(), Limits::for_open_files(1024)).unwrap();
        let charges = directory.path().join("test");
        gate.gateway = Gateway::with_limits(&charges, Resolver::of_server(None), limits).unwrap();
        let gate = Arc::new(gate);
        std::fs::create_dir(directory.path().join("run")).unwrap();
        for container in ["one", "two"] {
            std::fs::create_dir(directory.path().join(container)).unwrap();
            let registration = Registration {
                container: container.to_owned(),
                project: "p".to_owned(),
                directory: directory.path().join(container),
                rules: NetworkRules::default(),
                version: 1,
            };
            gate.set(registration).unwrap();
        }
        let key = ApiKey::from_random([3; 32]);
        gate.gateway.grants.set(SessionGrants {
            session: "s".to_owned(),
            container: "one".to_owned(),
            grants: vec![Grant {
                placeholder: placeholder_id(&key),
                provider: Provider::Anthropic,
                upstream: format!("http://{upstream}"),
                secret: GrantedSecret::new(REAL),
            }],
            git: Vec::new(),
            budget: None,
        });
        Self {
            _directory: directory,
            gate,
            key,
        }
    }

    pub(super) fn path(&self) -> &Path {
        self._directory.path()
    }

    pub(super) async fn connect(&self, container: &str) -> UnixStream {
        let mut stream = socket::connect(&self.path().join(container), EGRESS_SOCKET_NAME)
            .await
            .unwrap();
        stream.write_all(b"\"gateway\"\n").await.unwrap();
        let mut reply = [0; 9];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"\"opened\"\n");
        stream
    }

    /// Sends bytes, with the placeholder for `KEY`, and reads until the connection ends.
    pub(super) async fn exchange_in(&self, container: &str, request: &str) -> String {
        let mut stream = self.connect(container).await;
        let request = request.replace("KEY", self.key.reveal());
        // A refused request may not be read to its end.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut reply = Vec::new();
        let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut reply))
            .await
            .unwrap();
        String::from_utf8_lossy(&reply).into_owned()
    }

    pub(super) async fn exchange(&self, request: &str) -> String {
        self.exchange_in("one", request).await
    }

    fn charges(&self) -> Vec<Charge> {
        let directory = self.path().join("test").join(CHARGES_DIR);
        read_charges(&directory, 0).unwrap().0
    }

    /// Waits until there is a charge.
    async fn charge(&self) -> Charge {
        let mut end = self.gate.gateway.charges.end();
        while self.charges().is_empty() {
            timeout(TEST_TIMEOUT, end.changed()).await.unwrap().unwrap();
        }
        self.charges().remove(0)
    }
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nx-api-key: KEY\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub(super) fn reply(stream: &mut TcpStream, head: &str, body: &str) {
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\n{head}Content-Length: {length}\r\n\r\n{body}"
    );
}

const USAGE: &str = r#"{"model":"claude-x","usage":{"input_tokens":12,"output_tokens":5}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_out_with_the_real_key_and_is_counted() {
    let (address, requests) =
        provider(|_, stream| reply(stream, "Content-Type: application/json\r\n", USAGE));
    let bench = Bench::new(address);
    let body = r#"{"model":"claude-x"}"#;
    let answer = bench
        .exchange(&post("/anthropic/v1/messages?beta=true", body))
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with(USAGE),
        "{answer}"
    );
    let request = requests.recv().unwrap();
    assert!(
        request.starts_with("POST /v1/messages?beta=true HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(request.contains(&format!("x-api-key: {REAL}\r\n")) && request.ends_with(body));
    assert!(!request.contains(bench.key.reveal()));
    // Before the response was complete.
    let charge = bench.charges().remove(0);
    assert_eq!(
        (charge.session.as_str(), charge.model.as_str()),
        ("s", "claude-x")
    );
    assert_eq!(
        (
            charge.tokens.input,
            charge.tokens.output,
            charge.is_estimate
        ),
        (12, 5, false)
    );
    let text = std::fs::read_to_string(bench.path().join("network/p.jsonl")).unwrap_or_default();
    assert!(!text.contains("beta") && !text.contains(REAL));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_not_gone_before_the_client_closes_it() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (address, _requests) = provider(|_, stream| reply(stream, "", USAGE));
    let bench = Bench::new(address);
    let mut stream = bench.connect("one").await;
    let request = post("/anthropic/v1/messages", "{}").replace("KEY", bench.key.reveal());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    timeout(TEST_TIMEOUT, reading).await.unwrap().unwrap();
    assert!(answer.ends_with(USAGE.as_bytes()));
    let mut fds = [PollFd::new(&stream, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    assert!(!fds[0].revents().contains(PollFlags::HUP));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placeholder_is_refused_in_another_container_and_after_its_end() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "{}"));
    let bench = Bench::new(address);
    let request = post("/anthropic/v1/messages", "{}");
    let answer = bench.exchange_in("two", &request).await;
    assert!(
        answer.starts_with("HTTP/1.1 401") && answer.contains("authentication_error"),
        "{answer}"
    );
    bench.gate.gateway.grants.set(SessionGrants {
        session: "s".to_owned(),
        container: "one".to_owned(),
        grants: Vec::new(),
        git: Vec::new(),
        budget: None,
    });
    assert!(bench.exchange(&request).await.starts_with("HTTP/1.1 401"));
    assert!(requests.try_recv().is_err(), "nothing reached the provider");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_passed_on_and_not_followed() {
    let (other, stolen) = provider(|_, stream| reply(stream, "", "{}"));
    let (address, _requests) = provider(move |_, stream| {
        let _ = write!(
            stream,
            "HTTP/1.1 307 Moved\r\nLocation: http://{other}/v1/messages\r\nX-Echo: {REAL}\r\nContent-Length: 0\r\n\r\n"
        );
    });
    let bench = Bench::new(address);
    let answer = bench.exchange(&post("/anthropic/v1/messages", "{}")).await;
    assert!(
        answer.starts_with("HTTP/1.1 307") && answer.contains(&format!("http://{other}/")),
        "{answer}"
    );
    assert!(!answer.contains(REAL), "{answer}");
    assert!(stolen.try_recv().is_err());
    assert!(bench.charges().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_could_be_read_in_two_ways_do_not_reach_the_provider_as_two() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "{}"));
    let bench = Bench::new(address);
    let head = "POST /anthropic/v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: KEY\r\nConnection: close\r\n";
    let hidden = "GET /v1/hidden HTTP/1.1\r\nHost: x\r\n\r\n";
    for framing in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 7\r\n\r\n",
        "Content-Length: 0, 7\r\n\r\n",
        "Content-Length : 0\r\n\r\n",
        "X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    ] {
        bench.exchange(&format!("{head}{framing}{hidden}")).await;
    }
    while let Ok(request) = requests.try_recv() {
        assert!(request.starts_with("POST /v1/messages"), "{request}");
        assert!(
            !request.contains("hidden") && !request.contains("chunked"),
            "{request}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_bodies_of_agents_are_bounded() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "{}"));
    let limits = GatewayLimits {
        max_call_bytes: 1 << 20,
        request: BodyLimits {
            max_bytes: 2 << 20,
            idle: Duration::from_millis(200),
        },
        ..GatewayLimits::default()
    };
    let bench = Bench::with(address, limits);
    let long = format!(
        "GET /anthropic/v1/models HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(100 << 10)
    );
    assert!(bench.exchange(&long).await.starts_with("HTTP/1.1 431"));
    let many = format!(
        "GET /anthropic/v1/models HTTP/1.1\r\n{}\r\n",
        "X: y\r\n".repeat(200)
    );
    assert!(bench.exchange(&many).await.starts_with("HTTP/1.1 431"));
    let announced = "POST /anthropic/v1/messages HTTP/1.1\r\nx-api-key: KEY\r\nConnection: close\r\nContent-Length: 9999999999\r\n\r\n{";
    assert!(bench.exchange(announced).await.starts_with("HTTP/1.1 413"));
    let chunk = format!("80000\r\n{}\r\n", "x".repeat(0x80000)).repeat(4);
    let endless = format!(
        "POST /anthropic/v1/messages HTTP/1.1\r\nx-api-key: KEY\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}"
    );
    assert!(bench.exchange(&endless).await.starts_with("HTTP/1.1 413"));
    let stalled = "POST /anthropic/v1/messages HTTP/1.1\r\nx-api-key: KEY\r\nConnection: close\r\nContent-Length: 5\r\n\r\n{";
    assert!(bench.exchange(stalled).await.starts_with("HTTP/1.1 408"));
    assert!(requests.try_recv().is_err());
    let free = bench.gate.gateway.buffered.free_kib();
    assert_eq!(
        free,
        BufferPool::of_gate().free_kib(),
        "what was held is given back"
    );
    let upgrade = "GET /anthropic/v1/responses HTTP/1.1\r\nx-api-key: KEY\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut stream = bench.connect("one").await;
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    timeout(TEST_TIMEOUT, stream.read_exact(&mut status))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&status, b"HTTP/1.1 426");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_never_answers_or_never_ends_is_cut() {
    let limits = GatewayLimits {
        response_head: Duration::from_millis(300),
        response: BodyLimits {
            max_bytes: 1 << 20,
            idle: Duration::from_millis(300),
        },
        ..GatewayLimits::default()
    };
    let (silent, _requests) = provider(|_, _| {});
    let bench = Bench::with(silent, limits);
    let request = post("/anthropic/v1/messages", r#"{"model":"m"}"#);
    let answer = bench.exchange(&request).await;
    assert!(
        answer.starts_with("HTTP/1.1 504") && answer.contains("api_error"),
        "{answer}"
    );
    assert!(bench.charge().await.is_estimate, "it may have worked on it");

    let (heads, _requests) = provider(|_, stream| {
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nX: {}\r\n\r\n",
            "x".repeat(1 << 20)
        );
    });
    assert!(
        Bench::with(heads, limits)
            .exchange(&request)
            .await
            .starts_with("HTTP/1.1 502")
    );

    let (gigabyte, _requests) = provider(|_, stream| {
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1073741824\r\n\r\n"
        );
        let piece = vec![b'x'; 1 << 20];
        while stream.write_all(&piece).is_ok() {}
    });
    let bench = Bench::with(gigabyte, limits);
    let answer = bench.exchange(&request).await;
    assert!(answer.len() <= (1 << 20) + 500, "{}", answer.len());
    assert!(bench.charge().await.is_estimate);

    let (stalling, _requests) = provider(|_, stream| {
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n"
        );
    });
    let bench = Bench::with(stalling, limits);
    let answer = bench.exchange(&request).await;
    assert!(
        answer.contains("data:") && !answer.ends_with("0\r\n\r\n"),
        "{answer}"
    );
    assert!(bench.charge().await.is_estimate);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_not_there_costs_nothing() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let bench = Bench::new(closed);
    let answer = bench.exchange(&post("/anthropic/v1/messages", "{}")).await;
    assert!(
        answer.starts_with("HTTP/1.1 502") && answer.contains("cannot be reached"),
        "{answer}"
    );
    assert!(bench.charges().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_arrives_as_it_is_made_and_an_agent_that_leaves_is_charged() {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let (address, _requests) = provider(move |_, stream| {
        let start = r#"data: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":70,"output_tokens":1}}}"#;
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{start}\n\n"
        );
        let _ = wait.lock().unwrap().recv();
    });
    let bench = Bench::new(address);
    let mut stream = bench.connect("one").await;
    let request = post("/anthropic/v1/messages", r#"{"model":"m","stream":true}"#);
    stream
        .write_all(request.replace("KEY", bench.key.reveal()).as_bytes())
        .await
        .unwrap();
    let mut seen = String::new();
    while !seen.contains("message_start") {
        let mut piece = [0; 1000];
        let read = timeout(TEST_TIMEOUT, stream.read(&mut piece))
            .await
            .unwrap()
            .unwrap();
        assert!(read > 0);
        seen.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    drop(stream);
    let charge = bench.charge().await;
    assert_eq!((charge.tokens.input, charge.is_estimate), (70, true));
    go.send(()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_tells_the_gate_its_tokens_and_the_agent_only_what_it_asked_for() {
    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}"#;
    let (address, requests) = provider(move |_, stream| {
        let events = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"hi\"}}}}]}}\n\n{usage}\n\ndata: [DONE]\n\n"
        );
        reply(stream, "Content-Type: text/event-stream\r\n", &events);
    });
    let bench = Bench::new(address);
    let answer = bench
        .exchange(&post(
            "/anthropic/v1/chat/completions",
            r#"{"model":"m","stream":true}"#,
        ))
        .await;
    assert!(
        answer.contains("hi") && answer.contains("[DONE]") && !answer.contains("prompt_tokens"),
        "{answer}"
    );
    let request = requests.recv().unwrap();
    let body: Value = serde_json::from_str(request.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["stream_options"]["include_usage"], true);
    let charge = bench.charges().remove(0);
    assert_eq!(
        (
            charge.tokens.input,
            charge.tokens.output,
            charge.is_estimate
        ),
        (9, 4, false)
    );
    let batch = bench
        .exchange(&post("/anthropic/v1/messages/batches", "{}"))
        .await;
    assert!(batch.starts_with("HTTP/1.1 403"), "{batch}");
}
