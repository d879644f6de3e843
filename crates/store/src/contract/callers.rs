//! What every store promises about the tools of callers.

use futures_util::future::join_all;
use oubliette_model::{CallerToolOutcome, Event, KeyHash, Scope, SessionId, Status};
use serde_json::{Value, json};
use uuid::Uuid;

use super::sessions::{ending, message, new, session, spawned};
use super::{Must, at, ready, token_id};
use crate::{
    Asked, CallerRequest, Declaration, Declared, Ended, MOST_PENDING, Message, NewSession, Session,
    Settled, Spawned, Step, Store, StoreError, Token,
};

fn declaration(by: u128, tools: &str) -> Option<Declaration> {
    Some(Declaration {
        caller_id: "app".to_owned(),
        tools: tools.to_owned(),
        by: token_id(by),
    })
}

async fn tools(store: &dyn Store, id: SessionId) -> Option<String> {
    let declared: Option<Declared> = store.caller_tools(id).await.must();
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

/// A session with a turn that runs.
async fn running(store: &dyn Store, n: u128) -> Session {
    let one = ready(store, n, &format!("p{n}")).await.id;
    let made = spawned(store, &new(session(n, one, 1), "go")).await;
    let step = Step {
        at: at(2),
        status: Some(Status::Running),
        ..Step::default()
    };
    store.step(made.id, step).await.must();
    made
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
        handed: false,
        ended: None,
    }
}

async fn settle(
    store: &dyn Store,
    asked: &CallerRequest,
    outcome: CallerToolOutcome,
    answer: Value,
    second: i64,
) -> Settled {
    let ended = Ended { outcome, answer };
    let (session, id) = (asked.session_id, asked.request_id);
    let event = Event::log("settled");
    store
        .settle_request(session, id, &ended, event, at(second), None)
        .await
        .must()
}

pub(super) async fn a_sessions_own_token_declares_its_tools_and_no_other(store: &dyn Store) {
    token(store, 1).await;
    token(store, 2).await;
    let one = ready(store, 1, "one").await.id;
    let owned = Session {
        owner_id: Some(token_id(1)),
        ..session(1, one, 1)
    };
    let first = NewSession {
        message: Some(Message {
            declaration: declaration(1, "[1]"),
            ..message("go", 1)
        }),
        ..new(owned.clone(), "go")
    };
    let made = spawned(store, &first).await;
    assert_eq!(tools(store, made.id).await.as_deref(), Some("[1]"));

    let say = |by, tools: &'static str| Message {
        declaration: declaration(by, tools),
        ..message("more", 2)
    };
    let foreign = store.queue_message(made.id, &say(2, "[2]"), None).await;
    assert!(matches!(foreign, Err(StoreError::NotOwner)), "{foreign:?}");
    let joining = NewSession {
        join: true,
        message: Some(say(2, "[2]")),
        ..new(session(9, one, 3), "go")
    };
    let foreign = store.spawn_session(&joining, None).await;
    assert!(matches!(foreign, Err(StoreError::NotOwner)), "{foreign:?}");
    // The whole message was refused.
    assert_eq!(store.queued_messages(made.id).await.must(), 1);
    let plain = message("plain", 3);
    let plain = store.queue_message(made.id, &plain, None).await;
    assert!(plain.must().is_some());
    assert_eq!(tools(store, made.id).await.as_deref(), Some("[1]"));
    let own = store.queue_message(made.id, &say(1, "[]"), None).await;
    assert!(own.must().is_some());
    assert_eq!(tools(store, made.id).await.as_deref(), Some("[]"));

    // When its token has ended, the next one that declares takes over.
    store.revoke(token_id(1), at(4), None).await.must();
    let heir = Message {
        created_at: at(5),
        ..say(2, "[2]")
    };
    assert!(
        store
            .queue_message(made.id, &heir, None)
            .await
            .must()
            .is_some()
    );
    let owner = store.session(made.id).await.must();
    assert_eq!(
        owner.and_then(|session| session.owner_id),
        Some(token_id(2))
    );

    let joining = NewSession {
        join: true,
        message: Some(say(2, "[3]")),
        ..new(session(9, one, 6), "go")
    };
    let joined = store.spawn_session(&joining, None).await.must();
    assert!(matches!(joined, Spawned::Joined { .. }), "{joined:?}");
    assert_eq!(tools(store, made.id).await.as_deref(), Some("[3]"));
}

pub(super) async fn a_call_of_a_tool_is_made_once_and_ends_once(store: &dyn Store) {
    let made = running(store, 1).await;
    let first = request(&made, 1, 100);
    let again = CallerRequest {
        request_id: Uuid::from_u128(7777),
        ..first.clone()
    };
    let asked = join_all([&first, &again, &again].map(|asked| store.ask_caller(asked))).await;
    let mut new = 0;
    for outcome in asked {
        match outcome.must() {
            Asked::New(_) => new += 1,
            Asked::Before(before) => assert_eq!(before.call_id, first.call_id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(new, 1);
    let pending = store.pending_requests(made.id).await.must();
    assert_eq!(pending.len(), 1);
    let asked = pending[0].clone();
    assert_eq!(store.all_pending_requests().await.must(), pending);
    let events = store.events(made.id, -1, 100, usize::MAX).await.must();
    let told = events
        .iter()
        .filter(|e| e.body.contains("caller_tool_request"));
    let told: Vec<i64> = told.map(|event| event.index).collect();
    assert_eq!(told, [asked.event_index]);
    store.hand_out(made.id, &[asked.request_id]).await.must();
    let by_name = store.caller_request(made.id, asked.request_id).await.must();
    assert_eq!(by_name.map(|found| found.call_id), Some(asked.call_id));
    let handed = store.caller_call(made.id, asked.call_id).await.must();
    assert!(handed.is_some_and(|asked| asked.handed));

    let answers = (0..10).map(|n| settle(store, &asked, CallerToolOutcome::Answered, json!(n), 50));
    let answers = join_all(answers).await;
    let done = answers.iter().filter(|one| **one == Settled::Done).count();
    assert_eq!((done, answers.len()), (1, 10));
    assert!(answers.iter().all(|one| *one != Settled::NoSuchRequest));
    let late = settle(
        store,
        &asked,
        CallerToolOutcome::Timeout,
        json!("late"),
        200,
    )
    .await;
    assert_eq!(late, Settled::Late);
    let ended = store.caller_call(made.id, asked.call_id).await.must();
    let ended = ended.and_then(|asked| asked.ended);
    assert!(ended.is_some_and(|ended| ended.outcome == CallerToolOutcome::Answered));
    assert!(store.pending_requests(made.id).await.must().is_empty());

    // An answer comes in time or not at all; another session's request is none.
    let second = request(&made, 2, 60);
    assert!(matches!(
        store.ask_caller(&second).await.must(),
        Asked::New(_)
    ));
    let too_late = settle(store, &second, CallerToolOutcome::Answered, json!(1), 60).await;
    assert_eq!(too_late, Settled::Late);
    let other = running(store, 2).await;
    let foreign = CallerRequest {
        session_id: other.id,
        ..second.clone()
    };
    let foreign = settle(store, &foreign, CallerToolOutcome::Answered, json!(1), 50).await;
    assert_eq!(foreign, Settled::NoSuchRequest);
    let over = settle(
        store,
        &second,
        CallerToolOutcome::Timeout,
        json!("over"),
        61,
    )
    .await;
    assert_eq!(over, Settled::Done);

    store
        .step(made.id, ending(Status::Completed, 70))
        .await
        .must();
    let gone = store.ask_caller(&request(&made, 3, 100)).await.must();
    assert_eq!(gone, Asked::Gone);
}

pub(super) async fn the_calls_that_wait_are_bounded(store: &dyn Store) {
    let made = running(store, 1).await;
    let all: Vec<CallerRequest> = (1..=MOST_PENDING)
        .map(|n| request(&made, n.into(), 5000))
        .collect();
    for asked in join_all(all.iter().map(|asked| store.ask_caller(asked))).await {
        assert!(matches!(asked.must(), Asked::New(_)));
    }
    let surplus = request(&made, 100_000, 5000);
    assert_eq!(store.ask_caller(&surplus).await.must(), Asked::TooMany);
    let first = request(&made, 1, 5000);
    assert!(matches!(
        store.ask_caller(&first).await.must(),
        Asked::Before(_)
    ));
    settle(store, &first, CallerToolOutcome::Answered, json!(1), 20).await;
    assert!(matches!(
        store.ask_caller(&surplus).await.must(),
        Asked::New(_)
    ));

    let other = running(store, 2).await;
    let long = |n: u128| CallerRequest {
        arguments: json!("x".repeat(5 << 20)),
        ..request(&other, 200_000 + n, 5000)
    };
    for n in 0..3 {
        assert!(matches!(
            store.ask_caller(&long(n)).await.must(),
            Asked::New(_)
        ));
    }
    assert_eq!(store.ask_caller(&long(3)).await.must(), Asked::TooMany);
}

pub(super) async fn a_session_waits_for_its_caller_and_for_nobody_longer_than_it_must(
    store: &dyn Store,
) {
    let made = running(store, 1).await;
    let status = async || {
        let session = store.session(made.id).await.must();
        let session = session.unwrap_or_else(|| panic!("gone"));
        (
            session.status,
            session.waiting.map(|waiting| waiting.request_id),
        )
    };
    let (one, two) = (request(&made, 1, 100), request(&made, 2, 100));
    store.ask_caller(&one).await.must();
    store.ask_caller(&two).await.must();
    let first = (Status::Waiting, Some(one.request_id.to_string()));
    assert_eq!(status().await, first);
    settle(store, &one, CallerToolOutcome::Answered, json!(1), 20).await;
    let second = (Status::Waiting, Some(two.request_id.to_string()));
    assert_eq!(status().await, second);
    settle(store, &two, CallerToolOutcome::Cancelled, Value::Null, 21).await;
    assert_eq!(status().await, (Status::Running, None));

    // What the session did meanwhile stays done.
    let three = request(&made, 3, 100);
    store.ask_caller(&three).await.must();
    let over = Step {
        at: at(30),
        status: Some(Status::Idle),
        waiting: Some(None),
        ..Step::default()
    };
    store.step(made.id, over).await.must();
    settle(store, &three, CallerToolOutcome::Answered, json!(1), 31).await;
    assert_eq!(status().await, (Status::Idle, None));
}
