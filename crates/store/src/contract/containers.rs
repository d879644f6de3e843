//! What every store promises about containers and named commands.

use oubliette_model::ApiKey;

use super::{Must, at, project, ready};
use crate::{Container, Exec, Store, Workspace};

pub(super) async fn containers_go_with_their_project(store: &dyn Store) {
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
    assert!(store.add_workspace(one, &workspace).await.must());
    assert!(store.put_container(&nowhere).await.must());
    let two = ready(store, 2, "two").await.id;
    assert_eq!(store.containers_of(one).await.must(), [renewed, nowhere]);
    assert_eq!(store.containers_of(two).await.must(), []);
    store.condemn(one, None).await.must();
    store.erase(one).await.must();
    assert_eq!(store.containers().await.must(), []);
    store.remove_container("c1").await.must();
}

pub(super) async fn a_named_command_begins_once_and_remembers_its_result(store: &dyn Store) {
    let one = ready(store, 1, "one").await.id;
    let exec = Exec {
        project_id: one,
        exec_id: "build".to_owned(),
        boot_id: "b1".to_owned(),
        started_at: at(1),
        result: None,
    };
    assert_eq!(store.exec(one, "build").await.must(), None);
    assert_eq!(store.begin_exec(&exec).await.must(), None);
    assert_eq!(store.exec(one, "build").await.must(), Some(exec.clone()));
    let again = Exec {
        boot_id: "b2".to_owned(),
        started_at: at(5),
        ..exec.clone()
    };
    assert_eq!(store.begin_exec(&again).await.must(), Some(exec.clone()));
    store.end_exec(one, "build", "{}").await.must();
    let ended = Exec {
        result: Some("{}".to_owned()),
        ..exec
    };
    assert_eq!(store.begin_exec(&again).await.must(), Some(ended));
    assert_eq!(store.trim_execs(at(2)).await.must(), 1);
    assert_eq!(store.begin_exec(&again).await.must(), None);
}
