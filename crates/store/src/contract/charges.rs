//! Contract tests for charges.

use oubliette_model::{Event, SessionId, Usage};

use super::sessions::{new, session, spawned};
use super::{Must, MustBe, at, ready};
use crate::{SessionCharge, Store};

fn charge(session: SessionId, tokens: u64, cost_usd: f64, unpriced_turns: u32) -> SessionCharge {
    SessionCharge {
        session,
        usage: Usage {
            input_tokens: tokens,
            unpriced_turns,
            ..Usage::default()
        },
        cost_usd,
        model: Some("m".to_owned()),
        is_estimate: false,
    }
}

pub(super) async fn charges_are_counted_once_with_the_offset(store: &dyn Store) {
    let project = ready(store, 1, "one").await.id;
    let created = spawned(store, &new(session(1, project, 5), "hello")).await;
    let gone = session(9, project, 5).id;
    assert_eq!(store.charges_read().await.must(), 0);
    let charges = vec![charge(created.id, 10, 0.5, 0), charge(gone, 1, 1.0, 0)];
    let charged = store
        .add_charges(charges.clone(), 0, 100, at(6))
        .await
        .must();
    assert_eq!(charged.len(), 1);
    assert_eq!(
        (charged[0].session, charged[0].root_id),
        (created.id, created.root_id)
    );
    // Read again by a server that was killed after its commit.
    let again = store.add_charges(charges, 0, 100, at(7)).await.must();
    assert!(again.is_empty());
    assert_eq!(store.charges_read().await.must(), 100);
    let now = store.session(created.id).await.must().must_be();
    assert_eq!((now.usage.input_tokens, now.cost_usd), (10, 0.5));
    assert_eq!(now.total_cost_usd(), Some(0.5));
    let unknown = vec![charge(created.id, 5, 2.0, 1)];
    store.add_charges(unknown, 100, 150, at(8)).await.must();
    let now = store.session(created.id).await.must().must_be();
    assert_eq!((now.usage.input_tokens, now.cost_usd), (15, 2.5));
    assert_eq!(now.total_cost_usd(), None, "shown as unknown");
    let used = store.tree_usage(created.root_id, at(9)).await.must();
    assert_eq!(used.cost_usd, 2.5, "and counted");
    let events = store.events(created.id, -1, 100, 1 << 20).await.must();
    let costs: Vec<Option<f64>> = events
        .iter()
        .filter_map(|stored| match serde_json::from_str(&stored.body) {
            Ok(Event::Usage { cost_usd, .. }) => Some(cost_usd),
            _ => None,
        })
        .collect();
    assert_eq!(costs, [Some(0.5), None]);
}
