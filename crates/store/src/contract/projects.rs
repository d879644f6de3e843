//! Contract tests for projects.

use oubliette_model::{ApiKey, EnvValue, Scope};

use super::{Must, at, entry, project, ready, token_id};
use crate::{
    AuditFilter, Project, ProjectState, ProjectUpdate, Store, StoreError, Token, VisibleProjects,
};

pub(super) async fn a_reserved_project_is_hidden_until_it_is_confirmed(store: &dyn Store) {
    let project = project(1, "one");
    store.reserve_project(&project).await.must();
    assert_eq!(store.project(project.id).await.must(), None);
    assert_eq!(
        store
            .projects(VisibleProjects::All, None, 10)
            .await
            .must()
            .rows,
        []
    );
    assert_eq!(
        store.unfinished_projects().await.must(),
        [(project.id, ProjectState::Creating)]
    );

    assert!(store.confirm_project(project.id, None).await.must());
    assert!(
        !store.confirm_project(project.id, None).await.must(),
        "confirmed twice"
    );
    assert_eq!(
        store.project(project.id).await.must(),
        Some(project.clone())
    );
    assert_eq!(store.unfinished_projects().await.must(), []);
    assert_eq!(store.count_projects().await.must(), 1);
}

pub(super) async fn project_names_are_unique_including_reserved_ones(store: &dyn Store) {
    store.reserve_project(&project(1, "same")).await.must();
    let second = store.reserve_project(&project(2, "same")).await;
    assert!(matches!(second, Err(StoreError::Duplicate)), "{second:?}");
    store.delete_project(project(1, "same").id).await.must();
    store.reserve_project(&project(2, "same")).await.must();
}

pub(super) async fn projects_are_found_by_name_and_by_the_beginning_of_the_id(store: &dyn Store) {
    let one = ready(store, 0xabcd << 112, "one").await;
    let two = ready(store, 0xabce << 112, "two").await;
    // Its name is the beginning of another's id.
    let three = ready(store, 3, "abcd").await;
    store.reserve_project(&project(4, "hidden")).await.must();
    let find = async |visible, name: &str, prefix: Option<&str>| {
        let found = store
            .projects_matching(visible, name, prefix, 10)
            .await
            .must();
        found
            .into_iter()
            .map(|project| project.id)
            .collect::<Vec<_>>()
    };
    let all = VisibleProjects::All;
    assert_eq!(find(all, "one", None).await, [one.id]);
    assert_eq!(find(all, "hidden", None).await, []);
    assert_eq!(find(all, "abc", Some("abc")).await, [one.id, two.id]);
    assert_eq!(find(all, "abcd", Some("abcd")).await, [three.id, one.id]);
    assert_eq!(find(all, "abc%", Some("abcf")).await, []);
    let only = VisibleProjects::Only(two.id);
    assert_eq!(find(only, "one", Some("abcd")).await, []);
    assert_eq!(find(only, "x", Some("abc")).await, [two.id]);
}

pub(super) async fn one_of_fifty_concurrent_reservations_succeeds(store: &dyn Store) {
    let rivals: Vec<_> = (1..=50).map(|n| project(n, "prize")).collect();
    let mut races: Vec<_> = rivals
        .iter()
        .map(|rival| store.reserve_project(rival))
        .collect();
    let mut wins = 0;
    // All futures are polled once before any of them completes.
    std::future::poll_fn(|context| {
        races.retain_mut(|race| match race.as_mut().poll(context) {
            std::task::Poll::Ready(Ok(())) => {
                wins += 1;
                false
            }
            std::task::Poll::Ready(Err(error)) => {
                assert!(matches!(error, StoreError::Duplicate), "{error:?}");
                false
            }
            std::task::Poll::Pending => true,
        });
        if races.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    assert_eq!(wins, 1);
}

pub(super) async fn updates_from_an_old_revision_are_stale(store: &dyn Store) {
    let original = ready(store, 1, "one").await;
    let mut changed = Project {
        updated_at: at(9),
        ..original.clone()
    };
    changed.settings.description = "first".to_owned();
    let ProjectUpdate::Done(now) = store.update_project(&changed, None).await.must() else {
        panic!("the first update must pass")
    };
    assert_eq!(
        (now.revision, now.settings.description.as_str()),
        (2, "first")
    );

    changed.settings.description = "second, from what was read before the first".to_owned();
    assert_eq!(
        store
            .update_project(&changed, Some(entry("lost")))
            .await
            .must(),
        ProjectUpdate::Stale
    );
    assert_eq!(store.project(original.id).await.must(), Some(*now));
    let logged = store
        .audit_records(&AuditFilter::default(), None, 10)
        .await
        .must();
    assert!(
        logged.rows.is_empty(),
        "a stale update must not be logged as done"
    );
}

pub(super) async fn renaming_to_a_taken_name_changes_nothing(store: &dyn Store) {
    ready(store, 1, "one").await;
    let two = ready(store, 2, "two").await;
    let renamed = Project {
        name: "one".parse().must(),
        ..two.clone()
    };
    let outcome = store.update_project(&renamed, None).await;
    assert!(matches!(outcome, Err(StoreError::Duplicate)), "{outcome:?}");
    assert_eq!(store.project(two.id).await.must(), Some(two));
}

pub(super) async fn pages_list_all_projects_ordered_by_name(store: &dyn Store) {
    for n in 0..25 {
        ready(store, n + 1, &format!("project {:02}", (n * 7) % 25)).await;
    }
    let mut names = Vec::new();
    let mut cursor = None;
    loop {
        let page = store
            .projects(VisibleProjects::All, cursor.as_deref(), 10)
            .await
            .must();
        assert!(page.rows.len() <= 10);
        names.extend(page.rows.iter().map(|project| project.name.to_string()));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(
        names,
        (0..25)
            .map(|n| format!("project {n:02}"))
            .collect::<Vec<_>>()
    );

    let only = project(3, "unused").id;
    let page = store
        .projects(VisibleProjects::Only(only), None, 10)
        .await
        .must();
    assert_eq!(
        page.rows
            .iter()
            .map(|project| project.id)
            .collect::<Vec<_>>(),
        [only]
    );
    assert_eq!(page.next, None);
}

pub(super) async fn deleting_a_project_deletes_its_tokens_and_workspaces(store: &dyn Store) {
    let kept = ready(store, 1, "kept").await;
    let gone = ready(store, 2, "gone").await;
    for (n, scope) in [
        format!("project:{}", gone.id),
        format!("project:{}:ro", gone.id),
        format!("project:{}", kept.id),
    ]
    .iter()
    .enumerate()
    {
        let token = Token {
            id: token_id(n as u128),
            name: "t".to_owned(),
            scope: scope.parse::<Scope>().must(),
            session_id: None,
            minted: false,
            created_at: at(0),
            expires_at: None,
            revoked_at: None,
        };
        let hash = ApiKey::from_random([n as u8; 32]).hash();
        assert!(store.add_token(&token, hash, None).await.must());
    }
    assert_eq!(
        store
            .mark_project_deleting(gone.id, Some(entry("project_delete")))
            .await
            .must(),
        Some(2)
    );
    assert_eq!(
        store.mark_project_deleting(gone.id, None).await.must(),
        None,
        "condemned twice"
    );
    assert_eq!(store.project(gone.id).await.must(), None);
    assert_eq!(
        store.unfinished_projects().await.must(),
        [(gone.id, ProjectState::Deleting)]
    );
    store.delete_project(gone.id).await.must();
    assert_eq!(store.unfinished_projects().await.must(), []);
    assert!(
        store
            .workspaces(gone.id, None, 10)
            .await
            .must()
            .rows
            .is_empty()
    );
    assert_eq!(store.tokens(None, 10).await.must().rows.len(), 1);
    assert_eq!(store.project(kept.id).await.must(), Some(kept));
}

pub(super) async fn secrets_in_settings_are_stored_and_read_unchanged(store: &dyn Store) {
    let mut project = project(1, "one");
    project
        .settings
        .env
        .insert("KEY".to_owned(), EnvValue::new("hunter2", None));
    store.reserve_project(&project).await.must();
    store.confirm_project(project.id, None).await.must();
    let stored = store
        .project(project.id)
        .await
        .must()
        .map(|project| project.settings);
    assert_eq!(stored.as_ref(), Some(&project.settings));
    assert_eq!(
        stored.map(|s| s.env["KEY"].reveal().to_owned()).as_deref(),
        Some("hunter2")
    );
}
