//! Many workspaces at once in a project whose container has never run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::{Modern, Random, Server, server_with, server_with_git};

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

/// How many workspaces of a project are complete, and whether one is being made.
fn progress(server: &Server, project: &str) -> (usize, bool) {
    let all = server
        .home()
        .join("projects")
        .join(project)
        .join("workspaces");
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten();
    let names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let complete = names.iter().filter(|name| name.starts_with('w')).count();
    (complete, names.iter().any(|name| name.starts_with(".new-")))
}

/// The sessions of a project, each with the workspace that it works in.
async fn sessions(admin: &Modern, project: &str) -> Vec<(String, String)> {
    let list = json!({ "project_id": project, "limit": 1000 });
    let listed = admin.call("session_list", list).await.ok().clone();
    let text = |session: &Value, field: &str| session[field].as_str().unwrap().to_owned();
    let sessions = listed["sessions"].as_array().unwrap().iter();
    sessions
        .map(|session| (text(session, "session_id"), text(session, "workspace_id")))
        .collect()
}

#[test(each(sandbox), limit = 900)]
async fn five_hundred_workspaces_at_once_survive_killed_servers(runtime: &str) {
    let mut random = Random::new();
    let mut server = server_with(runtime, CONFIG).await;
    let admin = server.admin();
    let id = project_with_commit(&server, &admin, "one").await;
    let callers = (0..500).map(|n| {
        let (admin, call) = (admin.clone(), spawn_call(&id, &format!("w{n}")));
        tokio::spawn(async move { admin.call_until_answered("session_spawn", call).await })
    });
    let callers: Vec<_> = callers.collect();
    // While the first workspace is made, and when some and when most of them are there.
    for aim in [0, random.below(150) + 1, random.below(200) + 200] {
        support::wait_until("a workspace", async || {
            let (complete, is_making) = progress(&server, &id);
            complete as u64 >= aim && (is_making || complete > 0)
        })
        .await;
        server.kill();
        let (complete, _) = progress(&server, &id);
        assert!(complete < 500, "killed at {aim}: all workspaces are there");
        server.start_again();
    }
    let replies = join_all(callers).await;
    let replies: Vec<_> = replies.into_iter().map(Result::unwrap).collect();
    let failed = replies.iter().filter(|reply| reply.is_error());
    let failed: Vec<&str> = failed.map(|reply| reply.sentence()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    check_workspaces(&server, &id, 500);
    // One session for each, which has done its work once for each time that the call was accepted.
    let sessions = sessions(&admin, &id).await;
    let workspaces: BTreeMap<&str, &str> = sessions
        .iter()
        .map(|(session, workspace)| (workspace.as_str(), session.as_str()))
        .collect();
    assert_eq!((sessions.len(), workspaces.len()), (500, 500));
    for reply in &replies {
        let session = reply.ok()["session_id"].as_str().unwrap();
        let log = admin.log(session).await;
        let of = |kind: &str| log.iter().filter(|event| event["type"] == kind).count();
        let prompts = of("prompt");
        // A call whose answer is lost is made again, once for each kill at most.
        assert!((1..=4).contains(&prompts), "{session}: {log:#?}");
        let completion = admin.turn(session, prompts).await;
        assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    }
    let exec = json!({ "command": "git log --format=%s", "workspace_id": "w499" });
    let log = admin.exec_with(&id, exec).await;
    assert_eq!(log["stdout"], "first\n", "{log}");
    let project = json!({ "project_id": id });
    admin.call("project_delete", project).await.ok();
}
