//! Requests of sessions with a budget, with a server that a test plays.

use super::*;
use crate::gateway::protocol::ToServer;
use crate::gateway::reservations::{Decision, ServerLink};

pub(super) const WAITS: BudgetWaits = BudgetWaits {
    hold_ms: 30,
    server_ms: 30_000,
};

/// A bench whose placeholder is for this provider, in a session with a budget.
pub(super) fn bench_of(upstream: SocketAddr, provider: Provider, waits: BudgetWaits) -> Bench {
    let bench = Bench::new(upstream);
    bench.gate.gateway.grants.set(SessionGrants {
        session: "s".to_owned(),
        container: "one".to_owned(),
        grants: vec![Grant {
            placeholder: placeholder_id(&bench.key),
            provider,
            upstream: format!("http://{upstream}"),
            secret: GrantedSecret::new(REAL),
        }],
        git: Vec::new(),
        budget: Some(waits),
    });
    bench
}

async fn next(link: &mut ServerLink) -> ToServer {
    let received = timeout(TEST_TIMEOUT, link.messages.recv()).await;
    received.unwrap().unwrap()
}

/// Decides about the next call.
pub(super) async fn decide(bench: &Bench, link: &mut ServerLink, decision: Decision) {
    let ToServer::Reserve(asked) = next(link).await else {
        panic!("no call was asked for");
    };
    let tokens = Some(asked.tokens).filter(|_| decision == Decision::Granted);
    bench
        .gate
        .gateway
        .reservations
        .decide(asked.id, decision, tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_room_is_forbidden_in_the_form_of_each_provider() {
    for (provider, path, expected) in [
        (
            Provider::Anthropic,
            "/anthropic/v1/messages",
            r#""type":"permission_error""#,
        ),
        (
            Provider::OpenAi,
            "/openai/v1/responses",
            r#""code":"permission_error""#,
        ),
        (
            Provider::Gemini,
            "/gemini/v1beta/models/m:generateContent",
            r#""status":"PERMISSION_DENIED""#,
        ),
    ] {
        let (address, requests) = super::provider(|_, stream| reply(stream, "", "{}"));
        let bench = bench_of(address, provider, WAITS);
        let mut link = bench.gate.gateway.reservations.connect_server();
        let request = post(path, "{}");
        for decision in [Decision::Held, Decision::Refused("too much".to_owned())] {
            let is_held = decision == Decision::Held;
            let deciding = decide(&bench, &mut link, decision);
            let (answer, ()) = tokio::join!(bench.exchange(&request), deciding);
            assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
            let message = if is_held { "max_cost_usd" } else { "too much" };
            assert!(answer.contains(expected), "{answer}");
            assert!(answer.contains(message), "{answer}");
            let released = next(&mut link).await;
            assert!(matches!(released, ToServer::Released { end: 0, .. }));
        }
        assert!(requests.try_recv().is_err(), "nothing reached the provider");
        assert!(bench.charges().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_released_with_the_offset_of_its_charge() {
    let (address, _requests) =
        provider(|_, stream| reply(stream, "Content-Type: application/json\r\n", USAGE));
    let bench = bench_of(address, Provider::Anthropic, WAITS);
    let mut link = bench.gate.gateway.reservations.connect_server();
    let request = post("/anthropic/v1/messages", r#"{"max_tokens":9}"#);
    let deciding = decide(&bench, &mut link, Decision::Granted);
    let (answer, ()) = tokio::join!(bench.exchange(&request), deciding);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let ToServer::Released { end, .. } = next(&mut link).await else {
        panic!("the call was not released");
    };
    let directory = bench.path().join("test").join(CHARGES_DIR);
    let (charges, read) = read_charges(&directory, 0).unwrap();
    assert!(
        charges.len() == 1 && charges[0].call.is_some(),
        "{charges:?}"
    );
    assert_eq!(end, read, "it is free when its charge is counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_provider_refuses_is_released_at_once() {
    let (address, _requests) = provider(|_, stream| {
        let _ = write!(stream, "HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n");
    });
    let bench = bench_of(address, Provider::Anthropic, WAITS);
    let mut link = bench.gate.gateway.reservations.connect_server();
    let request = post("/anthropic/v1/messages", "{}");
    let deciding = decide(&bench, &mut link, Decision::Granted);
    let (answer, ()) = tokio::join!(bench.exchange(&request), deciding);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let released = next(&mut link).await;
    assert!(matches!(released, ToServer::Released { end: 0, .. }));
    assert!(bench.charges().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_leaves_while_its_call_is_held_costs_nothing() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "{}"));
    let waits = BudgetWaits {
        hold_ms: 600_000,
        ..WAITS
    };
    let bench = bench_of(address, Provider::Anthropic, waits);
    let mut link = bench.gate.gateway.reservations.connect_server();
    let mut stream = bench.connect("one").await;
    let request = post("/anthropic/v1/messages", "{}").replace("KEY", bench.key.reveal());
    stream.write_all(request.as_bytes()).await.unwrap();
    decide(&bench, &mut link, Decision::Held).await;
    drop(stream);
    let released = next(&mut link).await;
    assert!(matches!(released, ToServer::Released { end: 0, .. }));
    assert!(requests.try_recv().is_err() && bench.charges().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_only_sessions_with_a_budget_wait() {
    let (address, requests) = provider(|_, stream| reply(stream, "", "{}"));
    let request = post("/anthropic/v1/messages", "{}");
    let free = Bench::new(address);
    assert!(free.exchange(&request).await.starts_with("HTTP/1.1 200"));
    requests.recv().unwrap();
    let waits = BudgetWaits {
        server_ms: 30,
        ..WAITS
    };
    let bench = bench_of(address, Provider::Anthropic, waits);
    let answer = bench.exchange(&request).await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("api_error"),
        "{answer}"
    );
    assert!(requests.try_recv().is_err());
}
