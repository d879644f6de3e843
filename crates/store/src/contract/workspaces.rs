//! Contract tests for workspaces.

use oubliette_model::WorkspaceId;

use super::{Must, at, entry, project, ready};
use crate::{AuditFilter, Store, StoreError, Workspace};

pub(super) async fn workspaces_belong_to_their_project(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let two = ready(store, 2, "two").await.id;
    let feature = Workspace {
        id: "feature".parse().must(),
        created_at: at(3),
    };

    assert!(store.add_workspace(one, &feature, 3).await.must());
    let again = store.add_workspace(one, &feature, 3).await;
    assert!(matches!(again, Err(StoreError::Duplicate)), "{again:?}");
    assert!(
        !store
            .add_workspace(project(9, "x").id, &feature, 3)
            .await
            .must()
    );

    let other = Workspace {
        id: "other".parse().must(),
        created_at: at(4),
    };
    let refused = store.add_workspace(one, &other, 2).await;
    assert!(
        matches!(refused, Err(StoreError::TooManyWorkspaces { count: 2 })),
        "{refused:?}"
    );

    assert_eq!(
        store.workspace(one, &feature.id).await.must(),
        Some(feature.clone())
    );
    assert_eq!(store.workspace(two, &feature.id).await.must(), None);
    let listed = store.workspaces(one, None, 10).await.must();
    let ids: Vec<_> = listed
        .rows
        .iter()
        .map(|workspace| workspace.id.as_str())
        .collect();
    assert_eq!(ids, [WorkspaceId::DEFAULT, "feature"]);
    let page = store.workspaces(one, None, 1).await.must();
    assert_eq!(page.next.as_deref(), Some(WorkspaceId::DEFAULT));

    let removal = Some(entry("workspace_delete"));
    assert!(
        store
            .remove_workspace(one, &feature.id, removal.clone())
            .await
            .must()
    );
    assert!(
        !store
            .remove_workspace(one, &feature.id, removal)
            .await
            .must()
    );
    let logged = store
        .audit_records(&AuditFilter::default(), None, 10)
        .await
        .must();
    assert_eq!(
        logged.rows.len(),
        1,
        "only the removal that happened is logged"
    );
}
