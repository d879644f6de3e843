//! Contract tests for sessions and their event logs.

use std::collections::HashMap;

use futures_util::future::join_all;
use oubliette_model::{
    AwaitedRequestKind, Event, PermissionDecision, ProjectId, SessionId, Status, Usage,
};
use oubliette_model::{StopReason, WorkspaceId};
use uuid::Uuid;

use super::{Must, MustBe, at, ready};
use crate::{
    DecisionOutcome, NewSession, PendingDecision, Session, SessionChoices, SessionMessage,
    SessionStep, SessionTreeLimits, SpawnOutcome, StopRequest, Store, StoreError, TreeLimit,
    VisibleProjects, Workspace,
};

const LIMITS: SessionTreeLimits = SessionTreeLimits {
    depth: 2,
    sessions: 4,
    cost_usd: 1.0,
    spawns_per_minute: 10,
};

pub(super) fn session(n: u128, project: ProjectId, second: i64) -> Session {
    let id = SessionId::new(Uuid::from_u128(n));
    Session {
        choices: SessionChoices {
            model: Some("m".to_owned()),
            ..SessionChoices::default()
        },
        ..Session::new(id, project, WorkspaceId::default(), "demo", at(second))
    }
}

pub(super) fn message(text: &str, second: i64) -> SessionMessage {
    SessionMessage {
        id: 0,
        text: text.to_owned(),
        change_id: None,
        attachments: Vec::new(),
        declaration: None,
        sender_scope: None,
        wait_id: None,
        created_at: at(second),
    }
}

pub(super) fn new(session: Session, text: &str) -> NewSession {
    let second = session.created_at;
    NewSession {
        session,
        message: Some(SessionMessage {
            created_at: second,
            ..message(text, 0)
        }),
        join: None,
        call: None,
        run: None,
        events: Vec::new(),
        limits: LIMITS,
    }
}

pub(super) async fn spawned(store: &dyn Store, new: &NewSession) -> Session {
    match store.spawn_session(new, None).await.must() {
        SpawnOutcome::New(session) => *session,
        other => panic!("not created: {other:?}"),
    }
}

pub(super) async fn child(
    store: &dyn Store,
    n: u128,
    parent: &Session,
    second: i64,
) -> SpawnOutcome {
    let child = Session {
        parent_id: Some(parent.id),
        root_id: parent.root_id,
        depth: parent.depth + 1,
        ..session(n, parent.project_id, second)
    };
    store.spawn_session(&new(child, "work"), None).await.must()
}

async fn event_types(store: &dyn Store, id: SessionId) -> Vec<(i64, String)> {
    let events = store.events(id, -1, 1000, usize::MAX).await.must();
    let kind = |body: &str| {
        let value: serde_json::Value = serde_json::from_str(body).must();
        value["type"].as_str().unwrap_or_default().to_owned()
    };
    events
        .iter()
        .map(|event| (event.index, kind(&event.body)))
        .collect()
}

pub(super) fn ending(status: Status, second: i64) -> SessionStep {
    SessionStep {
        at: at(second),
        events: vec![Event::status(status)],
        status: Some(status),
        live: Some(None),
        handled_stop_request: Some(StopRequest::End),
        ..SessionStep::default()
    }
}

pub(super) async fn sessions_are_found_by_the_beginning_of_the_id_and_counted(store: &dyn Store) {
    let (one, two) = (
        ready(store, 1, "one").await.id,
        ready(store, 2, "two").await.id,
    );
    let first = spawned(store, &new(session(0xabcd << 112, one, 1), "go")).await;
    let second = spawned(store, &new(session(0xabce << 112, two, 2), "go")).await;
    let find = async |project, prefix: &str| {
        let found = store.sessions_with_prefix(project, prefix, 10).await.must();
        found
            .into_iter()
            .map(|session| session.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(find(None, "gogol_abc").await, [second.id, first.id]);
    assert_eq!(find(None, "gogol_abcd").await, [first.id]);
    assert_eq!(find(Some(two), "gogol_abc").await, [second.id]);
    assert_eq!(find(Some(two), "gogol_abcd").await, []);
    assert_eq!(find(None, "gogol_ff").await, []);
    let ended = ending(Status::Failed, 3);
    store.commit_step(second.id, ended).await.must();
    let counts = store.stored_counts().await.must();
    let mut counted = counts.sessions.clone();
    counted.sort_by_key(|(status, _)| status.as_str());
    assert_eq!(counted, [(Status::Created, 1), (Status::Failed, 1)]);
    assert_eq!(
        (counts.pending_caller_requests, counts.enabled_schedules),
        (0, 0)
    );
    let newest = store.newest_events(second.id, "status", 1).await.must();
    assert_eq!(newest.len(), 1);
    assert!(newest[0].body.contains("failed"), "{newest:?}");
    assert_eq!(
        store.newest_events(second.id, "completion", 1).await.must(),
        []
    );
}

pub(super) async fn a_new_session_has_its_first_event_and_message(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = spawned(store, &new(session(1, one, 5), "hello")).await;
    assert_eq!(created.log_end, 1);
    assert_eq!(
        store.session(created.id).await.must(),
        Some(created.clone())
    );
    assert_eq!(
        event_types(store, created.id).await,
        [(0, "status".to_owned())]
    );
    let waiting = store.next_message(created.id).await.must();
    assert_eq!(waiting.map(|m| m.text).as_deref(), Some("hello"));
    assert_eq!(store.unfinished_sessions().await.must(), [created.id]);
    let nowhere = Session {
        workspace_id: "nowhere".parse().must(),
        ..session(2, one, 5)
    };
    let refused = store.spawn_session(&new(nowhere, "x"), None).await.must();
    assert_eq!(refused, SpawnOutcome::Gone);
}

pub(super) async fn the_first_prompt_of_a_session_is_found(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let [prompted, silent] = [1, 2].map(|n| new(session(n, one, 1), "go"));
    let prompted = spawned(store, &prompted).await;
    let silent = spawned(store, &silent).await;
    for (second, text) in [(2, "überall zuerst"), (3, "then")] {
        let step = SessionStep {
            at: at(second),
            events: vec![Event::Prompt {
                text: text.to_owned(),
                attachments: Vec::new(),
            }],
            ..SessionStep::default()
        };
        store.commit_step(prompted.id, step).await.must();
    }
    let ids = [prompted.id, silent.id];
    let found = store.first_prompts(&ids, 7).await.must();
    let expected = HashMap::from([(prompted.id, "überall".to_owned())]);
    assert_eq!(found, expected);
}

pub(super) async fn a_step_is_one_transaction_and_indexes_have_no_gaps(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = spawned(store, &new(session(1, one, 1), "go")).await;
    let step = |n: usize| SessionStep {
        at: at(2),
        events: vec![Event::log(format!("{n} a")), Event::log(format!("{n} b"))],
        ..SessionStep::default()
    };
    let steps = join_all((0..30).map(|n| store.commit_step(created.id, step(n)))).await;
    assert!(steps.iter().all(|stepped| matches!(stepped, Ok(Some(_)))));
    let log = store.events(created.id, -1, 1000, usize::MAX).await.must();
    let indexes: Vec<i64> = log.iter().map(|event| event.index).collect();
    assert_eq!(indexes, (0..61).collect::<Vec<i64>>());
    assert_eq!(store.session(created.id).await.must().must_be().log_end, 61);
    let page = store.events(created.id, 10, 5, usize::MAX).await.must();
    assert_eq!(
        page.iter().map(|e| e.index).collect::<Vec<_>>(),
        [11, 12, 13, 14, 15]
    );
    assert_eq!(store.events(created.id, -1, 1000, 1).await.must().len(), 1);

    let step = SessionStep {
        at: at(3),
        status: Some(Status::Running),
        live: Some(Some("{}".to_owned())),
        input: vec![(0, b"abc".to_vec()), (3, b"de".to_vec())],
        taken_message: store.next_message(created.id).await.must().map(|m| m.id),
        turn_started: true,
        usage: Some((
            Usage {
                input_tokens: 3,
                ..Usage::default()
            },
            0.25,
        )),
        ..SessionStep::default()
    };
    store.commit_step(created.id, step.clone()).await.must();
    // The repeated input violates a constraint, so the whole step must be rolled back.
    let torn = SessionStep {
        events: vec![Event::log("never")],
        status: Some(Status::Idle),
        ..step
    };
    assert!(store.commit_step(created.id, torn).await.is_err());
    let now = store.session(created.id).await.must().must_be();
    assert_eq!(
        (now.status, now.log_end, now.turns),
        (Status::Running, 61, 1)
    );
    assert_eq!(now.cost_usd, 0.25);
    assert_eq!(store.next_message(created.id).await.must(), None);
    let taken = SessionStep {
        at: at(4),
        input_acknowledged: Some(3),
        ..SessionStep::default()
    };
    store.commit_step(created.id, taken).await.must();
    assert_eq!(
        store.agent_input(created.id).await.must(),
        [(3, b"de".to_vec())]
    );
    store
        .commit_step(created.id, ending(Status::Interrupted, 5))
        .await
        .must();
    assert_eq!(store.agent_input(created.id).await.must(), []);
    let missing = SessionId::new(Uuid::from_u128(99));
    assert_eq!(
        store
            .commit_step(missing, SessionStep::default())
            .await
            .must(),
        None
    );
}

pub(super) async fn tree_limits_are_exact(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let SpawnOutcome::New(first) = child(store, 2, &root, 2).await else {
        panic!("the first child is within every limit");
    };
    let SpawnOutcome::New(second) = child(store, 3, &first, 3).await else {
        panic!("depth 2 is within the limit");
    };
    assert_eq!(
        child(store, 4, &second, 4).await,
        SpawnOutcome::OverLimit(TreeLimit::Depth)
    );
    // The tree has three sessions, so one of fifty more is within the limit of four.
    let racing = join_all((10..60).map(|n| child(store, n, &root, 5))).await;
    let created = racing.iter().filter(|s| matches!(s, SpawnOutcome::New(_)));
    assert_eq!(created.count(), 1);
    assert!(racing.contains(&SpawnOutcome::OverLimit(TreeLimit::Sessions)));

    let root = spawned(store, &new(session(100, one, 10), "go")).await;
    let costly = SessionStep {
        at: at(11),
        usage: Some((Usage::default(), 1.0)),
        ..SessionStep::default()
    };
    store.commit_step(root.id, costly).await.must();
    assert_eq!(
        child(store, 101, &root, 12).await,
        SpawnOutcome::OverLimit(TreeLimit::Cost)
    );
    let raised = SessionStep {
        at: at(13),
        cost_limit: Some(2.0),
        ..SessionStep::default()
    };
    store.commit_step(root.id, raised).await.must();
    assert!(matches!(
        child(store, 102, &root, 14).await,
        SpawnOutcome::New(_)
    ));
    let used = store.tree_usage(root.id, at(15)).await.must();
    assert_eq!((used.sessions, used.cost_usd), (2, 1.0));
    assert_eq!((used.cost_limit, used.spawned_last_minute), (Some(2.0), 1));
    assert_eq!(
        store
            .tree_usage(root.id, at(80))
            .await
            .must()
            .spawned_last_minute,
        0
    );

    let root = spawned(store, &new(session(200, one, 100), "go")).await;
    let hasty = |n| NewSession {
        limits: SessionTreeLimits {
            sessions: 100,
            spawns_per_minute: 2,
            ..LIMITS
        },
        ..new(
            Session {
                parent_id: Some(root.id),
                root_id: root.id,
                depth: 1,
                ..session(n, one, 101)
            },
            "x",
        )
    };
    for n in [201, 202] {
        spawned(store, &hasty(n)).await;
    }
    assert_eq!(
        store.spawn_session(&hasty(203), None).await.must(),
        SpawnOutcome::OverLimit(TreeLimit::Rate)
    );
}

pub(super) async fn a_decision_is_recorded_once_before_its_deadline(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = spawned(store, &new(session(1, one, 1), "go")).await;
    let decision = |id: &str, deadline| PendingDecision {
        request_id: id.to_owned(),
        kind: AwaitedRequestKind::Permission,
        detail: "{}".to_owned(),
        deadline: at(deadline),
        verdict: None,
        answer: None,
    };
    let asked = SessionStep {
        at: at(2),
        decisions: vec![decision("a", 10), decision("b", 20)],
        ..SessionStep::default()
    };
    store.commit_step(created.id, asked).await.must();
    let decide = |id: &'static str, verdict, second| {
        store.record_decision(created.id, id, verdict, None, at(second), None)
    };
    assert_eq!(
        decide("a", PermissionDecision::Allow, 3).await.must(),
        DecisionOutcome::Done
    );
    assert_eq!(
        decide("a", PermissionDecision::Deny, 4).await.must(),
        DecisionOutcome::Late
    );
    assert_eq!(
        decide("b", PermissionDecision::Deny, 21).await.must(),
        DecisionOutcome::Late
    );
    assert_eq!(
        decide("c", PermissionDecision::Deny, 3).await.must(),
        DecisionOutcome::NoSuchRequest
    );
    let all = store.decisions(created.id).await.must();
    let verdicts: Vec<_> = all.iter().map(|decision| decision.verdict).collect();
    assert_eq!(verdicts, [Some(PermissionDecision::Allow), None]);
    let settled = SessionStep {
        at: at(5),
        removed_decisions: vec!["a".to_owned()],
        ..SessionStep::default()
    };
    store.commit_step(created.id, settled).await.must();
    assert_eq!(store.decisions(created.id).await.must().len(), 1);
}

pub(super) async fn messages_are_queued_in_order_and_resume_an_ended_session(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = spawned(store, &new(session(1, one, 1), "first")).await;
    let second = message("second", 2);
    let queued = store.queue_message(created.id, &second, None).await.must();
    assert!(queued.is_some_and(|(_, resumed)| !resumed));
    for text in ["first", "second"] {
        let next = store.next_message(created.id).await.must().must_be();
        assert_eq!(next.text, text);
        let done = SessionStep {
            at: at(3),
            taken_message: Some(next.id),
            ..SessionStep::default()
        };
        store.commit_step(created.id, done).await.must();
    }
    let failed = SessionStep {
        error: Some(Some("it broke".to_owned())),
        ..ending(Status::Failed, 4)
    };
    store.commit_step(created.id, failed).await.must();
    store
        .request_stop(&[created.id], StopRequest::End, None)
        .await
        .must();
    let third = SessionMessage {
        change_id: Some("add-login".to_owned()),
        ..message("third", 5)
    };
    let queued = store.queue_message(created.id, &third, None).await;
    let (now, resumed) = queued.must().must_be();
    assert!(resumed);
    let choices = SessionChoices {
        change_id: Some("add-login".to_owned()),
        ..created.choices
    };
    assert_eq!(now.choices, choices);
    assert_eq!(
        (now.status, now.error, now.stop_request),
        (Status::Created, None, None)
    );
    assert_eq!(now.ended_at, None);
    let missing = SessionId::new(Uuid::from_u128(9));
    let missing_session = store.queue_message(missing, &message("x", 6), None).await;
    assert_eq!(missing_session.must(), None);
}

pub(super) async fn a_workspace_in_use_cannot_be_removed(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let feature = Workspace {
        id: "feature".parse().must(),
        created_at: at(1),
    };
    store.add_workspace(one, &feature, 9).await.must();
    let in_feature = Session {
        workspace_id: feature.id.clone(),
        ..session(1, one, 1)
    };
    let created = spawned(store, &new(in_feature, "go")).await;
    let refused = store.remove_workspace(one, &feature.id, None).await;
    assert!(matches!(refused, Err(StoreError::InUse)), "{refused:?}");
    store
        .commit_step(created.id, ending(Status::Completed, 2))
        .await
        .must();
    assert!(store.remove_workspace(one, &feature.id, None).await.must());
}

pub(super) async fn tree_events_are_read_in_commit_order(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let SpawnOutcome::New(below) = child(store, 2, &root, 2).await else {
        panic!("within every limit");
    };
    spawned(store, &new(session(3, one, 3), "other tree")).await;
    for (id, text) in [(root.id, "1"), (below.id, "2"), (root.id, "3")] {
        let step = SessionStep {
            at: at(4),
            events: vec![Event::Delta {
                text: text.to_owned(),
                thought: false,
            }],
            ..SessionStep::default()
        };
        store.commit_step(id, step).await.must();
    }
    let all = store.tree_events(root.id, 0, 100, usize::MAX).await.must();
    let places: Vec<_> = all
        .iter()
        .map(|e| (e.session_id == root.id, e.index))
        .collect();
    // Creating the child appends an event to the log of the parent.
    assert_eq!(
        places,
        [
            (true, 0),
            (false, 0),
            (true, 1),
            (true, 2),
            (false, 1),
            (true, 3)
        ]
    );
    let rest = store
        .tree_events(root.id, all[3].position, 100, usize::MAX)
        .await
        .must();
    assert_eq!(rest, all[4..]);
    assert_eq!(store.text_deltas(root.id, 0).await.must(), ["1", "3"]);
    assert_eq!(store.text_deltas(root.id, 3).await.must(), ["3"]);
    let tree = store.session_tree(root.id).await.must();
    let ids: Vec<_> = tree.iter().map(|session| session.id).collect();
    assert_eq!(ids, [root.id, below.id]);
    let ended = SessionStep {
        parent_events: vec![Event::ChildEnded {
            child_id: below.id,
            status: Status::Completed,
            error: None,
        }],
        ..ending(Status::Completed, 5)
    };
    let stepped = store.commit_step(below.id, ended).await.must().must_be();
    assert_eq!(stepped.parent_id, Some(root.id));
    assert_eq!(
        event_types(store, root.id).await.last(),
        Some(&(4, "child_ended".to_owned()))
    );
}

pub(super) async fn ended_sessions_are_removed_leaves_first(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let SpawnOutcome::New(below) = child(store, 2, &root, 2).await else {
        panic!("within every limit");
    };
    store
        .commit_step(root.id, ending(Status::Completed, 5))
        .await
        .must();
    let remove = |second| store.remove_ended_sessions(VisibleProjects::Only(one), at(second), None);
    assert_eq!(remove(100).await.must(), [], "the root has an active child");
    store
        .commit_step(below.id, ending(Status::Completed, 6))
        .await
        .must();
    assert_eq!(remove(3).await.must(), [], "the sessions ended later");
    assert_eq!(remove(100).await.must(), [below.id, root.id]);
    assert_eq!(store.session(root.id).await.must(), None);
    assert!(store.events(root.id, -1, 10, 1000).await.must().is_empty());
}

pub(super) async fn trimming_events_updates_the_start_of_the_log(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let created = spawned(store, &new(session(1, one, 1), "go")).await;
    for second in 2..12 {
        let step = SessionStep {
            at: at(second),
            events: vec![Event::Completion {
                text: second.to_string(),
                stop_reason: StopReason::EndTurn,
                error: None,
                kind: oubliette_model::TurnKind::Prompt,
                changed: None,
            }],
            ..SessionStep::default()
        };
        store.commit_step(created.id, step).await.must();
    }
    assert_eq!(store.trim_events(at(5), 1000).await.must(), 3);
    let log = event_types(store, created.id).await;
    assert_eq!(
        log.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
        [0, 4, 5, 6, 7, 8, 9, 10]
    );
    assert_eq!(
        store
            .session(created.id)
            .await
            .must()
            .must_be()
            .trimmed_before,
        4
    );
    assert_eq!(store.trim_events(at(0), 4).await.must(), 3);
    assert_eq!(
        store
            .session(created.id)
            .await
            .must()
            .must_be()
            .trimmed_before,
        7
    );
}
