//! What every store promises about messages of agents to sessions below their own.

use futures_util::future::join_all;
use oubliette_model::{Event, SessionId, Status, StopReason};
use uuid::Uuid;

use super::sessions::{child, ending, message, new, session, spawned};
use super::{Must, at, ready};
use crate::{CallTurn, NewSession, Session, Spawned, Step, Store, Visible};

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
