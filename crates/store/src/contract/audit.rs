//! Contract tests for the audit log.

use super::{Must, at, entry, project, token_id};
use crate::{AuditEntry, AuditFilter, AuditOutcome, Store};

pub(super) async fn audit_entries_commit_with_their_write(store: &dyn Store) {
    let one = project(1, "one");
    let done = AuditEntry {
        project_id: Some(one.id),
        ..entry("project_create")
    };
    assert!(
        !store
            .confirm_project(one.id, Some(done.clone()))
            .await
            .must()
    );
    assert!(
        store
            .audit_records(&AuditFilter::default(), None, 10)
            .await
            .must()
            .rows
            .is_empty()
    );

    store.reserve_project(&one).await.must();
    store
        .confirm_project(one.id, Some(done.clone()))
        .await
        .must();
    let logged = store
        .audit_records(&AuditFilter::default(), None, 10)
        .await
        .must();
    assert_eq!(
        logged
            .rows
            .into_iter()
            .map(|record| record.entry)
            .collect::<Vec<_>>(),
        [done]
    );
}

pub(super) async fn audit_filters_and_pages_agree(store: &dyn Store) {
    let entries: Vec<_> = (0..20u8)
        .map(|n| AuditEntry {
            at: at(n.into()),
            token_id: Some(token_id(u128::from(n % 2))),
            project_id: (n % 4 == 0).then(|| project(1, "x").id),
            outcome: if n % 5 == 0 {
                AuditOutcome::Refused
            } else {
                AuditOutcome::Ok
            },
            address: Some("127.0.0.1".to_owned()),
            ..entry(if n % 3 == 0 {
                "project_get"
            } else {
                "project_list"
            })
        })
        .collect();
    store.append_audit(entries.clone()).await.must();

    let all = |filter: AuditFilter| async move {
        let mut found = Vec::new();
        let mut cursor = None;
        loop {
            let page = store
                .audit_records(&filter, cursor.as_deref(), 3)
                .await
                .must();
            found.extend(page.rows.into_iter().map(|record| record.entry));
            cursor = page.next;
            if cursor.is_none() {
                return found;
            }
        }
    };
    let expected = |keep: &dyn Fn(&AuditEntry) -> bool| {
        entries
            .iter()
            .rev()
            .filter(|entry| keep(entry))
            .cloned()
            .collect::<Vec<_>>()
    };
    let any = AuditFilter::default();
    assert_eq!(all(any.clone()).await, expected(&|_| true));
    let by_token = AuditFilter {
        token_id: Some(token_id(1)),
        ..any.clone()
    };
    assert_eq!(
        all(by_token).await,
        expected(&|e| e.token_id == Some(token_id(1)))
    );
    let by_project = AuditFilter {
        project_id: Some(project(1, "x").id),
        ..any.clone()
    };
    assert_eq!(all(by_project).await, expected(&|e| e.project_id.is_some()));
    let refused = AuditFilter {
        outcome: Some(AuditOutcome::Refused),
        ..any.clone()
    };
    assert_eq!(
        all(refused).await,
        expected(&|e| e.outcome == AuditOutcome::Refused)
    );
    let gets = AuditFilter {
        operation: Some("project_get".to_owned()),
        ..any.clone()
    };
    assert_eq!(all(gets).await, expected(&|e| e.operation == "project_get"));
    let recent = AuditFilter {
        since: Some(at(15)),
        ..any
    };
    assert_eq!(all(recent).await, expected(&|e| e.at >= at(15)));
}

pub(super) async fn old_audit_entries_are_trimmed(store: &dyn Store) {
    let entries = (0..10)
        .map(|n| AuditEntry {
            at: at(n),
            ..entry("x")
        })
        .collect();
    store.append_audit(entries).await.must();
    assert_eq!(store.trim_audit(at(4)).await.must(), 4);
    let left = store
        .audit_records(&AuditFilter::default(), None, 100)
        .await
        .must();
    assert_eq!(left.rows.len(), 6);
}
