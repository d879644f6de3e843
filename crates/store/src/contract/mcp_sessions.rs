//! Contract tests for MCP sessions.

use super::sessions::{new, session as agent_session, spawned};
use super::{Must, at, ready, token_id};
use crate::{McpSession, Store};

pub(super) async fn mcp_sessions_are_replaced_limited_and_trimmed(store: &dyn Store) {
    let session = |n: u8, token: u128| McpSession {
        id: format!("session {n}"),
        token_id: token_id(token),
        state: "{}".to_owned(),
        seen_at: at(n.into()),
    };
    for n in 0..4 {
        store.put_mcp_session(&session(n, 1), 3).await.must();
    }
    store.put_mcp_session(&session(9, 2), 3).await.must();
    assert_eq!(
        store.mcp_session("session 0").await.must(),
        None,
        "the oldest session is deleted"
    );
    assert_eq!(
        store.mcp_session("session 1").await.must(),
        Some(session(1, 1))
    );

    let changed = McpSession {
        state: "{\"a\":1}".to_owned(),
        ..session(1, 1)
    };
    store.put_mcp_session(&changed, 3).await.must();
    assert_eq!(store.mcp_session("session 1").await.must(), Some(changed));

    store
        .touch_mcp_sessions(vec!["session 1".to_owned()], at(20))
        .await
        .must();
    assert_eq!(store.trim_mcp_sessions(at(9)).await.must(), 2);
    assert!(store.mcp_session("session 1").await.must().is_some());
    store.remove_mcp_session("session 1").await.must();
    assert_eq!(store.mcp_session("session 1").await.must(), None);
}

pub(super) async fn a_session_is_bound_to_the_mcp_session_that_named_it_last(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let first = spawned(store, &new(agent_session(1, one, 1), "go"))
        .await
        .id;
    let second = spawned(store, &new(agent_session(2, one, 1), "go"))
        .await
        .id;
    for id in ["a", "b"] {
        let session = McpSession {
            id: id.to_owned(),
            token_id: token_id(1),
            state: "{}".to_owned(),
            seen_at: at(1),
        };
        store.put_mcp_session(&session, 3).await.must();
    }
    for (session, mcp_session) in [(first, "a"), (second, "a"), (second, "b"), (first, "gone")] {
        store.bind_session(session, mcp_session).await.must();
    }
    assert_eq!(store.bound_sessions("a").await.must(), [first]);
    assert_eq!(store.bound_sessions("b").await.must(), [second]);
    assert_eq!(store.bound_sessions("gone").await.must(), []);
    store.remove_mcp_session("b").await.must();
    assert_eq!(store.bound_sessions("b").await.must(), []);
}
