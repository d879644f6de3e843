//! Contract tests for requests to stop turns and sessions.

use oubliette_model::{AwaitedRequest, AwaitedRequestKind, Status};

use super::sessions::{child, new, session, spawned};
use super::{Must, MustBe, at, ready};
use crate::{SessionStep, SpawnOutcome, StopRequest, Store};

pub(super) async fn a_later_end_request_is_kept_when_an_interrupt_is_handled(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let id = spawned(store, &new(session(1, one, 1), "go")).await.id;
    let handled_interrupt = || SessionStep {
        at: at(2),
        handled_stop_request: Some(StopRequest::Interrupt),
        ..SessionStep::default()
    };
    let requests = [
        (vec![StopRequest::Interrupt], None),
        (
            vec![StopRequest::Interrupt, StopRequest::End],
            Some(StopRequest::End),
        ),
        (vec![StopRequest::Interrupt], Some(StopRequest::End)),
    ];
    for (requested, left) in requests {
        for request in requested {
            store.request_stop(&[id], request, None).await.must();
        }
        store.commit_step(id, handled_interrupt()).await.must();
        let found = store.session(id).await.must().must_be();
        assert_eq!(found.stop_request, left);
    }
}

pub(super) async fn only_the_turns_of_a_tree_are_interrupted(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let mut tree = vec![root.clone()];
    for n in 2..=4 {
        let SpawnOutcome::New(below) = child(store, n, &root, 2).await else {
            panic!("within every limit");
        };
        tree.push(*below);
    }
    let other = spawned(store, &new(session(5, one, 3), "other tree")).await;
    let waiting_for = |kind| AwaitedRequest {
        kind,
        request_id: "1".to_owned(),
        until: at(100),
    };
    let states = [
        (tree[0].id, Status::Running, None),
        (tree[1].id, Status::Running, None),
        (
            tree[2].id,
            Status::Waiting,
            Some(AwaitedRequestKind::Permission),
        ),
        (
            tree[3].id,
            Status::Waiting,
            Some(AwaitedRequestKind::Budget),
        ),
        (other.id, Status::Running, None),
    ];
    for (id, status, waiting) in states {
        let step = SessionStep {
            at: at(4),
            status: Some(status),
            waiting: Some(waiting.map(waiting_for)),
            ..SessionStep::default()
        };
        store.commit_step(id, step).await.must();
    }
    let interrupted = store.interrupt_turns(root.id, tree[1].id).await.must();
    assert_eq!(interrupted, [(tree[0].id, one), (tree[2].id, one)]);
    for session in tree.iter().chain([&other]) {
        let found = store.session(session.id).await.must().must_be();
        let expected = [tree[0].id, tree[2].id].contains(&session.id);
        let request = expected.then_some(StopRequest::Interrupt);
        assert_eq!(found.stop_request, request, "{}", session.id);
    }
}
