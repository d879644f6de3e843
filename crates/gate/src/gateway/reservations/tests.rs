//! Reservations with a server that a test plays.

use tempfile::TempDir;

use super::*;
use crate::gateway::call::Api;
use crate::gateway::grants::{Grant, GrantedSecret};
use crate::gateway::provider::Provider;

const TEST_TIMEOUT: Duration = Duration::from_secs(30);
const LONG: BudgetWaits = BudgetWaits {
    hold_ms: 600_000,
    server_ms: 600_000,
};

fn reservations() -> (TempDir, Reservations) {
    let directory = tempfile::tempdir().unwrap();
    let reservations = Reservations::new("g", directory.path()).unwrap();
    (directory, reservations)
}

fn grant(session: &str, budget: Option<BudgetWaits>) -> GrantEntry {
    GrantEntry {
        session: session.to_owned(),
        container: "c".to_owned(),
        grant: Grant {
            placeholder: String::new(),
            provider: Provider::Anthropic,
            upstream: String::new(),
            secret: GrantedSecret::new("x"),
        },
        budget,
    }
}

fn call(bytes: u64) -> ModelCall {
    ModelCall::of_size(Api::Messages, "/v1/messages", bytes)
}

/// Starts a call; the task ends when it is decided.
fn start(
    reservations: &Reservations,
    waits: BudgetWaits,
) -> tokio::task::JoinHandle<Result<Option<ReservedCall>, Refusal>> {
    let reservations = reservations.clone();
    tokio::spawn(async move {
        let grant = grant("s", Some(waits));
        reservations.reserve(&grant, &call(10)).await
    })
}

async fn next(link: &mut ServerLink) -> ToServer {
    let received = tokio::time::timeout(TEST_TIMEOUT, link.messages.recv()).await;
    received.unwrap().unwrap()
}

async fn next_reservation(link: &mut ServerLink) -> Reservation {
    match next(link).await {
        ToServer::Reserve(reservation) => reservation,
        other => panic!("{other:?}"),
    }
}

fn tokens(output: u64) -> TokenCounts {
    TokenCounts {
        output,
        ..TokenCounts::default()
    }
}

#[tokio::test]
async fn a_session_without_a_budget_does_not_ask() {
    let (_directory, reservations) = reservations();
    let mut link = reservations.connect_server();
    let (own, call) = (grant("s", None), call(10));
    let reserving = reservations.reserve(&own, &call);
    assert!(reserving.await.unwrap().is_none());
    assert!(link.messages.try_recv().is_err());
}

#[tokio::test]
async fn a_call_waits_for_the_decision_and_is_released_with_its_charge() {
    let (_directory, reservations) = reservations();
    let mut link = reservations.connect_server();
    let reserving = start(&reservations, LONG);
    let asked = next_reservation(&mut link).await;
    assert_eq!((asked.tokens.input, asked.unlimited_answers), (5, 1));
    reservations.decide(asked.id, Decision::Held, None);
    reservations.decide(asked.id, Decision::Granted, Some(tokens(9)));
    let reserved = reserving.await.unwrap().unwrap().unwrap();
    reserved.set_charged(77);
    match next(&mut link).await {
        ToServer::Released { reservation, end } => assert_eq!((reservation, end), (asked.id, 77)),
        other => panic!("{other:?}"),
    }
    reservations.until_none_is_open().await;
}

#[tokio::test]
async fn the_next_server_hears_of_open_and_of_waiting_calls() {
    let (_directory, reservations) = reservations();
    let mut first = reservations.connect_server();
    let open = start(&reservations, LONG);
    let asked = next_reservation(&mut first).await;
    reservations.decide(asked.id, Decision::Granted, Some(tokens(9)));
    let open = open.await.unwrap().unwrap().unwrap();
    let held = start(&reservations, LONG);
    let asked = next_reservation(&mut first).await;
    reservations.decide(asked.id, Decision::Held, None);
    // The first one is not told anything from now on, even if it is still there.
    let mut second = reservations.connect_server();
    assert_eq!(second.granted.len(), 1);
    assert_eq!(second.granted[0].tokens, tokens(9));
    assert_eq!(second.granted[0].unlimited_answers, 0);
    assert_eq!(second.asked, std::slice::from_ref(&asked));
    drop(open);
    assert!(matches!(
        next(&mut second).await,
        ToServer::Released { end: 0, .. }
    ));
    assert!(first.messages.recv().await.is_none());
    drop(first);
    reservations.decide(asked.id, Decision::Granted, Some(tokens(1)));
    assert!(held.await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn a_call_that_is_given_up_while_it_waits_is_released() {
    let (_directory, reservations) = reservations();
    let mut link = reservations.connect_server();
    let reserving = start(&reservations, LONG);
    let asked = next_reservation(&mut link).await;
    reserving.abort();
    assert!(matches!(
        next(&mut link).await,
        ToServer::Released { end: 0, .. }
    ));
    // The decision comes too late.
    reservations.decide(asked.id, Decision::Granted, Some(tokens(1)));
    assert!(reservations.connect_server().granted.is_empty());
}

#[tokio::test]
async fn a_held_call_is_forbidden_after_its_time() {
    let (_directory, reservations) = reservations();
    let mut link = reservations.connect_server();
    let waits = BudgetWaits {
        hold_ms: 20,
        ..LONG
    };
    let reserving = start(&reservations, waits);
    let asked = next_reservation(&mut link).await;
    reservations.decide(asked.id, Decision::Held, None);
    let refusal = reserving.await.unwrap().unwrap_err();
    assert_eq!(refusal.status, StatusCode::FORBIDDEN);
    assert!(refusal.message.contains("max_cost_usd"), "{refusal:?}");
    assert!(matches!(next(&mut link).await, ToServer::Released { .. }));
}

#[tokio::test]
async fn without_a_server_a_call_fails_after_its_time() {
    let (_directory, reservations) = reservations();
    let waits = BudgetWaits {
        server_ms: 20,
        ..LONG
    };
    // No server, and one that is gone while the call is held.
    let refusal = start(&reservations, waits).await.unwrap().unwrap_err();
    assert_eq!(refusal.status, StatusCode::SERVICE_UNAVAILABLE);
    let mut link = reservations.connect_server();
    let reserving = start(&reservations, waits);
    let asked = next_reservation(&mut link).await;
    reservations.decide(asked.id, Decision::Held, None);
    drop(link);
    let refusal = reserving.await.unwrap().unwrap_err();
    assert_eq!(refusal.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_session_has_a_bounded_number_of_waiting_calls() {
    let (_directory, reservations) = reservations();
    let own = grant("s", Some(LONG));
    let mut waiting: Vec<_> = (0..MAX_WAITING_CALLS)
        .map(|_| reservations.ask(&own, &call(10)).unwrap())
        .collect();
    assert!(reservations.ask(&own, &call(10)).is_none());
    let refusal = reservations.reserve(&own, &call(10)).await.unwrap_err();
    assert_eq!(refusal.status, StatusCode::FORBIDDEN);
    let other = grant("t", Some(LONG));
    let (_large, _) = reservations
        .ask(&other, &call(MAX_WAITING_BYTES + 1))
        .unwrap();
    assert!(reservations.ask(&other, &call(1)).is_none());
    waiting.pop();
    assert!(reservations.ask(&own, &call(10)).is_some());
}

#[tokio::test]
async fn a_server_that_does_not_read_is_given_up() {
    let (_directory, reservations) = reservations();
    let mut link = reservations.connect_server();
    let own = grant("s", Some(LONG));
    for _ in 0..=MAX_QUEUED_MESSAGES {
        drop(reservations.ask(&own, &call(10)));
    }
    let mut count = 0;
    while link.messages.recv().await.is_some() {
        count += 1;
    }
    assert_eq!(count, MAX_QUEUED_MESSAGES);
}
