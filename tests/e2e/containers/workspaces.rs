//! Projects whose workspaces have a container each.

use std::time::Duration;

use serde_json::{Value, json};
use support::{Modern, Server, server_with};

async fn isolated(admin: &Modern, git: bool) -> String {
    let made = json!({ "name": "one", "workspace_isolation": true, "init_git": git });
    let made = admin.call("project_create", made).await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

async fn exec(admin: &Modern, project: &str, workspace: &str, command: &str) -> Value {
    let call = json!({
        "project_id": project, "workspace_id": workspace, "create_workspace": true,
        "command": command,
    });
    admin.call("container_exec", call).await.ok().clone()
}

fn relay_directories(server: &Server) -> usize {
    let entries = std::fs::read_dir(server.home().join("run/c")).unwrap();
    entries.count()
}

#[test(runtimes)]
async fn a_workspace_has_a_container_of_its_own_and_sees_no_other(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = isolated(&admin, false).await;
    exec(
        &admin,
        &id,
        "default",
        "echo secret > file; echo d > ~/note",
    )
    .await;
    for workspace in ["a", "b"] {
        let script = "pwd; echo $$ > pid; echo mine > mark; echo n > ~/note; ls /workspaces; \
                      ls -d /workspace 2>/dev/null; ls -A ~";
        let seen = exec(&admin, &id, workspace, script).await;
        let expected = format!("/workspaces/{workspace}\n{workspace}\nnote\n");
        assert_eq!(seen["stdout"], json!(expected), "{runtime}: {seen}");
        let file = server.home().join("projects").join(&id).join("workspaces");
        let file = file.join(workspace).join("mark");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "mine\n");
    }
    let seen = exec(
        &admin,
        &id,
        "default",
        "pwd; ls; ls -d /workspaces; cat ~/note",
    )
    .await;
    assert_eq!(seen["stdout"], "/workspace\nfile\nd\n", "{runtime}: {seen}");
    let seen = exec(
        &admin,
        &id,
        "a",
        "cat /proc/*/environ | grep -c CONTAINER_KEY; true",
    )
    .await;
    assert_eq!(seen["exit_code"], 0, "{runtime}: {seen}");

    let shown = admin.call("project_get", json!({ "project_id": id })).await;
    let running = |workspace: &str| json!({ "workspace_id": workspace, "status": "running" });
    assert_eq!(
        shown.ok()["containers"],
        json!([running("a"), running("b"), running("default")])
    );
    let of_a = json!({ "project_id": id, "workspace_id": "a" });
    assert_eq!(
        admin.call("container_stop", of_a.clone()).await.ok()["stopped"],
        true
    );
    assert_eq!(
        admin.call("container_stop", of_a.clone()).await.ok()["stopped"],
        false
    );
    assert_eq!(
        admin.call("container_logs", of_a.clone()).await.ok()["status"],
        "stopped"
    );
    let shown = admin.call("project_get", json!({ "project_id": id })).await;
    assert_eq!(shown.ok()["containers"][0]["status"], "stopped");
    assert_eq!(shown.ok()["containers"][1]["status"], "running");
    assert_eq!(shown.ok()["container_status"], "running");
    assert_eq!(
        admin.call("container_start", of_a.clone()).await.ok()["started"],
        true
    );
    let nowhere = json!({ "project_id": id, "workspace_id": "c" });
    for operation in ["container_start", "container_stop", "container_logs"] {
        let refused = admin.call(operation, nowhere.clone()).await;
        assert!(
            refused.sentence().contains("`c` not found"),
            "{}",
            refused.text
        );
    }

    assert_eq!(relay_directories(&server), 3);
    admin.call("workspace_delete", of_a).await.ok();
    assert_eq!(relay_directories(&server), 2, "{runtime}");
    let all = json!({ "project_id": id });
    assert_eq!(
        admin.call("container_stop", all.clone()).await.ok()["stopped"],
        true
    );
    let shown = admin.call("project_get", all.clone()).await;
    assert_eq!(shown.ok()["container_status"], "stopped");
    exec(&admin, &id, "b", "true").await;
    admin.call("project_delete", all).await.ok();
    assert_eq!(relay_directories(&server), 0, "{runtime}");
}

#[test(each(sandbox))]
async fn a_new_workspace_starts_from_the_commits_of_the_default_one_and_sees_no_other_files(
    runtime: &str,
) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = isolated(&admin, true).await;
    let commit = "echo x > committed; git add committed; \
                  git -c user.name=t -c user.email=t@example.org commit -qm one; \
                  echo y > secret; git config core.fsmonitor 'touch /workspace/ran; false'";
    assert_eq!(exec(&admin, &id, "default", commit).await["exit_code"], 0);
    let seen = exec(
        &admin,
        &id,
        "new",
        "ls; git branch --show-current; ls -d /workspace",
    )
    .await;
    assert_eq!(seen["stdout"], "committed\noubliette/new\n", "{seen}");
    assert!(!server.workspace(&id).join("ran").exists());
    assert_eq!(
        relay_directories(&server),
        2,
        "the container it was made in stayed"
    );
}

#[test(runtimes)]
async fn every_container_is_adopted_by_the_next_server_and_stopped_when_it_is_idle(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = isolated(&admin, false).await;
    for workspace in ["default", "a"] {
        exec(&admin, &id, workspace, "(sleep 1000 & echo $!) > pid").await;
    }
    server.kill();
    let config = server.home().join("oubliette.toml");
    let mut text = std::fs::read_to_string(&config).unwrap();
    text.push_str("\n[containers]\nidle_seconds = 4\n");
    std::fs::write(config, text).unwrap();
    server.start_again();
    let admin = server.admin();
    for workspace in ["default", "a"] {
        let alive = exec(&admin, &id, workspace, "kill -0 $(cat pid) && echo alive").await;
        assert_eq!(alive["stdout"], "alive\n", "{runtime} {workspace}: {alive}");
    }
    let stopped = async {
        loop {
            let shown = admin.call("project_get", json!({ "project_id": id })).await;
            if shown.ok()["container_status"] == "stopped" {
                return;
            }
            support::pause().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), stopped)
        .await
        .expect("they never stop");
}

#[test(runtimes)]
async fn a_terminal_is_in_the_container_of_its_workspace(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = isolated(&admin, false).await;
    let begin = json!({
        "project_id": id, "workspace_id": "a", "create_workspace": true, "exec_id": "t",
        "command": "pwd; read x; echo \"$x $(ls /workspaces)\"", "wait_seconds": 20,
    });
    let output = admin.call("container_exec", begin).await.ok().clone();
    assert_eq!(output["stdout"], "/workspaces/a\n", "{output}");
    let next = json!({
        "project_id": id, "workspace_id": "a", "exec_id": "t", "stdin": "so\n",
        "offsets": output["offsets"], "wait_seconds": 20,
    });
    let output = admin.call("container_exec", next).await.ok().clone();
    assert_eq!(output["stdout"], "so a\n", "{output}");
}

#[test(runtimes)]
async fn a_container_whose_workspace_was_deleted_is_removed_at_the_next_start(runtime: &str) {
    let mut server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = isolated(&admin, false).await;
    for workspace in ["default", "a", "b"] {
        exec(&admin, &id, workspace, "true").await;
    }
    admin
        .call(
            "container_stop",
            json!({ "project_id": id, "workspace_id": "b" }),
        )
        .await
        .ok();
    server.kill();
    // As if it had been killed between the two steps of a deletion.
    let database = rusqlite::Connection::open(server.home().join("oubliette.db")).unwrap();
    let deleted = database.execute("delete from workspaces where id in ('a', 'b')", []);
    assert_eq!(deleted.unwrap(), 2);
    drop(database);
    server.start_again();
    let gone = async {
        while relay_directories(&server) > 1 {
            support::pause().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .expect("they stay");
    let shown = server
        .admin()
        .call("project_get", json!({ "project_id": id }))
        .await;
    assert_eq!(shown.ok()["containers"].as_array().unwrap().len(), 1);
}
