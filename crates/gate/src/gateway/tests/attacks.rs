//! Requests with which a container would get a key, the key of another one, or calls that are not counted.

use super::*;
use crate::gateway::reservations::Decision;

/// A request without a placeholder in its body.
fn head(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\nx-api-key: KEY\r\nConnection: close\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_an_upstream_could_read_otherwise_are_refused() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "{}"));
    let bench = Bench::new(address);
    let hidden = "POST /v1/batches HTTP/1.1\r\nX-A: ";
    let body = format!("Content-Length: {}\r\n\r\n{hidden}", hidden.len());
    let chunked = "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    for (method, path, rest, status) in [
        ("GET", "/anthropic/v1/models", body.as_str(), "400"),
        ("GET", "/anthropic/v1/models", chunked, "400"),
        ("HEAD", "/anthropic/v1/models", body.as_str(), "400"),
        ("TRACE", "/anthropic/v1/models", "\r\n", "405"),
        ("PUT", "/anthropic/v1/messages", "\r\n", "405"),
        ("post", "/anthropic/v1/messages", "\r\n", "405"),
        ("POST", "/anthropic/v1/message%73", "\r\n", "400"),
        ("POST", "/anthropic/v1/messages/batche%73", "\r\n", "400"),
        ("GET", "/anthropic/v1/..;/models", "\r\n", "400"),
        ("GET", "/anthropic/v1/%252e%252e/models", "\r\n", "400"),
        ("GET", "/anthropic/v1/models%0d%0a", "\r\n", "400"),
        ("GET", "/anthropic/v1/files", "\r\n", "404"),
        (
            "POST",
            "/anthropic/v1/realtime/client_secrets",
            "\r\n",
            "404",
        ),
    ] {
        let answer = bench.exchange(&(head(method, path) + rest)).await;
        let expected = format!("HTTP/1.1 {status}");
        assert!(answer.starts_with(&expected), "{method} {path}: {answer}");
    }
    assert!(requests.try_recv().is_err(), "nothing reached the provider");
    let overridden = head("GET", "/anthropic/v1/models") + "X-HTTP-Method-Override: POST\r\n\r\n";
    assert!(
        bench
            .exchange(&overridden)
            .await
            .starts_with("HTTP/1.1 200")
    );
    let request = requests.recv().unwrap().to_ascii_lowercase();
    assert!(!request.contains("override"), "{request}");
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_share_no_connection() {
    let (addresses, connected) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sender = addresses.clone();
            std::thread::spawn(move || {
                let mut stream = stream;
                while read_request(&stream).is_some() {
                    sender.send(stream.peer_addr().unwrap()).unwrap();
                    reply(&mut stream, "", "{}");
                }
            });
        }
    });
    let bench = Bench::new(upstream);
    let key = ApiKey::from_random([4; 32]);
    bench.gate.gateway.grants.set(SessionGrants {
        session: "t".to_owned(),
        container: "two".to_owned(),
        grants: vec![Grant {
            placeholder: placeholder_id(&key),
            provider: Provider::Anthropic,
            upstream: format!("http://{upstream}"),
            secret: GrantedSecret::new("another"),
        }],
        git: Vec::new(),
        budget: None,
    });
    let request = head("GET", "/anthropic/v1/models") + "\r\n";
    let mut used = Vec::new();
    for (container, key) in [("one", &bench.key), ("one", &bench.key), ("two", &key)] {
        let request = request.replace("KEY", key.reveal());
        let answer = bench.exchange_in(container, &request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        used.push(connected.recv_timeout(TEST_TIMEOUT).unwrap());
    }
    assert_eq!(used[0], used[1], "a container uses its connection again");
    assert_ne!(used[1], used[2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_begun_is_not_sent_after_its_placeholder_has_ended() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "{}"));
    let bench = Bench::new(address);
    let mut stream = bench.connect("one").await;
    let request = post("/anthropic/v1/messages", r#"{"max_tokens":5}"#);
    let request = request.replace("KEY", bench.key.reveal());
    let (first, rest) = request.split_at(request.len() - 5);
    stream.write_all(first.as_bytes()).await.unwrap();
    // The gate has read the head when it holds memory for the body.
    let whole = BufferPool::of_gate().free_kib();
    let reads = async {
        while bench.gate.gateway.buffered.free_kib() == whole {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_TIMEOUT, reads).await.unwrap();
    bench.gate.gateway.grants.set(SessionGrants {
        session: "s".to_owned(),
        container: "one".to_owned(),
        grants: Vec::new(),
        git: Vec::new(),
        budget: None,
    });
    stream.write_all(rest.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = timeout(TEST_TIMEOUT, stream.read_to_string(&mut answer));
    read.await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert!(requests.try_recv().is_err(), "nothing reached the provider");
    assert!(bench.charges().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nothing_waits_for_costs_what_it_can() {
    let (address, requests) = provider(|_, _| std::thread::sleep(Duration::from_secs(1)));
    let bench = Bench::new(address);
    let mut stream = bench.connect("one").await;
    let request = post("/anthropic/v1/messages", r#"{"max_tokens":5000}"#);
    let request = request.replace("KEY", bench.key.reveal());
    stream.write_all(request.as_bytes()).await.unwrap();
    requests.recv_timeout(TEST_TIMEOUT).unwrap();
    drop(stream);
    let charge = bench.charge().await;
    assert_eq!((charge.tokens.output, charge.is_estimate), (5000, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_cannot_be_counted_are_refused_if_there_is_a_budget() {
    let (address, requests) = provider(|_, stream| reply(stream, "", USAGE));
    let bench = budget::bench_of(address, Provider::OpenAi, budget::WAITS);
    let mut link = bench.gate.gateway.reservations.connect_server();
    let responses = |body: &str| post("/openai/v1/responses", body);
    let gzip = responses("{}").replace("Host: x", "Host: x\r\nContent-Encoding: gzip");
    let unsized_body = head("POST", "/openai/v1/embeddings")
        + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    for (request, status) in [
        (responses(r#"{"background":true}"#), "400"),
        (responses(r#"{"max_output_tokens":1e5}"#), "400"),
        (responses(r#"{"x":"\ud800"}"#), "400"),
        (gzip, "415"),
        (unsized_body, "411"),
    ] {
        let answer = bench.exchange(&request).await;
        let expected = format!("HTTP/1.1 {status}");
        assert!(answer.starts_with(&expected), "{request}: {answer}");
    }
    assert!(requests.try_recv().is_err(), "nothing reached the provider");
    let request = responses(r#"{"max_output_tokens":7}"#);
    let deciding = budget::decide(&bench, &mut link, Decision::Granted);
    let (answer, ()) = tokio::join!(bench.exchange(&request), deciding);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
