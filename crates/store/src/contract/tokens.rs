//! Contract tests for tokens.

use oubliette_model::{ApiKey, Scope};

use super::sessions::{new, session, spawned};
use super::{Must, at, project, ready, token_id};
use crate::{RevokeOutcome, Session, Store, Token};

fn token(n: u128, scope: &str) -> (Token, ApiKey) {
    let token = Token {
        id: token_id(n),
        name: format!("token {n}"),
        scope: scope.parse::<Scope>().must(),
        session_id: None,
        minted: false,
        created_at: at(n as i64),
        expires_at: None,
        revoked_at: None,
    };
    (token, ApiKey::from_random([n as u8; 32]))
}

pub(super) async fn a_token_is_found_by_its_hash(store: &dyn Store) {
    let (mut admin, key) = token(1, "admin");
    admin.expires_at = Some(at(100));
    assert!(store.add_token(&admin, key.hash(), None).await.must());
    assert_eq!(
        store.token_by_hash(key.hash()).await.must(),
        Some(admin.clone())
    );
    assert_eq!(store.token(admin.id).await.must(), Some(admin));
    let other = ApiKey::from_random([9; 32]);
    assert_eq!(store.token_by_hash(other.hash()).await.must(), None);
}

pub(super) async fn a_scope_for_a_missing_project_is_refused(store: &dyn Store) {
    let missing = project(7, "missing");
    let (bound, key) = token(1, &format!("project:{}", missing.id));
    assert!(!store.add_token(&bound, key.hash(), None).await.must());
    assert_eq!(store.token(bound.id).await.must(), None);
    ready(store, 7, "missing").await;
    assert!(store.add_token(&bound, key.hash(), None).await.must());
}

pub(super) async fn the_last_admin_token_cannot_be_revoked(store: &dyn Store) {
    assert!(!store.has_admin_token(at(0)).await.must());
    let (first, first_key) = token(1, "admin");
    let (mut second, second_key) = token(2, "admin");
    second.expires_at = Some(at(50));
    store.add_token(&first, first_key.hash(), None).await.must();
    store
        .add_token(&second, second_key.hash(), None)
        .await
        .must();
    assert!(store.has_admin_token(at(10)).await.must());

    let late = at(60);
    assert_eq!(
        store.revoke_token(first.id, late, None).await.must(),
        RevokeOutcome::LastAdmin
    );
    assert_eq!(
        store.revoke_token(second.id, late, None).await.must(),
        RevokeOutcome::Already
    );
    assert_eq!(
        store.revoke_token(token_id(9), late, None).await.must(),
        RevokeOutcome::NoSuchToken
    );

    assert_eq!(
        store.revoke_token(first.id, at(10), None).await.must(),
        RevokeOutcome::Done
    );
    assert_eq!(
        store.revoke_token(first.id, at(10), None).await.must(),
        RevokeOutcome::Already
    );
    let stored = store.token_by_hash(first_key.hash()).await.must();
    assert_eq!(stored.and_then(|token| token.revoked_at), Some(at(10)));
    assert_eq!(
        store.revoke_token(second.id, at(10), None).await.must(),
        RevokeOutcome::LastAdmin
    );
}

pub(super) async fn a_tree_has_the_owner_of_its_root(store: &dyn Store) {
    let (owner, key) = token(1, "write");
    store.add_token(&owner, key.hash(), None).await.must();
    let one = ready(store, 1, "one").await.id;
    let root = Session {
        owner_id: Some(owner.id),
        ..session(1, one, 1)
    };
    let child = Session {
        parent_id: Some(root.id),
        root_id: root.id,
        depth: 1,
        owner_id: Some(token_id(9)),
        ..session(2, one, 2)
    };
    let unowned = session(3, one, 3);
    for session in [&root, &child, &unowned] {
        spawned(store, &new(session.clone(), "x")).await;
    }
    for session in [root.id, child.id] {
        let found = store.tree_owner(session).await.must();
        assert_eq!(found.as_ref(), Some(&owner));
    }
    assert_eq!(store.tree_owner(unowned.id).await.must(), None);
}

pub(super) async fn tokens_are_paged_in_order(store: &dyn Store) {
    for n in 0..5 {
        let (token, key) = token(n, "read");
        store.add_token(&token, key.hash(), None).await.must();
    }
    let first = store.tokens(None, 3).await.must();
    let second = store.tokens(first.next.as_deref(), 3).await.must();
    let ids = first.rows.iter().chain(&second.rows).map(|token| token.id);
    assert_eq!(
        ids.collect::<Vec<_>>(),
        (0..5).map(token_id).collect::<Vec<_>>()
    );
    assert_eq!(second.next, None);
}
