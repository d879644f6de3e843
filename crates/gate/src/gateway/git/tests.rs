//! Git hosts that behave badly, and agents that do.

use std::net::SocketAddr;

use oubliette_model::ApiKey;

use super::super::grants::{GrantedSecret, SessionGrants, placeholder_id};
use super::super::tests::{Bench, provider, reply};
use super::pkt_line::{push_flush, push_packet};
use super::*;
use crate::journal::read_journal;

const REAL: &str = "ghp_real0123456789abcdef";
/// Of `x-access-token` and the token.
const BASIC: &str = "eC1hY2Nlc3MtdG9rZW46Z2hwX3JlYWwwMTIzNDU2Nzg5YWJjZGVm";
const REFS: &str = "/git/git.test/acme/app.git/info/refs?service=git-upload-pack";

fn bench(upstream: SocketAddr) -> Bench {
    let bench = Bench::new(upstream);
    let grant = GitGrant {
        placeholder: placeholder_id(&bench.key),
        host: "git.test".to_owned(),
        upstream: format!("http://{upstream}"),
        path: "/acme".to_owned(),
        user: "x-access-token".to_owned(),
        secret: GrantedSecret::new(REAL),
        push_branches: vec!["oubliette/*".parse().unwrap()],
    };
    bench.gate.gateway.grants.set(SessionGrants {
        session: "s".to_owned(),
        container: "one".to_owned(),
        grants: Vec::new(),
        git: vec![grant],
        budget: None,
    });
    bench
}

fn get(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\nConnection: close\r\nCookie: a=b\r\n\
         Git-Protocol: version=2\r\nX-Other: y\r\n\r\n"
    )
}

fn push(refs: &[&str], more: &str) -> String {
    let mut body = Vec::new();
    let (old, new) = ("1".repeat(40), "2".repeat(40));
    for (number, name) in refs.iter().enumerate() {
        let capabilities = if number == 0 { "\0report-status" } else { "" };
        push_packet(
            &mut body,
            format!("{old} {new} {name}{capabilities}").as_bytes(),
        );
    }
    push_flush(&mut body);
    let body = String::from_utf8(body).unwrap() + "PACKdata";
    format!(
        "POST /git/git.test/acme/app.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\n\
         Content-Type: application/x-git-receive-pack-request\r\n{more}Connection: close\r\nGit-Protocol: version=2\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_gets_the_credential_and_only_what_git_sends() {
    let leaks =
        format!("X-Echo: {BASIC}\r\nSet-Cookie: session=1\r\nContent-Type: text/{REAL}\r\n");
    let (address, requests) = provider(move |_, stream| reply(stream, &leaks, "refs"));
    let bench = bench(address);
    let answer = bench.exchange(&get(REFS)).await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("refs"),
        "{answer}"
    );
    for hidden in [BASIC, REAL, "session=1"] {
        assert!(!answer.contains(hidden), "{answer}");
    }
    let request = requests.recv().unwrap();
    assert!(
        request.starts_with("GET /acme/app.git/info/refs?service=git-upload-pack HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains(&format!("authorization: Basic {BASIC}\r\n")),
        "{request}"
    );
    assert!(request.contains("git-protocol: version=2"), "{request}");
    for absent in [bench.key.reveal(), "a=b", "x-other"] {
        assert!(!request.contains(absent), "{request}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_keys_hosts_repositories_and_requests_do_not_reach_the_host() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "never"));
    let bench = bench(address);
    let forged = get(REFS).replace("KEY", ApiKey::from_random([9; 32]).reveal());
    let real = get(REFS).replace("KEY", REAL);
    for (container, request) in [
        ("two", get(REFS)),
        ("one", forged),
        ("one", real),
        ("one", get(REFS).replace("Authorization", "X-Authorization")),
        ("one", get(&REFS.replace("git.test", "other.test"))),
        ("one", get(&REFS.replace("/acme/", "/other/"))),
        ("one", get("/git/git.test/acme/app.git/HEAD")),
        ("one", get("/git/git.test/acme/app.git/info/refs")),
        ("one", get("/git/git.test/acme/app.git/info/lfs/locks")),
        ("one", get(REFS).replace("GET /", "GET http://git.test/")),
        ("one", get(REFS).replace("X-Other", "Upgrade")),
    ] {
        let answer = bench.exchange_in(container, &request).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{request} {answer}");
        assert!(answer.contains("Oubliette: "), "{answer}");
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_goes_on_as_it_came_or_not_at_all() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "done"));
    let bench = bench(address);
    let allowed = push(&["refs/heads/oubliette/a"], "");
    let answer = bench.exchange(&allowed).await;
    assert!(answer.ends_with("done"), "{answer}");
    let request = requests.recv().unwrap();
    let body = |text: &str| text.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(body(&request), body(&allowed));
    assert!(!request.contains("git-protocol"), "{request}");
    let refused = push(&["refs/heads/oubliette/a", "refs/heads/main"], "");
    let answer = bench.exchange(&refused).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains("ng refs/heads/main not allowed, only refs/heads/oubliette/*"),
        "{answer}"
    );
    let compressed = push(&["refs/heads/oubliette/a"], "Content-Encoding: gzip\r\n");
    let empty = push(&[], "");
    let wrong = allowed.replace("receive-pack-request", "upload-pack-request");
    for request in [compressed, empty, wrong] {
        let answer = bench.exchange(&request).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    }
    assert!(requests.try_recv().is_err());
    let directory = bench.path().join(crate::JOURNAL_DIR);
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let entries = read_journal(&directory, "p", 100, |_| true).unwrap_or_default();
        let text = format!("{entries:?}");
        assert!(!text.contains("main") && !text.contains("acme"), "{text}");
        if text.contains(REFS_DENIED) && text.contains("\"git push\"") {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{text}");
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_in_pieces_is_put_together() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "done"));
    let bench = bench(address);
    let request = push(&["refs/heads/oubliette/a"], "");
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let length = body.len();
    let head = head.replace(
        &format!("Content-Length: {length}"),
        "Transfer-Encoding: chunked",
    );
    let chunks: String = body.chars().map(|c| format!("1\r\n{c}\r\n")).collect();
    let chunked = format!("{head}\r\n\r\n{chunks}0\r\n\r\n");
    let main = chunked.replace("1\r\na\r\n1\r\n\0", "1\r\n \r\n1\r\n\0");
    let answer = bench.exchange(&main).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(requests.try_recv().is_err());
    // The stand-in reads no chunks; what matters is that the request is sent at all.
    let answer = bench.exchange(&chunked).await;
    assert!(answer.contains("done"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_and_refused_credentials_end_at_the_gate() {
    use std::io::Write;
    let (address, requests) = provider(|request, stream| {
        let head = if request.contains("/acme/moved") {
            "302 Found\r\nLocation: https://evil.test/x\r\nContent-Length: 0\r\n\r\n"
        } else if request.contains("/acme/local") {
            "307 Temporary Redirect\r\nLocation: http://127.0.0.1:22/x\r\nContent-Length: 0\r\n\r\n"
        } else {
            "401 Unauthorized\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
        };
        let _ = write!(stream, "HTTP/1.1 {head}");
    });
    let bench = bench(address);
    let moved = bench
        .exchange(&get(&REFS.replace("app.git", "moved")))
        .await;
    assert!(moved.starts_with("HTTP/1.1 403"), "{moved}");
    assert!(
        moved.contains("redirects to https://evil.test/x"),
        "{moved}"
    );
    assert!(!moved.to_lowercase().contains("location:"), "{moved}");
    let local = bench
        .exchange(&get(&REFS.replace("app.git", "local")))
        .await;
    assert!(local.starts_with("HTTP/1.1 403"), "{local}");
    assert!(
        local.contains("redirects to http://127.0.0.1:22/x"),
        "{local}"
    );
    let refused = bench.exchange(&get(REFS)).await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert!(
        refused.contains("does not accept the credential"),
        "{refused}"
    );
    assert_eq!(requests.try_iter().count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_cannot_be_read_does_not_reach_the_host() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "never"));
    let bench = bench(address);
    let request = push(&["refs/heads/oubliette/a"], "");
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let with_body = |body: &str| {
        let length = format!("Content-Length: {}", body.len());
        let own = head.lines().last().unwrap();
        format!("{}\r\n\r\n{body}", head.replace(own, &length))
    };
    let line = |length: &str| body.replacen(&body[..4], length, 1);
    let id = "1".repeat(40);
    let many: String = (0..20_000)
        .map(|n| format!("0078{id} {id} refs/heads/oubliette/{n:0>13}"))
        .collect();
    for bad in [
        // A packet that is longer than packets are, one that is longer than the body, and no packets.
        with_body(&line("ffff")),
        with_body(&line("fff0")),
        with_body(&line("0001")),
        with_body("PACK0000"),
        with_body(""),
        // More refs than are taken at once, with an end and without one.
        with_body(&format!("{many}0000PACK")),
        with_body(&many),
        // A second list behind an empty one.
        with_body(&format!("0000{body}")),
    ] {
        let answer = bench.exchange(&bad).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        assert!(answer.contains("Oubliette: "), "{answer}");
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_breaks_off_is_not_whole_for_the_host() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (address, requests) = provider(|_, stream| reply(stream, "", "done"));
    let bench = bench(address);
    let request = push(&["refs/heads/oubliette/a"], "").replace("KEY", bench.key.reveal());
    let list_end = request.find("0000PACK").unwrap();
    // In the head, in the list, and in the data after it.
    for end in [40, list_end - 10, request.len() - 1] {
        let mut stream = bench.connect("one").await;
        stream.write_all(&request.as_bytes()[..end]).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        let _ = timeout(Duration::from_secs(30), reading).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.contains("done"), "{answer}");
    }
    // The stand-in reports requests that are complete.
    assert!(requests.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_do_not_end_leave_room_for_others() {
    use tokio::io::AsyncWriteExt;
    let (address, _requests) = provider(|_, stream| reply(stream, "", "done"));
    let bench = bench(address);
    let whole = bench.gate.gateway.buffered.free_kib();
    let request = push(&["refs/heads/oubliette/a"], "").replace("KEY", bench.key.reveal());
    let list_end = request.find("0000PACK").unwrap();
    let mut open = Vec::new();
    for _ in 0..50 {
        let mut stream = bench.connect("one").await;
        stream
            .write_all(&request.as_bytes()[..list_end])
            .await
            .unwrap();
        open.push(stream);
    }
    let answer = bench.exchange(&push(&["refs/heads/oubliette/b"], "")).await;
    assert!(answer.ends_with("done"), "{answer}");
    // Each holds what it sent, not what it could send.
    let held = whole - bench.gate.gateway.buffered.free_kib();
    assert!(held <= 50, "{held}");
    let refused = push(&["refs/heads/oubliette/a"], "").replace("report-status", "push-options=");
    let answer = bench.exchange(&refused).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("push options"), "{answer}");
}
