//! What every store promises about messages of agents to sessions below their own.

use futures_util::future::join_all;
use oubliette_model::{Event, KeyHash, Mode, Scope, SessionId, Status, StopReason};
use uuid::Uuid;

use super::sessions::{child, ending, message, new, session, spawned};
use super::{Must, at, ready, token_id};
use crate::{Begun, CallTurn, NewSession, Session, Spawned, Step, Store, Token, Visible};

fn call(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn asking(n: u128, parent: &Session, call: Uuid) -> NewSession {
    let child = Session {
        parent_id: Some(parent.id),
        root_id: parent.root_id,
        depth: parent.depth + 1,
        ..session(n, parent.project_id, 10)
    };
    NewSession {
        call: Some(call),
        ..new(child, "work")
    }
}

/// Has the next message of a session taken by a turn, which comes to an end if it has a text.
async fn take_turn(store: &dyn Store, id: SessionId, answer: Option<&str>) {
    let message = store.next_message(id).await.must();
    let message = message.unwrap_or_else(|| panic!("no message waits"));
    let mut events = vec![
        Event::log("before it"),
        Event::Prompt {
            text: message.text,
            attachments: Vec::new(),
        },
        Event::status(Status::Running),
    ];
    if let Some(text) = answer {
        events.push(completion(text));
    }
    let step = Step {
        at: at(20),
        events,
        message_done: Some(message.id),
        ..Step::default()
    };
    store.step(id, step).await.must();
}

fn completion(text: &str) -> Event {
    Event::Completion {
        text: text.to_owned(),
        stop_reason: StopReason::EndTurn,
        error: None,
    }
}

async fn turn(store: &dyn Store, caller: SessionId, id: Uuid) -> CallTurn {
    let found = store.child_call(caller, id).await.must();
    found.unwrap_or_else(|| panic!("no such call")).turn
}

fn answer(turn: CallTurn) -> String {
    match turn {
        CallTurn::Answered(logged) => logged.body,
        other => panic!("no answer: {other:?}"),
    }
}

pub(super) async fn a_call_makes_one_child_however_often_it_is_repeated(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let repeated = (2..12).map(|n| asking(n, &root, call(7)));
    let repeated: Vec<NewSession> = repeated.collect();
    let outcomes = join_all(repeated.iter().map(|new| store.spawn_session(new, None))).await;
    let mut ids = Vec::new();
    let mut made = 0;
    for outcome in outcomes {
        match outcome.must() {
            Spawned::New(session) => {
                made += 1;
                ids.push(session.id);
            }
            Spawned::Joined { session, resumed } => {
                assert!(!resumed);
                ids.push(session.id);
            }
            other => panic!("{other:?}"),
        }
    }
    ids.dedup();
    assert_eq!((made, ids.len()), (1, 1));
    assert_eq!(store.tree(root.id).await.must().len(), 2);
    assert_eq!(store.queued_messages(ids[0]).await.must(), 1);
    assert_eq!(turn(store, root.id, call(7)).await, CallTurn::Queued);
    // Another session's call of that name is another call.
    assert_eq!(store.child_call(ids[0], call(7)).await.must(), None);
    // A limit that is reached by now does not matter: it has happened.
    let again = NewSession {
        limits: crate::TreeLimits {
            sessions: 1,
            ..asking(50, &root, call(7)).limits
        },
        ..asking(50, &root, call(7))
    };
    let again = store.spawn_session(&again, None).await.must();
    assert!(matches!(again, Spawned::Joined { .. }), "{again:?}");

    let two = ready(store, 2, "two").await.id;
    let other = spawned(store, &new(session(90, two, 1), "go")).await;
    let elsewhere = asking(91, &other, call(7));
    assert!(matches!(
        store.spawn_session(&elsewhere, None).await.must(),
        Spawned::New(_)
    ));
}

pub(super) async fn a_call_is_answered_by_its_own_turn(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let Spawned::New(child) = store
        .spawn_session(&asking(2, &root, call(1)), None)
        .await
        .must()
    else {
        panic!("not made");
    };
    for (n, text) in [(2, "second"), (3, "third")] {
        for _ in 0..3 {
            let queued = store
                .queue_call(root.id, call(n), child.id, &message(text, 12), None)
                .await
                .must();
            assert!(queued.is_some());
        }
    }
    assert_eq!(store.queued_messages(child.id).await.must(), 3);

    take_turn(store, child.id, None).await;
    assert_eq!(turn(store, root.id, call(1)).await, CallTurn::Running);
    assert_eq!(turn(store, root.id, call(2)).await, CallTurn::Queued);
    let step = Step {
        at: at(21),
        events: vec![completion("one")],
        ..Step::default()
    };
    store.step(child.id, step).await.must();
    take_turn(store, child.id, Some("two")).await;
    assert!(answer(turn(store, root.id, call(1)).await).contains("one"));
    assert!(answer(turn(store, root.id, call(2)).await).contains("two"));
    assert_eq!(turn(store, root.id, call(3)).await, CallTurn::Queued);

    // Its session was ended before its turn.
    let dropped = Step {
        messages_dropped: true,
        ..ending(Status::Completed, 30)
    };
    store.step(child.id, dropped).await.must();
    assert_eq!(turn(store, root.id, call(3)).await, CallTurn::Dropped);
    let resumed = store
        .queue_call(root.id, call(4), child.id, &message("more", 31), None)
        .await
        .must();
    assert!(resumed.is_some_and(|(session, resumed)| resumed && !session.status.is_ended()));

    // Who has ended wakes nobody.
    store
        .step(root.id, ending(Status::Completed, 40))
        .await
        .must();
    let late = message("late", 41);
    let late = store
        .queue_call(root.id, call(5), child.id, &late, None)
        .await;
    assert_eq!(late.must(), None);

    assert_eq!(store.trim_calls(at(100)).await.must(), 4);
    assert_eq!(store.child_call(root.id, call(1)).await.must(), None);
}

pub(super) async fn an_operation_begins_once_under_a_name_and_its_outcome_is_kept(
    store: &dyn Store,
) {
    let (one, other) = (token_id(1), token_id(2));
    let begin = |token, n| store.begin_tool_call(token, call(n), at(1));
    assert_eq!(begin(one, 1).await.must(), Begun::New);
    assert_eq!(begin(one, 1).await.must(), Begun::Unknown);
    store.end_tool_call(one, call(1), "done").await.must();
    assert_eq!(begin(one, 1).await.must(), Begun::Before("done".to_owned()));
    assert_eq!(begin(one, 2).await.must(), Begun::New);
    assert_eq!(begin(other, 1).await.must(), Begun::New);
    assert_eq!(store.trim_calls(at(100)).await.must(), 3);
}

pub(super) async fn tokens_of_a_session_end_with_its_agent_or_with_itself(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let token = |n: u128, minted| Token {
        id: token_id(n),
        name: "of a session".to_owned(),
        scope: Scope::Project(one, Mode::Write),
        session_id: Some(root.id),
        minted,
        created_at: at(2),
        expires_at: None,
        revoked_at: None,
    };
    let hash = |n: u8| KeyHash::from_bytes([n; 32]);
    let started = Step {
        at: at(2),
        live: Some(Some("{}".to_owned())),
        key: Some(hash(9)),
        token: Some((token(1, true), hash(1))),
        ..Step::default()
    };
    store.step(root.id, started.clone()).await.must();
    assert!(
        store
            .add_token(&token(2, false), hash(2), None)
            .await
            .must()
    );
    let found = store.token_by_hash(hash(1)).await.must();
    assert_eq!(found, Some(token(1, true)));

    let stopped = Step {
        at: at(3),
        live: Some(None),
        ..Step::default()
    };
    store.step(root.id, stopped).await.must();
    assert_eq!(store.token_by_hash(hash(1)).await.must(), None);
    assert_eq!(
        store.session(root.id).await.must().and_then(|s| s.key),
        None
    );
    let lasting = store.token_by_hash(hash(2)).await.must();
    assert!(lasting.is_some_and(|token| token.is_valid(at(4))));

    let again = Step {
        token: Some((token(3, true), hash(3))),
        ..started
    };
    store.step(root.id, again).await.must();
    store
        .step(root.id, ending(Status::Completed, 5))
        .await
        .must();
    assert_eq!(store.token_by_hash(hash(3)).await.must(), None);
    let ended = store.token_by_hash(hash(2)).await.must();
    assert!(ended.is_some_and(|token| !token.is_valid(at(6))));

    store.remove_ended(Visible::All, at(100), None).await.must();
    assert_eq!(store.token_by_hash(hash(2)).await.must(), None);
}

pub(super) async fn what_a_tree_has_used_stays_used_when_its_sessions_are_removed(
    store: &dyn Store,
) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    for n in 2..5 {
        let Spawned::New(made) = child(store, n, &root, 2).await else {
            panic!("not made");
        };
        let costly = Step {
            usage: Some((Default::default(), 0.25)),
            ..ending(Status::Completed, 3)
        };
        store.step(made.id, costly).await.must();
    }
    let before = store.tree_use(root.id, at(4)).await.must();
    let removed = store.remove_ended(Visible::Only(one), at(10), None).await;
    assert_eq!(removed.must().len(), 3);
    let after = store.tree_use(root.id, at(4)).await.must();
    assert_eq!((after.sessions, after.cost_usd), (4, 0.75));
    assert_eq!(before, after);
    assert!(matches!(
        child(store, 9, &root, 5).await,
        Spawned::OverLimit(_)
    ));
}
