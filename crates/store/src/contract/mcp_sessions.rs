//! What every store promises about MCP sessions.

use super::{Must, at, token_id};
use crate::{McpSession, Store};

pub(super) async fn sessions_are_replaced_bounded_and_trimmed(store: &dyn Store) {
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
        "the oldest made room"
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
