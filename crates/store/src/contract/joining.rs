//! Contract tests for messages that go to the newest session that fits, and what they change there.

use futures_util::future::join_all;
use oubliette_model::{Level, Scope};

use super::sessions::{child, message, new, session, spawned};
use super::{Must, entry, ready};
use crate::{
    AuditFilter, JoinFilter, NewSession, RequestedSettings, Session, SessionChoices, SessionFilter,
    SessionMessage, SpawnOutcome, Store, VisibleProjects,
};

/// Joins a session with any settings.
pub(super) fn any_session() -> JoinFilter {
    JoinFilter {
        settings: RequestedSettings::default(),
        sender: Scope::Admin,
    }
}

pub(super) async fn joining_queues_the_message_for_the_newest_session(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let older = spawned(store, &new(session(1, one, 1), "a")).await;
    let newer = spawned(store, &new(session(2, one, 2), "b")).await;
    child(store, 3, &newer, 3).await;
    let join = NewSession {
        join: Some(any_session()),
        ..new(session(9, one, 4), "c")
    };
    match store.spawn_session(&join, Some(entry("x"))).await.must() {
        SpawnOutcome::Joined { session, resumed } => {
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
        join: Some(JoinFilter {
            settings: RequestedSettings {
                agent: Some("other".to_owned()),
                ..RequestedSettings::default()
            },
            ..any_session()
        }),
        ..new(other_agent, "d")
    };
    assert!(matches!(
        store.spawn_session(&join, None).await.must(),
        SpawnOutcome::New(_)
    ));
    let logged = store
        .audit_records(&AuditFilter::default(), None, 10)
        .await
        .must();
    assert_eq!(logged.rows.len(), 1);
}

pub(super) async fn only_a_session_with_the_given_settings_is_joined(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let with = |n: u128, change: &dyn Fn(&mut SessionChoices)| {
        let mut session = session(n, one, n as i64);
        change(&mut session.choices);
        session
    };
    let scope: Scope = "write".parse().must();
    let own: Scope = format!("project:{one}").parse().must();
    let named = with(1, &|it| it.external_id = Some("thread".to_owned()));
    let granted = with(2, &|it| {
        it.agent_scope = Some(scope);
        it.granted = Some(Scope::Admin);
    });
    for session in [&named, &granted] {
        spawned(store, &new(session.clone(), "x")).await;
    }
    let given = |change: &dyn Fn(&mut SessionChoices)| {
        let mut filter = any_session();
        change(&mut filter.settings.given);
        filter
    };
    let narrow_sender = JoinFilter {
        sender: own,
        ..any_session()
    };
    let mut number = 900;
    for (filter, expected) in [
        (any_session(), Some(granted.id)),
        (
            given(&|it| it.model = Some("m".to_owned())),
            Some(granted.id),
        ),
        (
            given(&|it| it.external_id = Some("thread".to_owned())),
            Some(named.id),
        ),
        (given(&|it| it.agent_scope = Some(scope)), Some(granted.id)),
        // The key of the newest session's agent is wider than the sender's scope.
        (narrow_sender, Some(named.id)),
        (given(&|it| it.source = Some("chat".to_owned())), None),
        (given(&|it| it.autonomy = Some(Level::Off)), None),
    ] {
        number += 1;
        let join = NewSession {
            join: Some(filter.clone()),
            message: None,
            ..new(session(number, one, 90), "x")
        };
        let joined = match store.spawn_session(&join, None).await.must() {
            SpawnOutcome::Joined { session, .. } => Some(session.id),
            SpawnOutcome::New(_) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(joined, expected, "{filter:?}");
    }
}

pub(super) async fn a_message_narrows_the_grant_to_its_senders_scope(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let own: Scope = format!("project:{one}").parse().must();
    let mut granted = session(1, one, 1);
    granted.choices.granted = Some(Scope::Admin);
    let created = spawned(store, &new(granted, "x")).await;
    for (sender, expected) in [
        (Some(Scope::Admin), Scope::Admin),
        (None, Scope::Admin),
        (Some(Scope::Write), Scope::Write),
        (Some(own), own),
        (Some(Scope::Admin), own),
    ] {
        let message = SessionMessage {
            sender_scope: sender,
            ..message("more", 2)
        };
        let queued = store.queue_message(created.id, &message, None).await.must();
        let granted = queued.and_then(|(session, _)| session.choices.granted);
        assert_eq!(granted, Some(expected), "{sender:?}");
    }
}

pub(super) async fn concurrent_joining_spawns_create_one_session(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let spawns: Vec<NewSession> = (1..=20)
        .map(|n| NewSession {
            join: Some(any_session()),
            ..new(session(n, one, 1), "go")
        })
        .collect();
    let outcomes = join_all(spawns.iter().map(|new| store.spawn_session(new, None))).await;
    let created = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Ok(SpawnOutcome::New(_))));
    assert_eq!(created.count(), 1);
    let page = store
        .sessions(VisibleProjects::All, &SessionFilter::default(), None, 100)
        .await
        .must();
    assert_eq!(page.rows.len(), 1);
    assert_eq!(store.queued_messages(page.rows[0].id).await.must(), 20);
}
