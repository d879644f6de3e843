//! Scans and collections on a real engine with real files.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use oubliette_model::{Scope, TokenId, WorkspaceId};
use oubliette_store::sqlite::Sqlite;
use serde_json::json;
use uuid::Uuid;

use crate::{Actor, Call, Engine, Settings};

#[tokio::test]
async fn objects_are_not_removed_before_the_tree_of_their_scan_is_stored() {
    let home = tempfile::tempdir().unwrap();
    let store = Arc::new(Sqlite::open(&home.path().join("oubliette.db")).unwrap());
    let settings = Settings::defaults(home.path());
    let engine = Engine::start(store, settings, ready(Err("none".to_owned())))
        .await
        .unwrap();
    let actor = Actor {
        token_id: TokenId::new(Uuid::new_v4()),
        scope: Scope::Admin,
        session: None,
        unattached: false,
        address: None,
    };
    let parameters = json!({ "name": "one", "init_git": false });
    let parameters = parameters.as_object().cloned().unwrap();
    let created = engine.call(&actor, "project_create", parameters, Call::new());
    let id = created.await.unwrap()["project_id"]
        .as_str()
        .unwrap()
        .parse();
    let project = engine.project(id.unwrap()).await.unwrap();
    let workspace = WorkspaceId::default();
    let root = engine.files().workspace_dir(project.id, &workspace);
    std::fs::write(root.join("file"), "content").unwrap();

    let checkpoints = engine.checkpoints();
    let scanned = checkpoints.scan(&project, &workspace).await.unwrap();
    let objects = checkpoints.objects(project.id).await.unwrap();
    let collecting = engine.clone();
    let mut collecting = tokio::spawn(async move {
        let checkpoints = collecting.checkpoints();
        checkpoints.collect_garbage(project.id).await.unwrap();
    });
    let waiting = tokio::time::timeout(Duration::from_millis(300), &mut collecting).await;
    assert!(waiting.is_err(), "nothing keeps the objects of the scan");
    assert!(objects.read_listing(scanned.tree).is_ok());
    // Its step was not committed: no session has the tree.
    drop(scanned.guard);
    let done = tokio::time::timeout(Duration::from_secs(60), collecting).await;
    done.unwrap().unwrap();
    assert!(objects.read_listing(scanned.tree).is_err());
}
