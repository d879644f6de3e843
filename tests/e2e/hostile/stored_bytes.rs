//! What a project can make the server store for it.

use std::time::Duration;

use serde_json::json;
use support::{Server, ServerOptions, eventually};

#[test(needs(sandbox))]
async fn messages_that_wait_in_a_project_are_bounded_and_other_projects_go_on() {
    let server = Server::start();
    let admin = server.admin();
    let (id, other) = (admin.project("one").await, admin.project("other").await);
    let token = server.with_key(&admin.token(&format!("project:{id}")).await);
    let spawn = json!({ "project_id": id, "prompt": "/sleep 600" });
    let session = token.call("session_spawn", spawn).await;
    let session = session.ok()["session_id"].clone();
    let file = json!({ "name": "big.txt", "text": "x".repeat(6 << 20) });
    let message = json!({
        "session_id": session, "prompt": "p".repeat(1 << 20), "attachments": [file],
    });
    let mut accepted = 0;
    let refused = loop {
        let reply = token.call("session_message", message.clone()).await;
        if reply.is_error() {
            break reply;
        }
        accepted += 1;
        assert!(accepted < 20, "there is no end to the queue");
    };
    assert!(accepted >= 5, "{accepted}");
    assert!(
        refused.sentence().contains("`session_end`"),
        "{}",
        refused.text
    );
    let spawn = json!({ "project_id": other, "prompt": "/say hi" });
    admin.call("session_spawn", spawn).await.ok();
    // The messages of an ended session do not wait any more.
    let ended = json!({ "session_id": session });
    token.call("session_end", ended).await.ok();
    token.call("session_message", message).await.ok();
}

#[test(needs(sandbox), limit = 180)]
async fn event_logs_of_a_project_are_bounded() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n[limits]\nlog_mb = 4\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let id = admin.project("one").await;
    let flood = "/repeat 100000 /sh head -c 100000 /dev/zero | tr '\\0' x; sleep 0.1";
    let session = admin.spawn(&id, flood).await;
    let noticed = eventually(Duration::from_secs(90), async || {
        server.log().contains("exceeds its disk limit")
    });
    assert!(noticed.await, "{}", server.log());
    // The agent, which would write for hours, is stopped, and nothing more is added.
    let completion = admin.turn(&session, 1).await;
    assert!(completion["error"].is_string(), "{completion}");
    let ended = admin.session(&session).await;
    let spawn = json!({ "project_id": id, "prompt": "/say hi" });
    let refused = admin.call("session_spawn", spawn.clone()).await;
    assert!(
        refused.sentence().contains("`session_cleanup`"),
        "{}",
        refused.text
    );
    let message = json!({ "session_id": session, "prompt": "/say hi" });
    let refused = admin.call("session_message", message).await;
    assert!(
        refused.sentence().contains("`session_cleanup`"),
        "{}",
        refused.text
    );
    let other = admin.project("other").await;
    let session_of_other = admin.spawn(&other, "/say hi").await;
    assert_eq!(admin.turn(&session_of_other, 1).await["text"], "hi");
    let later = admin.session(&session).await;
    assert_eq!(later["last_index"], ended["last_index"], "{later}");
}

#[test(needs(sandbox), limit = 240)]
async fn kept_results_of_commands_are_bounded_and_none_runs_twice() {
    let server = Server::start();
    let admin = server.admin();
    let id = admin.project("one").await;
    let token = server.with_key(&admin.token(&format!("project:{id}")).await);
    let run = |n: usize| {
        let script = format!(
            "echo {n} >> /workspace/ran; head -c 900000 /dev/zero | tr '\\0' x; \
             head -c 900000 /dev/zero | tr '\\0' y >&2"
        );
        json!({ "project_id": id, "command": script, "exec_id": format!("run-{n}"), "full": true })
    };
    for n in 0..20 {
        token.call("container_exec", run(n)).await.ok();
    }
    let size = |name: &str| std::fs::metadata(server.home().join(name)).map_or(0, |it| it.len());
    let stored = size("oubliette.db") + size("oubliette.db-wal");
    assert!(stored < 30 << 20, "{stored} bytes");
    let again = token.call("container_exec", run(19)).await;
    assert_eq!(again.ok()["stdout"].as_str().map(str::len), Some(900_000));
    let dropped = token.call("container_exec", run(0)).await;
    assert!(
        dropped.sentence().contains("no longer kept"),
        "{}",
        dropped.text
    );
    let ran = std::fs::read_to_string(server.workspace(&id).join("ran")).unwrap();
    assert_eq!(ran.lines().count(), 20, "{ran}");
}

#[test]
async fn schedules_and_workspaces_of_a_project_are_bounded() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"none\"\n[limits]\nmax_workspaces = 3\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let (id, other) = (admin.project("one").await, admin.project("other").await);
    let token = server.with_key(&admin.token(&format!("project:{id}")).await);
    let schedule = |project: &str| {
        json!({
            "name": "often", "cron_expr": "@yearly", "prompt": "p".repeat(1_000_000),
            "targets": [{ "project_id": project }],
        })
    };
    let mut accepted = 0;
    let refused = loop {
        let reply = token.call("schedule_create", schedule(&id)).await;
        if reply.is_error() {
            break reply;
        }
        accepted += 1;
        assert!(accepted < 20, "there is no end to schedules");
    };
    let sentence = refused.sentence();
    assert!(sentence.contains("`schedule_delete`"), "{sentence}");
    admin.call("schedule_create", schedule(&other)).await.ok();

    // Without a runtime the command fails, after its workspace was created.
    let command = |name: &str| {
        json!({
            "project_id": id, "command": "true", "workspace_id": name, "create_workspace": true,
        })
    };
    for name in ["a", "b"] {
        token.call("container_exec", command(name)).await;
    }
    let refused = token.call("container_exec", command("c")).await;
    let sentence = refused.sentence();
    assert!(sentence.contains("`workspace_delete`"), "{sentence}");
    let listed = token
        .call("workspace_list", json!({ "project_id": id }))
        .await;
    assert_eq!(listed.ok()["workspaces"].as_array().map(Vec::len), Some(3));
}
