//! What every store promises about sessions and their logs.

use futures_util::future::join_all;
use oubliette_model::{
    AwaitedRequestKind, Event, PermissionDecision, ProjectId, SessionId, Status, Usage,
};
use oubliette_model::{StopReason, WorkspaceId};
use uuid::Uuid;

use super::{Must, at, entry, ready};
use crate::{
    AuditFilter, Choices, Decided, Decision, Limit, Message, NewSession, Session, SessionFilter,
    Spawned, Step, Store, StoreError, TreeLimits, Visible, Wanted, Workspace,
};

const LIMITS: TreeLimits = TreeLimits {
    depth: 2,
    sessions: 4,
    cost_usd: 1.0,
    spawns_per_minute: 10,
};

pub(super) fn session(n: u128, project: ProjectId, second: i64) -> Session {
    let id = SessionId::new(Uuid::from_u128(n));
    Session {
        choices: Choices {
            model: Some("m".to_owned()),
            ..Choices::default()
        },
        ..Session::new(id, project, WorkspaceId::default(), "demo", at(second))
    }
}

pub(super) fn message(text: &str, second: i64) -> Message {
    Message {
        id: 0,
        text: text.to_owned(),
        change_id: None,
        attachments: Vec::new(),
        declaration: None,
        created_at: at(second),
    }
}

pub(super) fn new(session: Session, text: &str) -> NewSession {
    let second = session.created_at;
    NewSession {
        session,
        message: Some(Message {
            created_at: second,
            ..message(text, 0)
        }),
        join: false,
        call: None,
        run: None,
        limits: LIMITS,
    }
}

pub(super) async fn spawned(store: &dyn Store, new: &NewSession) -> Session {
    match store.spawn_session(new, None).await.must() {
        Spawned::New(session) => *session,
        other => panic!("not made: {other:?}"),
    }
}

pub(super) async fn child(store: &dyn Store, n: u128, parent: &Session, second: i64) -> Spawned {
    let child = Session {
        parent_id: Some(parent.id),
        root_id: parent.root_id,
        depth: parent.depth + 1,
        ..session(n, parent.project_id, second)
    };
    store.spawn_session(&new(child, "work"), None).await.must()
}

async fn texts(store: &dyn Store, id: SessionId) -> Vec<(i64, String)> {
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

pub(super) fn ending(status: Status, second: i64) -> Step {
    Step {
        at: at(second),
        events: vec![Event::status(status)],
        status: Some(status),
        live: Some(None),
        wanted_done: true,
        ..Step::default()
    }
}

pub(super) async fn a_session_begins_with_its_first_event_and_its_message(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let made = spawned(store, &new(session(1, one, 5), "hello")).await;
    assert_eq!(made.log_end, 1);
    assert_eq!(store.session(made.id).await.must(), Some(made.clone()));
    assert_eq!(texts(store, made.id).await, [(0, "status".to_owned())]);
    let waiting = store.next_message(made.id).await.must();
    assert_eq!(waiting.map(|m| m.text).as_deref(), Some("hello"));
    assert_eq!(store.unsettled_sessions().await.must(), [made.id]);
    let nowhere = Session {
        workspace_id: "nowhere".parse().must(),
        ..session(2, one, 5)
    };
    let refused = store.spawn_session(&new(nowhere, "x"), None).await.must();
    assert_eq!(refused, Spawned::Gone);
}

pub(super) async fn without_a_new_session_the_newest_one_gets_the_message(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let older = spawned(store, &new(session(1, one, 1), "a")).await;
    let newer = spawned(store, &new(session(2, one, 2), "b")).await;
    child(store, 3, &newer, 3).await;
    let join = NewSession {
        join: true,
        ..new(session(9, one, 4), "c")
    };
    match store.spawn_session(&join, Some(entry("x"))).await.must() {
        Spawned::Joined { session, resumed } => {
            assert_eq!((session.id, resumed), (newer.id, false));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.queued_messages(newer.id).await.must(), 2);
    assert_eq!(store.queued_messages(older.id).await.must(), 1);
    let other_agent = Session {
        agent: "other".to_owned(),
        ..session(10, one, 5)
    };
    let join = NewSession {
        join: true,
        ..new(other_agent, "d")
    };
    assert!(matches!(
        store.spawn_session(&join, None).await.must(),
        Spawned::New(_)
    ));
    let logged = store.audit(&AuditFilter::default(), None, 10).await.must();
    assert_eq!(logged.rows.len(), 1);
}

pub(super) async fn of_racing_spawns_in_one_workspace_one_makes_the_session(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let spawns: Vec<NewSession> = (1..=20)
        .map(|n| NewSession {
            join: true,
            ..new(session(n, one, 1), "go")
        })
        .collect();
    let outcomes = join_all(spawns.iter().map(|new| store.spawn_session(new, None))).await;
    let made = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Ok(Spawned::New(_))));
    assert_eq!(made.count(), 1);
    let page = store
        .sessions(Visible::All, &SessionFilter::default(), None, 100)
        .await
        .must();
    assert_eq!(page.rows.len(), 1);
    assert_eq!(store.queued_messages(page.rows[0].id).await.must(), 20);
}

pub(super) async fn a_step_is_one_transaction_and_indexes_have_no_gaps(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let made = spawned(store, &new(session(1, one, 1), "go")).await;
    let step = |n: usize| Step {
        at: at(2),
        events: vec![Event::log(format!("{n} a")), Event::log(format!("{n} b"))],
        ..Step::default()
    };
    let steps = join_all((0..30).map(|n| store.step(made.id, step(n)))).await;
    assert!(steps.iter().all(|stepped| matches!(stepped, Ok(Some(_)))));
    let log = store.events(made.id, -1, 1000, usize::MAX).await.must();
    let indexes: Vec<i64> = log.iter().map(|event| event.index).collect();
    assert_eq!(indexes, (0..61).collect::<Vec<i64>>());
    assert_eq!(store.session(made.id).await.must().must_be().log_end, 61);
    let page = store.events(made.id, 10, 5, usize::MAX).await.must();
    assert_eq!(
        page.iter().map(|e| e.index).collect::<Vec<_>>(),
        [11, 12, 13, 14, 15]
    );
    assert_eq!(store.events(made.id, -1, 1000, 1).await.must().len(), 1);

    let step = Step {
        at: at(3),
        status: Some(Status::Running),
        live: Some(Some("{}".to_owned())),
        input: vec![(0, b"abc".to_vec()), (3, b"de".to_vec())],
        message_done: store.next_message(made.id).await.must().map(|m| m.id),
        turn_begun: true,
        usage: Some((
            Usage {
                input_tokens: 3,
                ..Usage::default()
            },
            0.25,
        )),
        ..Step::default()
    };
    store.step(made.id, step.clone()).await.must();
    // The same input again breaks a constraint, so nothing of this step may stay.
    let torn = Step {
        events: vec![Event::log("never")],
        status: Some(Status::Idle),
        ..step
    };
    assert!(store.step(made.id, torn).await.is_err());
    let now = store.session(made.id).await.must().must_be();
    assert_eq!(
        (now.status, now.log_end, now.turns),
        (Status::Running, 61, 1)
    );
    assert_eq!(now.cost_usd, 0.25);
    assert_eq!(store.next_message(made.id).await.must(), None);
    let taken = Step {
        at: at(4),
        input_taken: Some(3),
        ..Step::default()
    };
    store.step(made.id, taken).await.must();
    assert_eq!(
        store.agent_input(made.id).await.must(),
        [(3, b"de".to_vec())]
    );
    store
        .step(made.id, ending(Status::Interrupted, 5))
        .await
        .must();
    assert_eq!(store.agent_input(made.id).await.must(), []);
    let missing = SessionId::new(Uuid::from_u128(99));
    assert_eq!(store.step(missing, Step::default()).await.must(), None);
}

pub(super) async fn limits_of_a_tree_hold_exactly_at_their_edge(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let Spawned::New(first) = child(store, 2, &root, 2).await else {
        panic!("the first child is within every limit");
    };
    let Spawned::New(second) = child(store, 3, &first, 3).await else {
        panic!("depth 2 is within the limit");
    };
    assert_eq!(
        child(store, 4, &second, 4).await,
        Spawned::OverLimit(Limit::Depth)
    );
    // Three are there; of fifty more, one is the fourth.
    let racing = join_all((10..60).map(|n| child(store, n, &root, 5))).await;
    let made = racing.iter().filter(|s| matches!(s, Spawned::New(_)));
    assert_eq!(made.count(), 1);
    assert!(racing.contains(&Spawned::OverLimit(Limit::Sessions)));

    let root = spawned(store, &new(session(100, one, 10), "go")).await;
    let costly = Step {
        at: at(11),
        usage: Some((Usage::default(), 1.0)),
        ..Step::default()
    };
    store.step(root.id, costly).await.must();
    assert_eq!(
        child(store, 101, &root, 12).await,
        Spawned::OverLimit(Limit::Cost)
    );
    let raised = Step {
        at: at(13),
        cost_limit: Some(2.0),
        ..Step::default()
    };
    store.step(root.id, raised).await.must();
    assert!(matches!(
        child(store, 102, &root, 14).await,
        Spawned::New(_)
    ));
    let used = store.tree_use(root.id, at(15)).await.must();
    assert_eq!((used.sessions, used.cost_usd), (2, 1.0));
    assert_eq!((used.cost_limit, used.spawned_last_minute), (Some(2.0), 1));
    assert_eq!(
        store
            .tree_use(root.id, at(80))
            .await
            .must()
            .spawned_last_minute,
        0
    );

    let root = spawned(store, &new(session(200, one, 100), "go")).await;
    let hasty = |n| NewSession {
        limits: TreeLimits {
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
        Spawned::OverLimit(Limit::Rate)
    );
}

pub(super) async fn a_decision_is_taken_once_and_in_time(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let made = spawned(store, &new(session(1, one, 1), "go")).await;
    let decision = |id: &str, deadline| Decision {
        request_id: id.to_owned(),
        kind: AwaitedRequestKind::Permission,
        detail: "{}".to_owned(),
        deadline: at(deadline),
        verdict: None,
        answer: None,
    };
    let asked = Step {
        at: at(2),
        decisions: vec![decision("a", 10), decision("b", 20)],
        ..Step::default()
    };
    store.step(made.id, asked).await.must();
    let decide = |id: &'static str, verdict, second| {
        store.decide(made.id, id, verdict, None, at(second), None)
    };
    assert_eq!(
        decide("a", PermissionDecision::Allow, 3).await.must(),
        Decided::Done
    );
    assert_eq!(
        decide("a", PermissionDecision::Deny, 4).await.must(),
        Decided::Late
    );
    assert_eq!(
        decide("b", PermissionDecision::Deny, 21).await.must(),
        Decided::Late
    );
    assert_eq!(
        decide("c", PermissionDecision::Deny, 3).await.must(),
        Decided::NoSuchRequest
    );
    let all = store.decisions(made.id).await.must();
    let verdicts: Vec<_> = all.iter().map(|decision| decision.verdict).collect();
    assert_eq!(verdicts, [Some(PermissionDecision::Allow), None]);
    let settled = Step {
        at: at(5),
        decisions_done: vec!["a".to_owned()],
        ..Step::default()
    };
    store.step(made.id, settled).await.must();
    assert_eq!(store.decisions(made.id).await.must().len(), 1);
}

pub(super) async fn messages_wait_in_order_and_wake_an_ended_session(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let made = spawned(store, &new(session(1, one, 1), "first")).await;
    let second = message("second", 2);
    let queued = store.queue_message(made.id, &second, None).await.must();
    assert!(queued.is_some_and(|(_, resumed)| !resumed));
    for text in ["first", "second"] {
        let next = store.next_message(made.id).await.must().must_be();
        assert_eq!(next.text, text);
        let done = Step {
            at: at(3),
            message_done: Some(next.id),
            ..Step::default()
        };
        store.step(made.id, done).await.must();
    }
    let failed = Step {
        error: Some(Some("it broke".to_owned())),
        ..ending(Status::Failed, 4)
    };
    store.step(made.id, failed).await.must();
    store.want(&[made.id], Wanted::End, None).await.must();
    let third = Message {
        change_id: Some("add-login".to_owned()),
        ..message("third", 5)
    };
    let queued = store.queue_message(made.id, &third, None).await;
    let (now, resumed) = queued.must().must_be();
    assert!(resumed);
    let choices = Choices {
        change_id: Some("add-login".to_owned()),
        ..made.choices
    };
    assert_eq!(now.choices, choices);
    assert_eq!(
        (now.status, now.error, now.wanted),
        (Status::Created, None, None)
    );
    assert_eq!(now.ended_at, None);
    let missing = SessionId::new(Uuid::from_u128(9));
    let nobody = store.queue_message(missing, &message("x", 6), None).await;
    assert_eq!(nobody.must(), None);
}

pub(super) async fn a_workspace_in_use_stays(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let feature = Workspace {
        id: "feature".parse().must(),
        created_at: at(1),
    };
    store.add_workspace(one, &feature).await.must();
    let there = Session {
        workspace_id: feature.id.clone(),
        ..session(1, one, 1)
    };
    let made = spawned(store, &new(there, "go")).await;
    let refused = store.remove_workspace(one, &feature.id, None).await;
    assert!(matches!(refused, Err(StoreError::InUse)), "{refused:?}");
    store
        .step(made.id, ending(Status::Completed, 2))
        .await
        .must();
    assert!(store.remove_workspace(one, &feature.id, None).await.must());
}

pub(super) async fn the_logs_of_a_tree_are_read_in_the_order_of_their_commits(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let Spawned::New(below) = child(store, 2, &root, 2).await else {
        panic!("within every limit");
    };
    spawned(store, &new(session(3, one, 3), "other tree")).await;
    for (id, text) in [(root.id, "1"), (below.id, "2"), (root.id, "3")] {
        let step = Step {
            at: at(4),
            events: vec![Event::Delta {
                text: text.to_owned(),
                thought: false,
            }],
            ..Step::default()
        };
        store.step(id, step).await.must();
    }
    let all = store.tree_events(root.id, 0, 100, usize::MAX).await.must();
    let places: Vec<_> = all
        .iter()
        .map(|e| (e.session_id == root.id, e.index))
        .collect();
    // The child's making is in the parent's log.
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
    assert_eq!(store.deltas(root.id, 0).await.must(), ["1", "3"]);
    assert_eq!(store.deltas(root.id, 3).await.must(), ["3"]);
    let tree = store.tree(root.id).await.must();
    let ids: Vec<_> = tree.iter().map(|session| session.id).collect();
    assert_eq!(ids, [root.id, below.id]);
    let ended = Step {
        to_parent: vec![Event::ChildEnded {
            child_id: below.id,
            status: Status::Completed,
            error: None,
        }],
        ..ending(Status::Completed, 5)
    };
    let stepped = store.step(below.id, ended).await.must().must_be();
    assert_eq!(stepped.parent_id, Some(root.id));
    assert_eq!(
        texts(store, root.id).await.last(),
        Some(&(4, "child_ended".to_owned()))
    );
}

pub(super) async fn ended_sessions_are_removed_leaves_first(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let root = spawned(store, &new(session(1, one, 1), "go")).await;
    let Spawned::New(below) = child(store, 2, &root, 2).await else {
        panic!("within every limit");
    };
    store
        .step(root.id, ending(Status::Completed, 5))
        .await
        .must();
    let remove = |second| store.remove_ended(Visible::Only(one), at(second), None);
    assert_eq!(remove(100).await.must(), [], "a child of it is active");
    store
        .step(below.id, ending(Status::Completed, 6))
        .await
        .must();
    assert_eq!(remove(3).await.must(), [], "they ended later");
    assert_eq!(remove(100).await.must(), [below.id, root.id]);
    assert_eq!(store.session(root.id).await.must(), None);
    assert!(store.events(root.id, -1, 10, 1000).await.must().is_empty());
}

pub(super) async fn old_events_are_trimmed_and_the_log_says_so(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let made = spawned(store, &new(session(1, one, 1), "go")).await;
    for second in 2..12 {
        let step = Step {
            at: at(second),
            events: vec![Event::Completion {
                text: second.to_string(),
                stop_reason: StopReason::EndTurn,
                error: None,
            }],
            ..Step::default()
        };
        store.step(made.id, step).await.must();
    }
    assert_eq!(store.trim_events(at(5), 1000).await.must(), 3);
    let log = texts(store, made.id).await;
    assert_eq!(
        log.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
        [0, 4, 5, 6, 7, 8, 9, 10]
    );
    assert_eq!(
        store.session(made.id).await.must().must_be().trimmed_before,
        4
    );
    assert_eq!(store.trim_events(at(0), 4).await.must(), 3);
    assert_eq!(
        store.session(made.id).await.must().must_be().trimmed_before,
        7
    );
}

trait MustBe<T> {
    fn must_be(self) -> T;
}

impl<T> MustBe<T> for Option<T> {
    #[track_caller]
    fn must_be(self) -> T {
        self.unwrap_or_else(|| panic!("it is not there"))
    }
}
