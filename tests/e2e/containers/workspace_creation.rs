//! Many workspaces at once in a project whose container has never run.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::{Modern, Server, server_with, server_with_git};

/// Agents end soon after their turn, so that hundreds of them need not run at once.
const CONFIG: &str =
    "[sessions]\nidle_seconds = 1\n[limits]\nmemory_mb = 16384\nmax_workspaces = 600\n";

fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(["-c", "safe.directory=*"])
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(arguments)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{directory:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A project with one commit.
async fn project_with_commit(server: &Server, admin: &Modern, name: &str) -> String {
    let id = admin.project(name).await;
    let workspace = server.workspace(&id);
    std::fs::write(workspace.join("file"), "content").unwrap();
    git(&workspace, &["add", "file"]);
    git(&workspace, &["commit", "-qm", "first"]);
    id
}

fn spawn_call(project: &str, workspace: &str) -> Value {
    json!({
        "project_id": project, "workspace_id": workspace, "create_workspace": true,
        "prompt": "/say hello",
    })
}

/// Checks that exactly these workspaces exist, each a clone on its own branch.
fn check_workspaces(server: &Server, project: &str, count: usize) {
    let all = server
        .home()
        .join("projects")
        .join(project)
        .join("workspaces");
    for n in 0..count {
        let workspace = all.join(format!("w{n}"));
        let file = std::fs::read_to_string(workspace.join("file")).unwrap();
        assert_eq!(file, "content");
        let head = std::fs::read_to_string(workspace.join(".git/HEAD")).unwrap();
        assert_eq!(head.trim(), format!("ref: refs/heads/oubliette/w{n}"));
    }
    let entries = std::fs::read_dir(&all).unwrap();
    assert_eq!(entries.count(), count, "a draft remains");
}

#[test(runtimes, limit = 300)]
async fn sixty_sessions_in_new_workspaces_at_once_all_start(runtime: &str) {
    let server = server_with_git(runtime, CONFIG).await;
    let admin = server.admin();
    let rounds = if runtime == "sandbox" { 5 } else { 1 };
    for round in 0..rounds {
        let id = project_with_commit(&server, &admin, &format!("p{round}")).await;
        let spawns = (0..60).map(async |n| {
            let call = spawn_call(&id, &format!("w{n}"));
            admin.call("session_spawn", call).await
        });
        let replies = join_all(spawns).await;
        let failed = replies.iter().filter(|reply| reply.is_error());
        let failed: Vec<&str> = failed.map(|reply| reply.sentence()).collect();
        assert!(failed.is_empty(), "round {round}: {failed:#?}");
        check_workspaces(&server, &id, 60);
        for reply in &replies {
            let session = reply.ok()["session_id"].as_str().unwrap();
            assert_eq!(admin.turn(session, 1).await["stop_reason"], "end_turn");
        }
        let project = json!({ "project_id": id });
        admin.call("project_delete", project).await.ok();
    }
}

#[test(each(sandbox), limit = 900)]
async fn five_hundred_workspaces_at_once_survive_killed_servers(runtime: &str) {
    let mut server = server_with(runtime, CONFIG).await;
    let admin = server.admin();
    for round in 0..2 {
        let id = project_with_commit(&server, &admin, &format!("p{round}")).await;
        let callers = (0..500).map(|n| {
            let (admin, call) = (admin.clone(), spawn_call(&id, &format!("w{n}")));
            tokio::spawn(async move { admin.call_until_answered("session_spawn", call).await })
        });
        let callers: Vec<_> = callers.collect();
        // While git runs on the host, while the container starts, and while git runs in it.
        for pause in [300, 1200, 4000] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            server.kill();
            server.start_again();
        }
        let replies = join_all(callers).await;
        let replies: Vec<_> = replies.into_iter().map(Result::unwrap).collect();
        let failed = replies.iter().filter(|reply| reply.is_error());
        let failed: Vec<&str> = failed.map(|reply| reply.sentence()).collect();
        assert!(failed.is_empty(), "round {round}: {failed:#?}");
        check_workspaces(&server, &id, 500);
        let exec = json!({ "command": "git log --format=%s", "workspace_id": "w499" });
        let log = admin.exec_with(&id, exec).await;
        assert_eq!(log["stdout"], "first\n", "{log}");
        let project = json!({ "project_id": id });
        admin.call("project_delete", project).await.ok();
    }
}
