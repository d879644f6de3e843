//! Contract tests for checkpoints.

use super::sessions::{child, ending, new, session, spawned};
use super::{Must, at, ready};
use crate::{
    Checkpoint, CheckpointStep, Session, SessionStep, SpawnOutcome, Store, VisibleProjects,
    Workspace,
};
use oubliette_model::{Changed, Event, Status, StopReason, TurnKind};

fn step(turn: u32, before: Option<u8>, after: Option<u8>) -> SessionStep {
    SessionStep {
        at: at(6),
        checkpoint: Some(CheckpointStep {
            turn,
            before: before.map(|byte| [byte; 32]),
            after: after.map(|byte| [byte; 32]),
        }),
        ..SessionStep::default()
    }
}

pub(super) async fn the_trees_of_a_turn_are_recorded_with_its_steps(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = spawned(store, &new(session(1, one, 5), "hello")).await;
    for step in [
        step(1, Some(1), None),
        step(1, None, Some(2)),
        step(2, Some(2), None),
        step(3, None, Some(3)),
    ] {
        store.commit_step(created.id, step).await.must();
    }
    store.keep_tree(created.id, [9; 32], at(7)).await.must();
    store.keep_tree(created.id, [9; 32], at(8)).await.must();
    let checkpoint = |turn, before: Option<u8>, after: Option<u8>| Checkpoint {
        turn,
        before: before.map(|byte| [byte; 32]),
        after: after.map(|byte| [byte; 32]),
    };
    assert_eq!(
        store.checkpoints(created.id).await.must(),
        [
            checkpoint(1, Some(1), Some(2)),
            checkpoint(2, Some(2), None),
            checkpoint(3, None, Some(3)),
        ]
    );
    let mut trees = store.project_trees(one).await.must();
    trees.sort_unstable();
    assert_eq!(trees, [[1; 32], [2; 32], [3; 32], [9; 32]]);

    assert_eq!(store.reviewed_turn(created.id).await.must(), None);
    assert!(store.set_reviewed_turn(created.id, 2, None).await.must());
    assert_eq!(store.reviewed_turn(created.id).await.must(), Some(2));

    // They go with their session.
    let ended = ending(Status::Completed, 10);
    store.commit_step(created.id, ended).await.must();
    let all = VisibleProjects::All;
    let removed = store.remove_ended_sessions(all, at(20), None).await.must();
    assert_eq!(removed, [created.id]);
    assert!(store.project_trees(one).await.must().is_empty());
    assert!(!store.set_reviewed_turn(created.id, 1, None).await.must());
}

/// Adds a whole turn to a session.
async fn turn(store: &dyn Store, of: &Session, turn: u32) {
    let step = |events| SessionStep {
        at: at(6),
        events,
        ..SessionStep::default()
    };
    let prompt = Event::Prompt {
        text: "x".to_owned(),
        attachments: Vec::new(),
    };
    store.commit_step(of.id, step(vec![prompt])).await.must();
    let checkpoint = Event::Checkpoint {
        turn,
        checkpoint_id: String::new(),
        changed: Changed::default(),
    };
    let completion = Event::Completion {
        text: String::new(),
        stop_reason: StopReason::EndTurn,
        error: None,
        kind: TurnKind::Prompt,
        changed: None,
    };
    let ended = step(vec![checkpoint, completion]);
    store.commit_step(of.id, ended).await.must();
}

pub(super) async fn work_of_another_tree_after_a_turn_is_found(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let earlier = spawned(store, &new(session(1, one, 5), "hello")).await;
    turn(store, &earlier, 1).await;
    let own = spawned(store, &new(session(2, one, 5), "hello")).await;
    let SpawnOutcome::New(child) = child(store, 3, &own, 5).await else {
        panic!("no child");
    };
    turn(store, &own, 1).await;
    turn(store, &child, 1).await;
    for since in [0, 1] {
        assert_eq!(
            store.later_work(own.id, since).await.must(),
            None,
            "{since}"
        );
    }
    // Neither a log entry nor the end of a session is work, nor is what happens elsewhere.
    let note = SessionStep {
        at: at(9),
        events: vec![Event::log("x")],
        ..SessionStep::default()
    };
    store.commit_step(earlier.id, note).await.must();
    let other = Workspace {
        id: "other".parse().must(),
        created_at: at(3),
    };
    store.add_workspace(one, &other, 9).await.must();
    let elsewhere = Session {
        workspace_id: other.id,
        ..session(4, one, 5)
    };
    let elsewhere = spawned(store, &new(elsewhere, "hello")).await;
    turn(store, &elsewhere, 1).await;
    assert_eq!(store.later_work(own.id, 0).await.must(), None);
    // Between two turns of its own: after the first, and not after the second.
    turn(store, &earlier, 2).await;
    turn(store, &own, 2).await;
    for (since, expected) in [(0, Some(earlier.id)), (1, Some(earlier.id)), (2, None)] {
        let found = store.later_work(own.id, since).await.must();
        assert_eq!(found, expected, "{since}");
    }
    // A turn without a checkpoint may have been at any time.
    assert_eq!(store.later_work(own.id, 3).await.must(), Some(earlier.id));
    assert_eq!(store.later_work(earlier.id, 2).await.must(), Some(own.id));
}

pub(super) async fn a_session_forgets_the_conversation_of_its_agent(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let mut new = new(session(1, one, 5), "hello");
    new.events.push(Event::log("begun elsewhere"));
    let created = spawned(store, &new).await;
    assert_eq!(created.log_end, 2);
    let started = SessionStep {
        at: at(6),
        agent_session_id: Some(Some("conversation".to_owned())),
        ..SessionStep::default()
    };
    store.commit_step(created.id, started).await.must();
    let forgotten = SessionStep {
        at: at(7),
        forget_conversation: true,
        ..SessionStep::default()
    };
    store.commit_step(created.id, forgotten).await.must();
    let found = store.session(created.id).await.must();
    let found = found.map(|it| (it.agent_session_id, it.choices.starts_from_transcript));
    assert_eq!(found, Some((None, true)));
}
