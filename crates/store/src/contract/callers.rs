//! Contract tests for caller tools.

use futures_util::future::join_all;
use oubliette_model::{CallerToolOutcome, Event, KeyHash, Scope, SessionId, Status};
use serde_json::{Value, json};
use uuid::Uuid;

use super::joining::any_session;
use super::sessions::{ending, message, new, session, spawned};
use super::{Must, at, ready, token_id};
use crate::{
    AddRequestOutcome, CallerRequest, CallerRequestResult, DeclaredTools, EndRequestOutcome,
    MAX_PENDING_REQUESTS, NewSession, Session, SessionMessage, SessionStep, SpawnOutcome, Store,
    StoreError, Token, ToolDeclaration,
};

fn declaration(by: u128, tools: &str) -> Option<ToolDeclaration> {
    Some(ToolDeclaration {
        caller_id: "app".to_owned(),
        tools: tools.to_owned(),
        token_id: token_id(by),
    })
}

async fn tools(store: &dyn Store, id: SessionId) -> Option<String> {
    let declared: Option<DeclaredTools> = store.caller_tools(id).await.must();
    declared.map(|declared| declared.tools)
}

async fn token(store: &dyn Store, n: u8) {
    let token = Token {
        id: token_id(n.into()),
        name: "caller".to_owned(),
        scope: Scope::Write,
        session_id: None,
        minted: false,
        created_at: at(0),
        expires_at: None,
        revoked_at: None,
    };
    let added = store.add_token(&token, KeyHash::from_bytes([n; 32]), None);
    assert!(added.await.must());
}

/// Creates a session with a running turn.
async fn running(store: &dyn Store, n: u128) -> Session {
    let one = ready(store, n, &format!("p{n}")).await.id;
    let created = spawned(store, &new(session(n, one, 1), "go")).await;
    let step = SessionStep {
        at: at(2),
        status: Some(Status::Running),
        ..SessionStep::default()
    };
    store.commit_step(created.id, step).await.must();
    created
}

fn request(session: &Session, n: u128, deadline: i64) -> CallerRequest {
    CallerRequest {
        session_id: session.id,
        request_id: Uuid::from_u128(1000 + n),
        call_id: Uuid::from_u128(n),
        tool: "send".to_owned(),
        arguments: json!({ "n": n as u64 }),
        asked_at: at(10 + n as i64),
        deadline: at(deadline),
        event_index: 0,
        delivered: false,
        result: None,
    }
}

async fn end_request(
    store: &dyn Store,
    stored: &CallerRequest,
    outcome: CallerToolOutcome,
    answer: Value,
    second: i64,
) -> EndRequestOutcome {
    let ended = CallerRequestResult { outcome, answer };
    let (session, id) = (stored.session_id, stored.request_id);
    let event = Event::log("ended");
    store
        .end_caller_request(session, id, &ended, event, at(second), None)
        .await
        .must()
}

pub(super) async fn only_the_owner_token_of_a_session_declares_tools(store: &dyn Store) {
    token(store, 1).await;
    token(store, 2).await;
    let one = ready(store, 1, "one").await.id;
    let owned = Session {
        owner_id: Some(token_id(1)),
        ..session(1, one, 1)
    };
    let first = NewSession {
        message: Some(SessionMessage {
            declaration: declaration(1, "[1]"),
            ..message("go", 1)
        }),
        ..new(owned.clone(), "go")
    };
    let created = spawned(store, &first).await;
    assert_eq!(tools(store, created.id).await.as_deref(), Some("[1]"));

    let declaring = |by, tools: &'static str| SessionMessage {
        declaration: declaration(by, tools),
        ..message("more", 2)
    };
    let foreign = store
        .queue_message(created.id, &declaring(2, "[2]"), None)
        .await;
    assert!(matches!(foreign, Err(StoreError::NotOwner)), "{foreign:?}");
    let joining = NewSession {
        join: Some(any_session()),
        message: Some(declaring(2, "[2]")),
        ..new(session(9, one, 3), "go")
    };
    let foreign = store.spawn_session(&joining, None).await;
    assert!(matches!(foreign, Ok(SpawnOutcome::New(_))), "{foreign:?}");
    // Neither message reached it.
    assert_eq!(store.queued_messages(created.id).await.must(), 1);
    let plain = message("plain", 3);
    let plain = store.queue_message(created.id, &plain, None).await;
    assert!(plain.must().is_some());
    assert_eq!(tools(store, created.id).await.as_deref(), Some("[1]"));
    let own = store
        .queue_message(created.id, &declaring(1, "[]"), None)
        .await;
    assert!(own.must().is_some());
    assert_eq!(tools(store, created.id).await.as_deref(), Some("[]"));

    // After the owner token is revoked, the next token that declares tools becomes the owner.
    store.revoke_token(token_id(1), at(4), None).await.must();
    let new_owner = SessionMessage {
        created_at: at(5),
        ..declaring(2, "[2]")
    };
    assert!(
        store
            .queue_message(created.id, &new_owner, None)
            .await
            .must()
            .is_some()
    );
    let owner = store.session(created.id).await.must();
    assert_eq!(
        owner.and_then(|session| session.owner_id),
        Some(token_id(2))
    );

    let of_owner = Session {
        owner_id: Some(token_id(2)),
        ..session(10, one, 6)
    };
    let joining = NewSession {
        join: Some(any_session()),
        message: Some(declaring(2, "[3]")),
        ..new(of_owner, "go")
    };
    let joined = store.spawn_session(&joining, None).await.must();
    let SpawnOutcome::Joined { session, .. } = joined else {
        panic!("{joined:?}");
    };
    assert_eq!(tools(store, session.id).await.as_deref(), Some("[3]"));
}

pub(super) async fn a_caller_request_is_added_once_and_ended_once(store: &dyn Store) {
    let created = running(store, 1).await;
    let first = request(&created, 1, 100);
    let again = CallerRequest {
        request_id: Uuid::from_u128(7777),
        ..first.clone()
    };
    let stored =
        join_all([&first, &again, &again].map(|stored| store.add_caller_request(stored))).await;
    let mut new = 0;
    for outcome in stored {
        match outcome.must() {
            AddRequestOutcome::Added(_) => new += 1,
            AddRequestOutcome::Existing(before) => assert_eq!(before.call_id, first.call_id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(new, 1);
    let pending = store.pending_requests(created.id).await.must();
    assert_eq!(pending.len(), 1);
    let stored = pending[0].clone();
    assert_eq!(store.all_pending_requests().await.must(), pending);
    let events = store.events(created.id, -1, 100, usize::MAX).await.must();
    let indexes: Vec<i64> = events
        .iter()
        .filter(|event| event.body.contains("caller_tool_request"))
        .map(|event| event.index)
        .collect();
    assert_eq!(indexes, [stored.event_index]);
    store
        .mark_delivered(created.id, &[stored.request_id])
        .await
        .must();
    let by_request_id = store
        .caller_request(created.id, stored.request_id)
        .await
        .must();
    assert_eq!(
        by_request_id.map(|found| found.call_id),
        Some(stored.call_id)
    );
    let delivered = store
        .caller_request_by_call(created.id, stored.call_id)
        .await
        .must();
    assert!(delivered.is_some_and(|stored| stored.delivered));

    let answers =
        (0..10).map(|n| end_request(store, &stored, CallerToolOutcome::Answered, json!(n), 50));
    let answers = join_all(answers).await;
    let done = answers
        .iter()
        .filter(|one| **one == EndRequestOutcome::Done)
        .count();
    assert_eq!((done, answers.len()), (1, 10));
    assert!(
        answers
            .iter()
            .all(|one| *one != EndRequestOutcome::NoSuchRequest)
    );
    let late = end_request(
        store,
        &stored,
        CallerToolOutcome::Timeout,
        json!("late"),
        200,
    )
    .await;
    assert_eq!(late, EndRequestOutcome::Late);
    let ended = store
        .caller_request_by_call(created.id, stored.call_id)
        .await
        .must();
    let ended = ended.and_then(|stored| stored.result);
    assert!(ended.is_some_and(|ended| ended.outcome == CallerToolOutcome::Answered));
    assert!(store.pending_requests(created.id).await.must().is_empty());

    // An answer after the deadline is late; a request is found only by its own session.
    let second = request(&created, 2, 60);
    assert!(matches!(
        store.add_caller_request(&second).await.must(),
        AddRequestOutcome::Added(_)
    ));
    let too_late = end_request(store, &second, CallerToolOutcome::Answered, json!(1), 60).await;
    assert_eq!(too_late, EndRequestOutcome::Late);
    let other = running(store, 2).await;
    let foreign = CallerRequest {
        session_id: other.id,
        ..second.clone()
    };
    let foreign = end_request(store, &foreign, CallerToolOutcome::Answered, json!(1), 50).await;
    assert_eq!(foreign, EndRequestOutcome::NoSuchRequest);
    let over = end_request(
        store,
        &second,
        CallerToolOutcome::Timeout,
        json!("over"),
        61,
    )
    .await;
    assert_eq!(over, EndRequestOutcome::Done);

    store
        .commit_step(created.id, ending(Status::Completed, 70))
        .await
        .must();
    let gone = store
        .add_caller_request(&request(&created, 3, 100))
        .await
        .must();
    assert_eq!(gone, AddRequestOutcome::SessionGone);
}

pub(super) async fn pending_caller_requests_are_limited(store: &dyn Store) {
    let created = running(store, 1).await;
    let all: Vec<CallerRequest> = (1..=MAX_PENDING_REQUESTS)
        .map(|n| request(&created, n.into(), 5000))
        .collect();
    for stored in join_all(all.iter().map(|stored| store.add_caller_request(stored))).await {
        assert!(matches!(stored.must(), AddRequestOutcome::Added(_)));
    }
    let surplus = request(&created, 100_000, 5000);
    assert_eq!(
        store.add_caller_request(&surplus).await.must(),
        AddRequestOutcome::TooManyPending
    );
    let first = request(&created, 1, 5000);
    assert!(matches!(
        store.add_caller_request(&first).await.must(),
        AddRequestOutcome::Existing(_)
    ));
    end_request(store, &first, CallerToolOutcome::Answered, json!(1), 20).await;
    assert!(matches!(
        store.add_caller_request(&surplus).await.must(),
        AddRequestOutcome::Added(_)
    ));

    let other = running(store, 2).await;
    let long = |n: u128| CallerRequest {
        arguments: json!("x".repeat(5 << 20)),
        ..request(&other, 200_000 + n, 5000)
    };
    for n in 0..3 {
        assert!(matches!(
            store.add_caller_request(&long(n)).await.must(),
            AddRequestOutcome::Added(_)
        ));
    }
    assert_eq!(
        store.add_caller_request(&long(3)).await.must(),
        AddRequestOutcome::TooManyPending
    );
}

pub(super) async fn a_session_waits_only_while_caller_requests_are_pending(store: &dyn Store) {
    let created = running(store, 1).await;
    let status = async || {
        let session = store.session(created.id).await.must();
        let session = session.unwrap_or_else(|| panic!("gone"));
        (
            session.status,
            session.waiting.map(|waiting| waiting.request_id),
        )
    };
    let (one, two) = (request(&created, 1, 100), request(&created, 2, 100));
    store.add_caller_request(&one).await.must();
    store.add_caller_request(&two).await.must();
    let first = (Status::Waiting, Some(one.request_id.to_string()));
    assert_eq!(status().await, first);
    end_request(store, &one, CallerToolOutcome::Answered, json!(1), 20).await;
    let second = (Status::Waiting, Some(two.request_id.to_string()));
    assert_eq!(status().await, second);
    end_request(store, &two, CallerToolOutcome::Cancelled, Value::Null, 21).await;
    assert_eq!(status().await, (Status::Running, None));

    // Ending a request does not change a session that is no longer waiting for it.
    let three = request(&created, 3, 100);
    store.add_caller_request(&three).await.must();
    let over = SessionStep {
        at: at(30),
        status: Some(Status::Idle),
        waiting: Some(None),
        ..SessionStep::default()
    };
    store.commit_step(created.id, over).await.must();
    end_request(store, &three, CallerToolOutcome::Answered, json!(1), 31).await;
    assert_eq!(status().await, (Status::Idle, None));
}
