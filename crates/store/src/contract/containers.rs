//! Contract tests for containers and commands with ids.

use oubliette_model::ApiKey;

use super::{Must, at, project, ready};
use crate::{AuditEntry, AuditFilter, AuditOutcome, Container, Exec, Store, StoreError, Workspace};

pub(super) async fn deleting_a_project_deletes_its_containers(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let container = Container {
        id: "c1".to_owned(),
        project_id: one,
        workspace_id: None,
        key: ApiKey::from_random([1; 32]).hash(),
        created_at: at(1),
    };
    let foreign = Container {
        project_id: project(9, "x").id,
        ..container.clone()
    };
    assert!(!store.put_container(&foreign).await.must());
    assert!(store.put_container(&container).await.must());
    let renewed = Container {
        key: ApiKey::from_random([2; 32]).hash(),
        ..container
    };
    assert!(store.put_container(&renewed).await.must());
    assert_eq!(store.container("c1").await.must(), Some(renewed.clone()));
    let all = store.containers().await.must();
    assert_eq!(all, std::slice::from_ref(&renewed));
    let workspace = Workspace {
        id: "feature".parse().must(),
        created_at: at(3),
    };
    let nowhere = Container {
        id: "c2".to_owned(),
        workspace_id: Some(workspace.id.clone()),
        ..renewed.clone()
    };
    assert!(!store.put_container(&nowhere).await.must());
    assert!(store.add_workspace(one, &workspace, 9).await.must());
    assert!(store.put_container(&nowhere).await.must());
    let two = ready(store, 2, "two").await.id;
    assert_eq!(
        store.project_containers(one).await.must(),
        [renewed, nowhere]
    );
    assert_eq!(store.project_containers(two).await.must(), []);
    store.mark_project_deleting(one, None).await.must();
    store.delete_project(one).await.must();
    assert_eq!(store.containers().await.must(), []);
    store.remove_container("c1").await.must();
}

pub(super) async fn a_command_with_an_id_is_added_once_and_keeps_its_result(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let exec = Exec {
        project_id: one,
        exec_id: "build".to_owned(),
        boot_id: "b1".to_owned(),
        started_at: at(1),
        command_hash: Some(vec![7; 32]),
        result: None,
    };
    assert_eq!(store.exec(one, "build").await.must(), None);
    assert_eq!(store.add_exec(&exec, None).await.must(), None);
    assert_eq!(store.exec(one, "build").await.must(), Some(exec.clone()));
    let again = Exec {
        boot_id: "b2".to_owned(),
        started_at: at(5),
        command_hash: None,
        ..exec.clone()
    };
    assert_eq!(
        store.add_exec(&again, None).await.must(),
        Some(exec.clone())
    );
    store.set_exec_result(one, "build", "{}").await.must();
    let ended = Exec {
        result: Some("{}".to_owned()),
        ..exec
    };
    assert_eq!(store.add_exec(&again, None).await.must(), Some(ended));
    assert_eq!(store.trim_execs(at(2)).await.must(), 1);
    assert_eq!(store.add_exec(&again, None).await.must(), None);
    // A command without a result is removed, a command with a result is kept.
    store.remove_unstarted_exec(one, "build").await.must();
    assert_eq!(store.add_exec(&again, None).await.must(), None);
    store.set_exec_result(one, "build", "{}").await.must();
    store.remove_unstarted_exec(one, "build").await.must();
    assert!(store.add_exec(&again, None).await.must().is_some());
    let late = Exec {
        project_id: project(9, "deleted").id,
        ..again
    };
    let late = store.add_exec(&late, None).await;
    assert!(matches!(late, Err(StoreError::Gone)), "{late:?}");
}

pub(super) async fn finished_commands_are_found_by_prefix_newest_first(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let two = ready(store, 2, "two").await.id;
    let add = async |project, id: &str, second, result: Option<&str>| {
        let exec = Exec {
            project_id: project,
            exec_id: id.to_owned(),
            boot_id: "b".to_owned(),
            started_at: at(second),
            command_hash: None,
            result: None,
        };
        store.add_exec(&exec, None).await.must();
        if let Some(result) = result {
            store.set_exec_result(project, id, result).await.must();
        }
    };
    add(one, "log a 1", 3, Some("1")).await;
    add(one, "log a 2", 5, Some("2")).await;
    add(one, "log a 3", 4, None).await;
    add(one, "log a ü", 2, Some("4")).await;
    add(one, "log b 1", 9, Some("5")).await;
    add(one, "log a", 9, Some("6")).await;
    add(two, "log a 1", 9, Some("7")).await;
    let found = async |limit| -> Vec<String> {
        let execs = store.finished_execs(one, "log a ", limit).await.must();
        execs.into_iter().filter_map(|exec| exec.result).collect()
    };
    assert_eq!(found(10).await, ["2", "1", "4"]);
    assert_eq!(found(1).await, ["2"]);
}

pub(super) async fn adding_a_command_with_an_id_is_audited(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let exec = Exec {
        project_id: one,
        exec_id: "build".to_owned(),
        boot_id: "b1".to_owned(),
        started_at: at(1),
        command_hash: Some(vec![7; 32]),
        result: None,
    };
    let entry = AuditEntry {
        at: at(1),
        token_id: None,
        operation: "container_exec".to_owned(),
        project_id: Some(one),
        outcome: AuditOutcome::Ok,
        address: None,
    };
    store.add_exec(&exec, Some(entry.clone())).await.must();
    store.add_exec(&exec, Some(entry)).await.must();
    let filter = AuditFilter {
        operation: Some("container_exec".to_owned()),
        ..AuditFilter::default()
    };
    let found = store.audit_records(&filter, None, 10).await.must();
    assert_eq!(found.rows.len(), 2);
}
