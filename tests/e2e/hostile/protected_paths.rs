//! An agent that tries to change, replace or create protected paths.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::{Modern, Server, run_cli, runtime_name, server_with, stderr};

/// A nested file that exists, and two paths that do not.
const PROTECTED: [&str; 3] = ["conf/policy", ".env", "made/later"];

/// Everything that would change, replace or create a protected path.
const ATTACK: &str = "for p in conf/policy .env made/later; do \
    echo evil > $p; rm -rf $p; echo evil > new; mv new $p; mkdir -p $p; echo evil > $p/x; \
    ln -f $p link && echo evil > link; done; \
    for d in conf made; do mv $d $d.old && mkdir $d; done; \
    mkdir -p conf made; echo evil > conf/policy; echo evil > made/later; \
    here=$(pwd); cd /; mv $here $here.old && mkdir -p $here/conf && echo evil > $here/conf/policy; \
    exit 0";

/// The image of Docker's tests has no git, so new workspaces there are empty.
fn has_git(runtime: &str) -> bool {
    runtime_name(runtime) != "docker"
}

async fn project(server: &Server, runtime: &str, settings: Value) -> String {
    let git = has_git(runtime);
    let mut parameters = json!({ "name": "one", "protected_paths": PROTECTED, "init_git": git });
    let more = settings.as_object().unwrap().clone();
    parameters.as_object_mut().unwrap().extend(more);
    let made = server.admin().call("project_create", parameters).await;
    let id = made.ok()["project_id"].as_str().unwrap().to_owned();
    let workspace = server.workspace(&id);
    std::fs::create_dir(workspace.join("conf")).unwrap();
    std::fs::write(workspace.join("conf/policy"), "good\n").unwrap();
    std::fs::write(workspace.join("conf/other"), "free\n").unwrap();
    let add = "add -A";
    let commit = "-c user.name=t -c user.email=t@t commit -q -m first";
    for arguments in [add, commit].into_iter().filter(|_| git) {
        let git = Command::new("git")
            .args(arguments.split(' '))
            .current_dir(&workspace)
            .status();
        assert!(git.unwrap().success());
    }
    id
}

async fn exec(admin: &Modern, project: &str, workspace: &str, command: &str) -> Value {
    let call = json!({
        "workspace_id": workspace, "create_workspace": true, "command": command,
    });
    admin.exec_with(project, call).await
}

fn on_host(server: &Server, project: &str, workspace: &str) -> PathBuf {
    if workspace == "default" {
        return server.workspace(project);
    }
    let projects = server.home().join("projects");
    projects.join(project).join("workspaces").join(workspace)
}

fn assert_unchanged(directory: &Path, has_policy: bool, what: &str) {
    if has_policy {
        let policy = std::fs::read_to_string(directory.join("conf/policy"));
        assert_eq!(policy.unwrap_or_default(), "good\n", "{what}");
    }
    for path in &PROTECTED[usize::from(has_policy)..] {
        let entries = std::fs::read_dir(directory.join(path));
        let entries = entries.unwrap_or_else(|error| panic!("{what}: {path}: {error}"));
        assert_eq!(entries.count(), 0, "{what}: {path}");
    }
}

async fn assert_protected(server: &Server, project: &str, workspace: &str, runtime: &str) {
    let admin = server.admin();
    // The rest of the workspace is as usual, and git reports nothing.
    let status = if has_git(runtime) {
        "git status --porcelain;"
    } else {
        ""
    };
    let has_policy = has_git(runtime) || workspace == "default";
    if has_policy {
        let use_it = "echo more >> conf/other; mv conf/other conf/renamed; \
                      mkdir dir && touch dir/file; cat conf/policy conf/renamed";
        let used = exec(&admin, project, workspace, &format!("{status} {use_it}")).await;
        assert_eq!(used["stdout"], "good\nfree\nmore\n", "{runtime}: {used}");
    }
    exec(&admin, project, workspace, ATTACK).await;
    assert_unchanged(&on_host(server, project, workspace), has_policy, runtime);
}

#[test(runtimes)]
async fn protected_paths_hold_in_every_workspace(runtime: &str) {
    let server = server_with(runtime, "").await;
    let id = project(&server, runtime, json!({})).await;
    let admin = server.admin();
    // One that is made while the container runs, before the other is attacked; and both again after it was started anew.
    exec(&admin, &id, "default", "true").await;
    assert_protected(&server, &id, "later", runtime).await;
    assert_protected(&server, &id, "default", runtime).await;
    let stopped = admin.call("container_stop", json!({ "project_id": id }));
    assert_eq!(stopped.await.ok()["stopped"], true);
    for workspace in ["default", "later"] {
        exec(&admin, &id, workspace, ATTACK).await;
        let has_policy = has_git(runtime) || workspace == "default";
        assert_unchanged(&on_host(&server, &id, workspace), has_policy, runtime);
    }
    let deleted = json!({ "project_id": id, "workspace_id": "later" });
    let deleted = admin.call("workspace_delete", deleted).await;
    assert_eq!(deleted.ok()["deleted"], true);
}

#[test(runtimes)]
async fn changed_paths_hold_at_once_or_the_result_says_how_to_apply_them(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let made = json!({ "name": "one", "init_git": false });
    let made = admin.call("project_create", made).await;
    let id = made.ok()["project_id"].as_str().unwrap().to_owned();
    std::fs::write(server.workspace(&id).join("guard"), "good").unwrap();
    let update = async |paths: Value| {
        let update = json!({ "project_id": id, "protected_paths": paths });
        admin.call("project_update", update).await.ok().clone()
    };
    let is_writable = async || {
        let wrote = admin.exec(&id, "echo evil > guard").await;
        wrote["exit_code"] == 0
    };
    assert!(is_writable().await);
    // The container runs and is not in use.
    let updated = update(json!(["guard"])).await;
    assert_eq!(
        updated["restart_needed"],
        Value::Null,
        "{runtime}: {updated}"
    );
    assert!(!is_writable().await, "{runtime}");
    let updated = update(json!([])).await;
    assert_eq!(
        updated["restart_needed"],
        Value::Null,
        "{runtime}: {updated}"
    );
    assert!(is_writable().await, "{runtime}");
    // The agent of a session uses it.
    let session = admin.spawn(&id, "/say hi").await;
    admin.turn(&session, 1).await;
    let updated = update(json!(["guard"])).await;
    let needs_restart = updated["restart_needed"] == json!(["protected_paths"]);
    assert_eq!(needs_restart, is_writable().await, "{runtime}: {updated}");
    let updated = update(json!([])).await;
    if !needs_restart {
        assert_eq!(updated["restart_needed"], json!(["protected_paths"]));
        let warnings = updated["warnings"].to_string();
        assert!(warnings.contains("`container_stop`"), "{warnings}");
    }
    let stop = json!({ "project_id": id });
    admin.call("container_stop", stop).await.ok();
    assert!(is_writable().await, "{runtime}");
    // The command line clears both.
    let home = server.home();
    let guarded = [
        "project",
        "update",
        "one",
        "--protected-paths",
        "guard",
        "--agent-scope",
        "read",
    ];
    assert_eq!(run_cli(home, &guarded).await.status.code(), Some(0));
    let cleared = [
        "project",
        "update",
        "one",
        "--protected-paths",
        "",
        "--agent-scope",
        "none",
    ];
    let cleared = run_cli(home, &cleared).await;
    assert_eq!(cleared.status.code(), Some(0), "{}", stderr(&cleared));
    let shown = admin.call("project_get", json!({ "project_id": id })).await;
    let shown = shown.ok();
    assert_eq!(
        (&shown["protected_paths"], &shown["agent_scope"]),
        (&json!([]), &Value::Null)
    );
}

#[test(runtimes)]
async fn protected_paths_hold_where_each_workspace_has_its_own_container(runtime: &str) {
    let server = server_with(runtime, "").await;
    let id = project(&server, runtime, json!({ "workspace_isolation": true })).await;
    for workspace in ["default", "a"] {
        assert_protected(&server, &id, workspace, runtime).await;
    }
}

#[test(each(sandbox))]
async fn a_link_in_the_place_of_a_protected_path_is_refused(runtime: &str) {
    let server = server_with(runtime, "").await;
    let id = project(&server, runtime, json!({})).await;
    let workspace = server.workspace(&id);
    std::fs::rename(workspace.join("conf"), workspace.join("real")).unwrap();
    std::os::unix::fs::symlink("real", workspace.join("conf")).unwrap();
    let refused = server
        .admin()
        .try_exec(&id, json!({ "command": "true" }))
        .await;
    let sentence = refused.sentence();
    assert!(sentence.contains("/workspace/conf/policy"), "{sentence}");
    assert!(sentence.contains("symbolic link"), "{sentence}");
}
