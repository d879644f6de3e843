//! Hostile commands: they are bounded, ended and reported, and the container is usable afterwards.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Modern, Server, eventually, server_with};

async fn assert_usable(admin: &Modern, project: &str) {
    let ran = admin
        .exec_with(project, json!({ "command": "echo fine" }))
        .await;
    assert_eq!(ran["stdout"], "fine\n", "{ran}");
}

async fn project(server: &Server, settings: Value) -> String {
    let mut parameters = json!({ "name": "one", "init_git": false });
    let more = settings.as_object().unwrap().clone();
    parameters.as_object_mut().unwrap().extend(more);
    let made = server.admin().call("project_create", parameters).await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes = line.unwrap().split_ascii_whitespace().nth(1).unwrap();
    kilobytes.parse::<u64>().unwrap() << 10
}

#[test(each(sandbox))]
async fn gigabytes_of_output_are_read_to_the_end_with_bounded_memory(runtime: &str) {
    // The reader is the same with every runtime.
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = project(&server, json!({})).await;
    assert_usable(&admin, &id).await;
    let before = resident(&server);
    let flood = "head -c 600000000 /dev/zero & head -c 600000000 /dev/zero >&2; wait; exit 7";
    let call = json!({ "command": flood, "timeout_seconds": 120 });
    let ran = admin.exec_with(&id, call).await;
    assert_eq!(ran["exit_code"], 7);
    assert_eq!(ran["truncated"], true);
    for stream in ["stdout", "stderr"] {
        assert_eq!(ran[stream].as_str().unwrap().len(), 1 << 20);
    }
    // Two streams of a mebibyte of zeros, each six bytes long in JSON, some times over.
    let grown = resident(&server) - before;
    assert!(grown < 150 << 20, "{grown} bytes more than before");
    assert_usable(&admin, &id).await;
}

#[test(runtimes)]
async fn a_fork_bomb_is_bounded_and_ended(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = project(&server, json!({ "max_processes": 100 })).await;
    assert_usable(&admin, &id).await;
    // Its last command needs no process of its own: there may be none to have.
    let bomb = "b='while :; do sh -c \"$b\" & done'; export b; sh -c \"$b\"; \
                exec sleep 100";
    let running = tokio::spawn({
        let (admin, id) = (admin.clone(), id.clone());
        let call = json!({ "command": bomb, "timeout_seconds": 1 });
        async move { admin.exec_with(&id, call).await }
    });
    let mut most = 0;
    while !running.is_finished() {
        let others = json!({ "project_id": id, "command": "true" });
        // It is started, or refused with a reason.
        let other = admin.call("container_exec", others).await;
        if other.is_error() {
            assert!(other.sentence().contains("max_processes"), "{}", other.text);
        }
        most = most.max(server.leftovers().processes.len());
    }
    assert!(most <= 103, "{runtime}: {most} processes");
    let ran = running.await.unwrap();
    assert_eq!(ran["timed_out"], true);
    let errors = ran["stderr"].as_str().unwrap();
    assert!(
        errors.contains("fork"),
        "it did not reach its limit: {errors}"
    );
    assert_usable(&admin, &id).await;
    let left = server.leftovers().processes;
    // The supervisor with the container's network, and the gate; or the supervisor and the process that carries its
    // channel where no socket is mounted.
    let ours: &[&str] = if runtime.ends_with("-channel") {
        &["oubliette-client init", "oubliette-client carry"]
    } else {
        &[
            "oubliette-client init",
            "oubliette-client tunnel",
            "oubliette gate",
        ]
    };
    let is_ours = |process: &String| ours.iter().any(|name| process.contains(name));
    assert!(left.iter().all(is_ours), "{runtime}: {left:?}");
    assert_eq!(left.len(), ours.len(), "{runtime}: {left:?}");
}

#[test(runtimes)]
async fn processes_that_fill_a_container_are_ended_by_stopping_it(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = project(&server, json!({ "max_processes": 50 })).await;
    let hoard = "while :; do sleep 1000 >/dev/null 2>&1 & done";
    let ran = admin.exec_with(&id, json!({ "command": hoard })).await;
    assert_ne!(ran["exit_code"], 0, "{ran}");
    // The shell that failed to start another process has ended, so one more can start.
    let last = tokio::spawn({
        let (admin, id) = (admin.clone(), id.clone());
        async move {
            admin
                .try_exec(&id, json!({ "command": ["sleep", "2000"] }))
                .await
        }
    });
    let is_full = eventually(Duration::from_secs(20), async || {
        let processes = server.leftovers().processes;
        processes.iter().any(|line| line.contains("sleep 2000"))
    });
    assert!(is_full.await);
    let full = admin.try_exec(&id, json!({ "command": "true" })).await;
    assert!(full.sentence().contains("max_processes"), "{}", full.text);
    assert!(full.sentence().contains("container_stop"), "{}", full.text);
    let named = json!({ "command": "echo once", "exec_id": "n" });
    assert!(admin.try_exec(&id, named.clone()).await.is_error());
    let stop = admin
        .call("container_stop", json!({ "project_id": id }))
        .await;
    assert_eq!(stop.ok()["stopped"], true);
    last.await.unwrap();
    assert_usable(&admin, &id).await;
    // It never ran, so its name is still free.
    assert_eq!(admin.exec_with(&id, named).await["stdout"], "once\n");
}

#[test(runtimes)]
async fn a_memory_hog_is_killed_and_nothing_else(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = project(&server, json!({ "memory_mb": 64 })).await;
    let hog = "tail /dev/zero; echo it ended with $?";
    let ran = admin
        .exec_with(&id, json!({ "command": hog, "timeout_seconds": 60 }))
        .await;
    assert_eq!(ran["stdout"], "it ended with 137\n", "{runtime}: {ran}");
    let reached = ran["limit_reached"].as_str().unwrap_or_default();
    assert!(
        reached.contains("`memory_mb`, 64 MB") && reached.contains("killed 1 process"),
        "{runtime}: {ran}"
    );
    assert_usable(&admin, &id).await;
    let calm = admin.exec(&id, "sh -c 'kill -9 $$'; exit 137").await;
    assert_eq!(calm["limit_reached"], Value::Null, "{runtime}: {calm}");
    // The log of a session says it about what its agent starts.
    let session = admin.spawn(&id, "/sh tail /dev/zero; echo ended").await;
    admin.turn(&session, 1).await;
    let log = json!(admin.log(&session).await).to_string();
    assert!(log.contains("`memory_mb`, 64 MB"), "{runtime}: {log}");
}

#[test(runtimes)]
async fn commands_that_detach_or_ignore_signals_are_ended_and_leave_nothing(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = project(&server, json!({})).await;
    let hiding = "(setsid sh -c 'trap \"\" TERM HUP INT; exec >/dev/null 2>&1 </dev/null; sleep 4242' &); \
                  trap '' TERM HUP INT; sleep 4243";
    let ran = admin
        .exec_with(&id, json!({ "command": hiding, "timeout_seconds": 0.7 }))
        .await;
    assert_eq!(
        (&ran["timed_out"], &ran["exit_code"]),
        (&json!(true), &Value::Null)
    );
    let gone = eventually(Duration::from_secs(10), async || {
        let processes = server.leftovers().processes;
        !processes.iter().any(|line| line.contains("sleep 424"))
    });
    assert!(gone.await, "{}", server.leftovers());

    let closing = "exec >&- 2>&- <&-; sleep 0.3; exit 5";
    let ran = admin.exec_with(&id, json!({ "command": closing })).await;
    assert_eq!(ran["exit_code"], 5, "{ran}");
    assert!(ran["duration_ms"].as_u64().unwrap() >= 300, "{ran}");

    let unread = json!({ "command": "exit 3", "stdin": "x".repeat(5_000_000) });
    assert_eq!(admin.exec_with(&id, unread).await["exit_code"], 3);

    let huge = admin
        .try_exec(&id, json!({ "command": ["echo", "x".repeat(1 << 20)] }))
        .await;
    eprintln!("{}", &huge.text[..300.min(huge.text.len())]);

    let stubborn = "trap '' TERM; touch begun; while :; do sleep 1; done";
    let running = tokio::spawn({
        let (admin, id) = (admin.clone(), id.clone());
        async move { admin.try_exec(&id, json!({ "command": stubborn })).await }
    });
    let begun = server.workspace(&id).join("begun");
    assert!(eventually(Duration::from_secs(20), async || begun.exists()).await);
    let stop = admin
        .call("container_stop", json!({ "project_id": id }))
        .await;
    assert_eq!(stop.ok()["stopped"], true);
    let reply = running.await.unwrap();
    assert!(reply.sentence().contains("ended"), "{}", reply.text);
    assert_usable(&admin, &id).await;
    admin
        .call("project_delete", json!({ "project_id": id }))
        .await
        .ok();
    server.assert_nothing_left().await;
}

#[test(runtimes)]
async fn killing_everything_ends_commands_and_not_the_container(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = project(&server, json!({})).await;
    let running = tokio::spawn({
        let (admin, id) = (admin.clone(), id.clone());
        async move {
            admin
                .exec_with(&id, json!({ "command": "touch begun; sleep 600" }))
                .await
        }
    });
    let begun = server.workspace(&id).join("begun");
    assert!(eventually(Duration::from_secs(20), async || begun.exists()).await);
    let killer = "kill -9 1; kill -STOP 1; kill -9 -1; echo alone";
    let ran = admin.exec_with(&id, json!({ "command": killer })).await;
    assert_eq!(ran["stdout"], "alone\n", "{ran}");
    assert_eq!(running.await.unwrap()["exit_code"], 137);
    assert_usable(&admin, &id).await;
    // In the sandbox its own container is a command's to end, and the next one has another. In Docker it is
    // not: the command is another user than the supervisor.
    let ended = admin
        .try_exec(
            &id,
            json!({ "command": "kill -TERM 1 || exit 9; sleep 60" }),
        )
        .await;
    if support::runtime_name(runtime) == "docker" {
        assert_eq!(ended.ok()["exit_code"], 9, "{}", ended.text);
    } else if ended.is_error() {
        assert!(ended.sentence().contains("ended"), "{}", ended.text);
    } else {
        assert_eq!(ended.ok()["exit_code"], 143, "{}", ended.text);
    }
    // A call while the container stops is refused with that reason.
    let back = eventually(Duration::from_secs(20), async || {
        let again = admin.try_exec(&id, json!({ "command": "true" })).await;
        !again.is_error()
    });
    assert!(back.await);
}

#[test(runtimes)]
async fn links_in_a_workspace_do_not_lead_to_files_of_the_host(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = project(&server, json!({})).await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "x").unwrap();
    let leave = format!(
        "ln -s {out} out; ln -s / root; ln -s ../../../admin.token token; \
         ln -s {out} /workspaces/way; ln -s {out}/precious ~/.profile; \
         ln /mcp/relay.sock sock; ln /usr/local/bin/oubliette-client client; \
         cp /bin/busybox setuid 2>/dev/null || cp /bin/sh setuid; chmod 6755 setuid; \
         mkdir -p locked/d; chmod 000 locked/d locked; cat token",
        out = outside.path().display()
    );
    let ran = admin.exec_with(&id, json!({ "command": leave })).await;
    assert_ne!(ran["exit_code"], 0, "it read a file of the host: {ran}");
    let workspace = server.workspace(&id);
    for link in ["sock", "client"] {
        assert!(
            !workspace.join(link).exists(),
            "a hard link leads out of the container"
        );
    }
    let setuid = std::fs::metadata(workspace.join("setuid")).unwrap();
    let projects = std::fs::metadata(server.home().join("projects")).unwrap();
    // Either its owner has no rights on the host, or other users cannot reach it.
    assert_eq!(projects.permissions().mode() & 0o077, 0);
    if runtime == "sandbox" {
        assert_ne!(setuid.uid(), 0, "{:o}", setuid.mode());
    }
    // Nor does a workspace of the name of a link.
    let way = json!({
        "command": "touch x", "workspace_id": "way", "create_workspace": true,
    });
    assert!(admin.try_exec(&id, way).await.is_error());
    let call = json!({ "project_id": id, "workspace_id": "way" });
    admin.call("workspace_delete", call).await.ok();
    admin
        .call("project_delete", json!({ "project_id": id }))
        .await
        .ok();
    let remaining: Vec<_> = std::fs::read_dir(outside.path()).unwrap().collect();
    assert_eq!(remaining.len(), 1, "{remaining:?}");
    assert!(server.home().join("admin.token").exists());
    server.assert_nothing_left().await;
}
