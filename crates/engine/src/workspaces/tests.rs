//! Workspaces on a real engine with real files and git.

use std::process::Command;
use std::sync::Arc;

use oubliette_model::Scope;
use oubliette_store::sqlite::Sqlite;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::*;
use crate::{Actor, Settings};

async fn engine() -> (TempDir, Engine, Actor) {
    let home = tempfile::tempdir().unwrap();
    let store = Arc::new(Sqlite::open(&home.path().join("oubliette.db")).unwrap());
    let engine = Engine::start(
        store,
        Settings::defaults(home.path()),
        std::future::ready(Err("none".to_owned())),
    )
    .await
    .unwrap();
    let token_id = oubliette_model::TokenId::new(Uuid::new_v4());
    (
        home,
        engine,
        Actor {
            token_id,
            scope: Scope::Admin,
            session: None,
            unattached: false,
            address: None,
        },
    )
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

async fn project(engine: &Engine, actor: &Actor, parameters: Value) -> ProjectId {
    let project = engine
        .call(actor, "project_create", object(parameters), Call::new())
        .await
        .unwrap();
    project["project_id"].as_str().unwrap().parse().unwrap()
}

fn git(directory: &std::path::Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn workspaces_are_chosen_created_listed_and_deleted() {
    let (_home, engine, actor) = engine().await;
    let id = project(&engine, &actor, json!({ "name": "one", "init_git": false })).await;
    let call = Call::new();
    let choose = async |id_given: Option<&str>, create_workspace: bool| {
        let workspace_id = id_given.map(|id| id.parse().unwrap());
        engine
            .workspaces()
            .choose(
                id,
                &WorkspaceChoice {
                    workspace_id,
                    create_workspace,
                    from: None,
                },
                &call,
            )
            .await
    };

    let default = choose(None, false).await.unwrap();
    assert!(default.id.is_default() && !default.created);
    let new = choose(None, true).await.unwrap();
    assert!(new.created && Uuid::try_parse(new.id.as_str()).is_ok());
    let missing = choose(Some("feature"), false).await.unwrap_err();
    assert!(
        missing.to_string().contains("create_workspace"),
        "{missing}"
    );
    assert!(choose(Some("feature"), true).await.unwrap().created);
    assert!(!choose(Some("feature"), true).await.unwrap().created);
    assert!(!choose(Some("feature"), false).await.unwrap().created);

    // The next call creates a directory whose creation a crash prevented.
    let feature: WorkspaceId = "feature".parse().unwrap();
    engine.files().remove_workspace(id, &feature).await.unwrap();
    assert!(!choose(Some("feature"), false).await.unwrap().created);
    assert!(engine.files().has_workspace(id, &feature));

    let listed = engine
        .call(
            &actor,
            "workspace_list",
            object(json!({ "project_id": id })),
            Call::new(),
        )
        .await
        .unwrap();
    assert_eq!(listed["workspaces"].as_array().unwrap().len(), 3);

    let delete = |workspace: &str| {
        let parameters = object(json!({ "project_id": id, "workspace_id": workspace }));
        engine.call(&actor, "workspace_delete", parameters, Call::new())
    };
    delete("feature").await.unwrap();
    assert!(!engine.files().has_workspace(id, &feature));
    assert!(delete("feature").await.is_err());
    assert!(
        delete("default")
            .await
            .unwrap_err()
            .to_string()
            .contains("cannot be deleted")
    );
}

#[tokio::test]
async fn a_new_workspace_is_a_clone_on_its_own_branch() {
    let (_home, engine, actor) = engine().await;
    let id = project(&engine, &actor, json!({ "name": "one" })).await;
    let default = engine.files().workspace_dir(id, &WorkspaceId::default());
    let create = WorkspaceChoice {
        workspace_id: Some("early".parse().unwrap()),
        create_workspace: true,
        from: None,
    };
    engine
        .workspaces()
        .choose(id, &create, &Call::new())
        .await
        .unwrap();

    std::fs::write(default.join("file"), "content").unwrap();
    git(&default, &["add", "file"]);
    git(&default, &["commit", "-qm", "first"]);
    let create = WorkspaceChoice {
        workspace_id: Some("later".parse().unwrap()),
        create_workspace: true,
        from: None,
    };
    engine
        .workspaces()
        .choose(id, &create, &Call::new())
        .await
        .unwrap();
    let later = engine.files().workspace_dir(id, &"later".parse().unwrap());
    assert_eq!(
        std::fs::read_to_string(later.join("file")).unwrap(),
        "content"
    );
    assert_eq!(
        git(&later, &["branch", "--show-current"]),
        "oubliette/later"
    );
    let early = engine.files().workspace_dir(id, &"early".parse().unwrap());
    assert_eq!(
        git(&early, &["branch", "--show-current"]),
        "oubliette/early"
    );
}

#[tokio::test]
async fn concurrent_calls_create_a_workspace_once() {
    let (_home, engine, actor) = engine().await;
    let id = project(&engine, &actor, json!({ "name": "one", "init_git": false })).await;
    let attempts = (0..20).map(|_| {
        let engine = engine.clone();
        tokio::spawn(async move {
            let choice = WorkspaceChoice {
                workspace_id: Some("same".parse().unwrap()),
                create_workspace: true,
                from: None,
            };
            engine
                .workspaces()
                .choose(id, &choice, &Call::new())
                .await
                .unwrap()
                .created
        })
    });
    let mut created = 0;
    for attempt in attempts.collect::<Vec<_>>() {
        created += usize::from(attempt.await.unwrap());
    }
    assert_eq!(created, 1);
    let entries = std::fs::read_dir(engine.files().project_dir(id).join("workspaces")).unwrap();
    assert_eq!(entries.count(), 1, "no draft remains");
}

/// A call that creates the workspace `new` and has added its row, and waits for the lock that is held.
async fn waiting_creation(
    engine: &Engine,
    project: ProjectId,
) -> tokio::task::JoinHandle<Result<ChosenWorkspace>> {
    let new: WorkspaceId = "new".parse().unwrap();
    let choice = WorkspaceChoice {
        workspace_id: Some(new.clone()),
        create_workspace: true,
        from: None,
    };
    let creating = {
        let engine = engine.clone();
        tokio::spawn(async move {
            let call = Call::new();
            engine.workspaces().choose(project, &choice, &call).await
        })
    };
    wait_until(async || {
        engine
            .store()
            .workspace(project, &new)
            .await
            .unwrap()
            .is_some()
    })
    .await;
    creating
}

async fn wait_until(condition: impl AsyncFn() -> bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_workspace_of_a_project_that_is_deleted_meanwhile_is_not_found() {
    let (_home, engine, actor) = engine().await;
    let id = project(&engine, &actor, json!({ "name": "one" })).await;
    let stored = engine.project(id).await.unwrap();
    let default = ContainerScope::default_container_id(id);
    let held = engine.container_state().lock_container(&default).await;
    let creating = waiting_creation(&engine, id).await;
    let deleting = {
        let (engine, actor) = (engine.clone(), actor.clone());
        let parameters = object(json!({ "project_id": id }));
        tokio::spawn(async move {
            let call = Call::new();
            engine
                .call(&actor, "project_delete", parameters, call)
                .await
        })
    };
    wait_until(async || engine.store().project(id).await.unwrap().is_none()).await;
    drop(held);
    let error = creating.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::NotFound {
                what: "project",
                ..
            }
        ),
        "{error:?}"
    );
    deleting.await.unwrap().unwrap();
    // A call that saw the project before it was deleted.
    let call = Call::new();
    let late = engine
        .workspaces()
        .create_on_host(&stored, &default, &"late".parse().unwrap(), &call)
        .await
        .unwrap_err();
    assert!(
        matches!(
            late,
            EngineError::NotFound {
                what: "project",
                ..
            }
        ),
        "{late:?}"
    );
    assert!(!engine.files().project_dir(id).exists());
    assert_eq!(engine.state_counts().container_entries, 0);
}

#[tokio::test]
async fn a_workspace_that_is_deleted_while_it_is_created_leaves_no_directory() {
    let (_home, engine, actor) = engine().await;
    let id = project(&engine, &actor, json!({ "name": "one" })).await;
    let default = ContainerScope::default_container_id(id);
    let held = engine.container_state().lock_container(&default).await;
    let creating = waiting_creation(&engine, id).await;
    let delete = object(json!({ "project_id": id, "workspace_id": "new" }));
    engine
        .call(&actor, "workspace_delete", delete, Call::new())
        .await
        .unwrap();
    drop(held);
    let error = creating.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::NotFound {
                what: "workspace",
                ..
            }
        ),
        "{error:?}"
    );
    let new = "new".parse().unwrap();
    assert!(!engine.files().has_workspace(id, &new));
}

#[tokio::test]
async fn a_workspace_whose_directory_cannot_be_created_leaves_no_row() {
    let (_home, engine, actor) = engine().await;
    let id = project(&engine, &actor, json!({ "name": "one" })).await;
    let workspaces = engine.files().project_dir(id).join("workspaces");
    std::fs::remove_dir(&workspaces).unwrap();
    std::fs::write(&workspaces, "not a directory").unwrap();
    let choice = WorkspaceChoice {
        workspace_id: Some("new".parse().unwrap()),
        create_workspace: true,
        from: None,
    };
    let failed = engine.workspaces().choose(id, &choice, &Call::new()).await;
    assert!(failed.is_err());
    let new = "new".parse().unwrap();
    assert_eq!(engine.store().workspace(id, &new).await.unwrap(), None);
}
