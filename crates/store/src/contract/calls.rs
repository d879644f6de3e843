//! Contract tests for calls from containers.

use futures_util::future::join_all;
use oubliette_model::{Event, KeyHash, Mode, Scope, SessionId, Status, StopReason};
use uuid::Uuid;

use super::sessions::{child, ending, message, new, session, spawned};
use super::{Must, MustBe, at, ready, token_id};
use crate::{
    CallTurn, NewSession, Session, SessionMessage, SessionStep, SpawnOutcome, StopOutcome,
    StopRequest, Store, Token, ToolCallStart, VisibleProjects,
};

fn call(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn spawn_call(n: u128, parent: &Session, call: Uuid) -> NewSession {
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

/// Starts a turn with the next message of a session, and completes it if there is an `answer`.
async fn take_turn(store: &dyn Store, id: SessionId, answer: Option<&str>) {
    let message = store.next_message(id).await.must();
    let message = message.unwrap_or_else(|| panic!("no message is queued"));
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
    let step = SessionStep {
        at: at(20),
        events,
        taken_message: Some(message.id),
        ..SessionStep::default()
    };
    store.commit_step(id, step).await.must();
}

fn completion(text: &str) -> Event {
    Event::Completion {
        text: text.to_owned(),
        stop_reason: StopReason::EndTurn,
        error: None,
        kind: oubliette_model::TurnKind::Prompt,
        changed: None,
    }
}

async fn turn(store: &dyn Store, caller: SessionId, id: Uuid) -> CallTurn {
    let found = store.called_turn(caller, id).await.must();
    found.unwrap_or_else(|| panic!("no such call")).turn
}

fn answer(turn: CallTurn) -> String {
    match turn {
        CallTurn::Answered(logged) => logged.body,
        other => panic!("no answer: {other:?}"),
    }
}

pub(super) async fn a_message_that_is_waited_for_has_its_turn(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let waited = |text, wait| SessionMessage {
        wait_id: Some(wait),
        ..message(text, 1)
    };
    let first = NewSession {
        message: Some(waited("first", call(1))),
        ..new(session(1, one, 1), "")
    };
    let id = spawned(store, &first).await.id;
    let second = waited("second", call(2));
    store.queue_message(id, &second, None).await.must();
    assert_eq!(turn(store, id, call(1)).await, CallTurn::Queued);
    take_turn(store, id, None).await;
    assert_eq!(turn(store, id, call(1)).await, CallTurn::Running);
    let step = SessionStep {
        at: at(21),
        events: vec![completion("answer to the first")],
        ..SessionStep::default()
    };
    store.commit_step(id, step).await.must();
    assert!(answer(turn(store, id, call(1)).await).contains("the first"));
    assert_eq!(turn(store, id, call(2)).await, CallTurn::Queued);
    take_turn(store, id, Some("answer to the second")).await;
    assert!(answer(turn(store, id, call(1)).await).contains("the first"));
    assert!(answer(turn(store, id, call(2)).await).contains("the second"));
}

pub(super) async fn only_the_turn_of_a_message_is_stopped(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let waited = |text, n| SessionMessage {
        wait_id: Some(call(n)),
        ..message(text, 1)
    };
    let first = NewSession {
        message: Some(waited("first", 1)),
        ..new(session(1, one, 1), "")
    };
    let id = spawned(store, &first).await.id;
    for n in 2..=4 {
        let queued = waited("more", n);
        store.queue_message(id, &queued, None).await.must();
    }
    let stop = |n| store.stop_message(id, call(n), None);
    let wanted = async || store.session(id).await.must().must_be().stop_request;
    let handle_interrupt = async || {
        let step = SessionStep {
            at: at(2),
            handled_stop_request: Some(StopRequest::Interrupt),
            ..SessionStep::default()
        };
        store.commit_step(id, step).await.must();
    };

    // Behind another message.
    assert_eq!(stop(3).await.must(), Some(StopOutcome::Dropped));
    assert_eq!(turn(store, id, call(3)).await, CallTurn::Dropped);
    assert_eq!(stop(3).await.must(), Some(StopOutcome::Ended));
    assert_eq!(wanted().await, None);
    assert_eq!(store.queued_messages(id).await.must(), 3);
    // The next one, which may be about to start.
    assert_eq!(stop(1).await.must(), Some(StopOutcome::Requested));
    assert_eq!(wanted().await, Some(StopRequest::Interrupt));
    assert_eq!(turn(store, id, call(1)).await, CallTurn::Queued);
    handle_interrupt().await;
    // Behind a turn that runs, and the turn itself.
    take_turn(store, id, None).await;
    let running = SessionStep {
        at: at(20),
        status: Some(Status::Running),
        ..SessionStep::default()
    };
    store.commit_step(id, running).await.must();
    assert_eq!(stop(2).await.must(), Some(StopOutcome::Dropped));
    assert_eq!(wanted().await, None);
    assert_eq!(stop(1).await.must(), Some(StopOutcome::Requested));
    assert_eq!(wanted().await, Some(StopRequest::Interrupt));
    handle_interrupt().await;
    let step = SessionStep {
        at: at(21),
        events: vec![completion("stopped")],
        status: Some(Status::Idle),
        ..SessionStep::default()
    };
    store.commit_step(id, step).await.must();
    assert_eq!(stop(1).await.must(), Some(StopOutcome::Ended));
    assert_eq!(wanted().await, None);
    // One that is left in the queue of a session that has ended.
    store
        .commit_step(id, ending(Status::Failed, 30))
        .await
        .must();
    assert_eq!(stop(4).await.must(), Some(StopOutcome::Dropped));
    assert_eq!(store.queued_messages(id).await.must(), 0);
    assert_eq!(stop(9).await.must(), None);

    let found = async |n| store.called_turn(id, call(n)).await.must().must_be();
    assert_eq!(found(1).await.delivery, None);
    store.record_delivery(id, call(1), "{}").await.must();
    assert_eq!(found(1).await.delivery.as_deref(), Some("{}"));
    assert_eq!(found(2).await.delivery, None);
    assert_eq!(found(1).await.created_at, at(1));
}

pub(super) async fn repeated_calls_create_one_child(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let repeated = (2..12).map(|n| spawn_call(n, &root, call(7)));
    let repeated: Vec<NewSession> = repeated.collect();
    let outcomes = join_all(repeated.iter().map(|new| store.spawn_session(new, None))).await;
    let mut ids = Vec::new();
    let mut created = 0;
    for outcome in outcomes {
        match outcome.must() {
            SpawnOutcome::New(session) => {
                created += 1;
                ids.push(session.id);
            }
            SpawnOutcome::Joined { session, resumed } => {
                assert!(!resumed);
                ids.push(session.id);
            }
            other => panic!("{other:?}"),
        }
    }
    ids.dedup();
    assert_eq!((created, ids.len()), (1, 1));
    assert_eq!(store.session_tree(root.id).await.must().len(), 2);
    assert_eq!(store.queued_messages(ids[0]).await.must(), 1);
    assert_eq!(turn(store, root.id, call(7)).await, CallTurn::Queued);
    // Call ids are distinct per calling session.
    assert_eq!(store.called_turn(ids[0], call(7)).await.must(), None);
    // A repeated call is not checked against the limits again.
    let again = NewSession {
        limits: crate::SessionTreeLimits {
            sessions: 1,
            ..spawn_call(50, &root, call(7)).limits
        },
        ..spawn_call(50, &root, call(7))
    };
    let again = store.spawn_session(&again, None).await.must();
    assert!(matches!(again, SpawnOutcome::Joined { .. }), "{again:?}");

    let two = ready(store, 2, "two").await.id;
    let other = spawned(store, &new(session(90, two, 1), "go")).await;
    let elsewhere = spawn_call(91, &other, call(7));
    assert!(matches!(
        store.spawn_session(&elsewhere, None).await.must(),
        SpawnOutcome::New(_)
    ));
}

pub(super) async fn a_call_gets_the_completion_of_its_own_turn(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let SpawnOutcome::New(child) = store
        .spawn_session(&spawn_call(2, &root, call(1)), None)
        .await
        .must()
    else {
        panic!("not created");
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
    let step = SessionStep {
        at: at(21),
        events: vec![completion("one")],
        ..SessionStep::default()
    };
    store.commit_step(child.id, step).await.must();
    take_turn(store, child.id, Some("two")).await;
    assert!(answer(turn(store, root.id, call(1)).await).contains("one"));
    assert!(answer(turn(store, root.id, call(2)).await).contains("two"));
    assert_eq!(turn(store, root.id, call(3)).await, CallTurn::Queued);

    // The message was dropped before its turn started.
    let dropped = SessionStep {
        drop_messages: true,
        ..ending(Status::Completed, 30)
    };
    store.commit_step(child.id, dropped).await.must();
    assert_eq!(turn(store, root.id, call(3)).await, CallTurn::Dropped);
    let resumed = store
        .queue_call(root.id, call(4), child.id, &message("more", 31), None)
        .await
        .must();
    assert!(resumed.is_some_and(|(session, resumed)| resumed && !session.status.is_ended()));

    // A caller that has ended cannot queue messages.
    store
        .commit_step(root.id, ending(Status::Completed, 40))
        .await
        .must();
    let late = message("late", 41);
    let late = store
        .queue_call(root.id, call(5), child.id, &late, None)
        .await;
    assert_eq!(late.must(), None);

    assert_eq!(store.trim_calls(at(100)).await.must(), 4);
    assert_eq!(store.called_turn(root.id, call(1)).await.must(), None);
}

pub(super) async fn a_repeated_tool_call_returns_its_recorded_outcome(store: &dyn Store) {
    let (one, other) = (token_id(1), token_id(2));
    let begin = |token, n| store.begin_tool_call(token, call(n), at(1));
    assert_eq!(begin(one, 1).await.must(), ToolCallStart::New);
    assert_eq!(begin(one, 1).await.must(), ToolCallStart::Unknown);
    store.end_tool_call(one, call(1), "done").await.must();
    assert_eq!(
        begin(one, 1).await.must(),
        ToolCallStart::Repeated("done".to_owned())
    );
    assert_eq!(begin(one, 2).await.must(), ToolCallStart::New);
    assert_eq!(begin(other, 1).await.must(), ToolCallStart::New);
    assert_eq!(store.trim_calls(at(100)).await.must(), 3);
}

pub(super) async fn session_tokens_end_with_the_agent_or_the_session(store: &dyn Store) {
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
    let started = SessionStep {
        at: at(2),
        live: Some(Some("{}".to_owned())),
        key: Some(hash(9)),
        token: Some((token(1, true), hash(1))),
        ..SessionStep::default()
    };
    store.commit_step(root.id, started.clone()).await.must();
    assert!(
        store
            .add_token(&token(2, false), hash(2), None)
            .await
            .must()
    );
    let found = store.token_by_hash(hash(1)).await.must();
    assert_eq!(found, Some(token(1, true)));

    let stopped = SessionStep {
        at: at(3),
        live: Some(None),
        ..SessionStep::default()
    };
    store.commit_step(root.id, stopped).await.must();
    assert_eq!(store.token_by_hash(hash(1)).await.must(), None);
    assert_eq!(
        store.session(root.id).await.must().and_then(|s| s.key),
        None
    );
    let lasting = store.token_by_hash(hash(2)).await.must();
    assert!(lasting.is_some_and(|token| token.is_valid(at(4))));

    let again = SessionStep {
        token: Some((token(3, true), hash(3))),
        ..started
    };
    store.commit_step(root.id, again).await.must();
    store
        .commit_step(root.id, ending(Status::Completed, 5))
        .await
        .must();
    assert_eq!(store.token_by_hash(hash(3)).await.must(), None);
    let ended = store.token_by_hash(hash(2)).await.must();
    assert!(ended.is_some_and(|token| !token.is_valid(at(6))));

    store
        .remove_ended_sessions(VisibleProjects::All, at(100), None)
        .await
        .must();
    assert_eq!(store.token_by_hash(hash(2)).await.must(), None);
}

pub(super) async fn tree_usage_includes_removed_sessions(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    for n in 2..5 {
        let SpawnOutcome::New(created) = child(store, n, &root, 2).await else {
            panic!("not created");
        };
        let costly = SessionStep {
            usage: Some((Default::default(), 0.25)),
            ..ending(Status::Completed, 3)
        };
        store.commit_step(created.id, costly).await.must();
    }
    let before = store.tree_usage(root.id, at(4)).await.must();
    let removed = store
        .remove_ended_sessions(VisibleProjects::Only(one), at(10), None)
        .await;
    assert_eq!(removed.must().len(), 3);
    let after = store.tree_usage(root.id, at(4)).await.must();
    assert_eq!((after.sessions, after.cost_usd), (4, 0.75));
    assert_eq!(before, after);
    assert!(matches!(
        child(store, 9, &root, 5).await,
        SpawnOutcome::OverLimit(_)
    ));
}
