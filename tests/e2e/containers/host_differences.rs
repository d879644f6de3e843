//! Differences between hosts: sockets that cannot be mounted, the client program for containers, the
//! disk, the limit of open files.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use support::{Modern, Server, ServerOptions, binary, eventually, server_with};

#[test(mounted_runtimes)]
async fn disk_use_is_measured_and_warned_about_and_the_runtime_reports_its_limit(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let made = json!({ "name": "one", "disk_mb": 16 });
    let made = admin.call("project_create", made).await;
    assert_eq!(made.ok()["disk_mb"], 16);
    let id = made.ok()["project_id"].as_str().unwrap().to_owned();
    admin
        .exec(&id, "head -c 24000000 /dev/zero | tr '\\0' x > big")
        .await;
    let measured = async {
        loop {
            let shown = admin.call("project_get", json!({ "project_id": id })).await;
            match shown.ok()["disk_used_mb"].as_u64() {
                Some(used) if used >= 22 => return,
                _ => support::pause().await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), measured)
        .await
        .expect("it is not measured");
    let warned = async {
        while !server.log().contains("exceeds its disk limit") {
            support::pause().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), warned)
        .await
        .expect("the log has no warning");
    let options = admin.call("project_options", json!({})).await;
    let runtime = &options.ok()["runtimes"][0];
    assert!(runtime["disk_limit"].is_string(), "{runtime}");
    assert!(
        runtime["notes"].to_string().contains("disk_mb"),
        "{runtime}"
    );
}

#[test(mounted_runtimes, limit = 240)]
async fn a_project_over_its_disk_limit_gets_no_messages_and_far_over_it_is_stopped(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let made = json!({ "name": "one", "disk_mb": 64 });
    let made = admin.call("project_create", made).await;
    let id = made.ok()["project_id"].as_str().unwrap().to_owned();
    let project = json!({ "project_id": id });
    let fill = |megabytes: u32| format!("head -c {megabytes}000000 /dev/zero | tr '\\0' x > big");
    let used = async |at_least: u64| {
        let shown = admin.call("project_get", project.clone()).await;
        let used = shown.ok()["disk_used_mb"].as_u64();
        used.is_some_and(|used| used >= at_least)
    };
    let limit = Duration::from_secs(60);
    admin.exec(&id, fill(74)).await;
    assert!(eventually(limit, async || used(68).await).await);
    let spawn = json!({ "project_id": id, "prompt": "hi" });
    let refused = admin.call("session_spawn", spawn.clone()).await;
    assert!(refused.sentence().contains("`disk_mb`"), "{}", refused.text);
    admin.exec(&id, "rm big").await;
    let session = admin.call("session_spawn", spawn.clone()).await;
    let session = session.ok()["session_id"].as_str().unwrap().to_owned();
    admin.turn(&session, 1).await;
    let message = json!({ "session_id": session, "prompt": "/sh sleep 600" });
    admin.call("session_message", message.clone()).await.ok();

    let command = format!("{}; sleep 600", fill(120));
    let command = json!({ "command": command, "timeout_seconds": 600 });
    let killed = admin.try_exec(&id, command).await;
    // The end of the command, or that of its container: either says why.
    let said = &killed.text;
    assert!(
        said.contains("disk limit")
            && said.contains("workspaces 1")
            && said.contains("`project_update`"),
        "{said}"
    );
    let failed = admin.turn(&session, 2).await;
    let error = failed["error"].as_str().unwrap_or_default();
    assert!(
        error.contains("disk limit") && error.contains("`disk_mb`"),
        "{failed}"
    );
    let shown = admin.call("project_get", project.clone()).await;
    let usage = &shown.ok()["disk_usage"];
    assert!(
        usage["workspaces_mb"].as_u64() >= Some(100),
        "{}",
        shown.ok()
    );
    let reached = shown.ok()["disk_limit_reached"].as_str();
    assert!(
        reached.is_some_and(|text| text.contains("container_exec")),
        "{}",
        shown.ok()
    );
    let stopped = eventually(limit, async || {
        let shown = admin.call("project_get", project.clone()).await;
        shown.ok()["container_status"] == "stopped"
    });
    assert!(stopped.await, "{}", server.log());
    let refused = admin.call("session_message", message).await;
    assert!(refused.sentence().contains("`disk_mb`"), "{}", refused.text);
    let command = json!({ "command": "true" });
    let refused = admin.try_exec(&id, command).await;
    assert!(refused.sentence().contains("`disk_mb`"), "{}", refused.text);
    // No limit, for this project.
    let raised = json!({ "project_id": id, "disk_mb": 0 });
    admin.call("project_update", raised).await.ok();
    admin.exec(&id, "rm big").await;
}

#[test(runtimes)]
async fn relay_sockets_work_and_the_runtime_reports_whether_they_are_mounted(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let id = admin.project("one").await;
    let options = admin.call("project_options", json!({})).await;
    let mounted = &options.ok()["runtimes"][0]["host_sockets"];
    assert_eq!(*mounted, json!(!runtime.ends_with("-channel")));
    let seen = admin
        .exec(&id, "test -S /mcp/relay.sock && echo there")
        .await;
    assert_eq!(seen["stdout"], "there\n", "{runtime}: {seen}");
    let flood = admin
        .exec(&id, "head -c 1000000 /dev/zero | tr '\\0' x")
        .await;
    assert_eq!(
        flood["stdout"].as_str().unwrap().len(),
        1_000_000,
        "{runtime}"
    );
    let keys = "cat /proc/[0-9]*/environ 2> /dev/null | tr '\\0' '\\n' | \
                grep -c '^OUBLIETTE_CONTAINER_KEY=oub'";
    let keys = admin.exec(&id, keys).await;
    assert_eq!(
        keys["stdout"], "0\n",
        "{runtime}: the container's key can be read"
    );
    if runtime.ends_with("-channel") {
        // A command cannot break the channel, and breaking it breaks nothing else.
        let kill = "for process in /proc/[0-9]*; do \
                    tr '\\0' ' ' < $process/cmdline | grep -q 'client carr[y]' && \
                    kill ${process#/proc/} && echo on; done";
        let refused = admin.exec(&id, kill).await;
        assert_eq!(refused["stdout"], "", "{refused}");
        // Only root may look at that program from outside.
        if rustix::process::geteuid().is_root() {
            kill_channel(&id);
        }
        assert_eq!(admin.exec(&id, "echo again").await["stdout"], "again\n");
    }
}

/// Kills the program that carries the connections of a project's container, from the host.
fn kill_channel(project: &str) {
    let container = format!("OUBLIETTE_CONTAINER_ID={}", project.replace('-', ""));
    let contains = |file: PathBuf, text: &str| {
        let bytes = std::fs::read(file).unwrap_or_default();
        String::from_utf8_lossy(&bytes).contains(text)
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let carriers = processes.filter(|entry| {
        contains(entry.path().join("cmdline"), "oubliette-client\0carry")
            && contains(entry.path().join("environ"), &container)
    });
    let pids: Vec<i32> = carriers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    assert_eq!(pids.len(), 1, "{pids:?}");
    let pid = rustix::process::Pid::from_raw(pids[0]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test(mounted_runtimes, limit = 300)]
async fn containers_get_the_client_that_is_named_and_a_wrong_one_is_refused(runtime: &str) {
    let client = oubliette_runtime::contract::client();
    let mut options = match runtime {
        "docker" => support::docker_options(""),
        _ => ServerOptions {
            config: format!("runtime = \"{runtime}\"\n"),
            ..ServerOptions::default()
        },
    };
    let variable = |path: &std::path::Path| {
        let path = path.to_string_lossy().into_owned();
        vec![("OUBLIETTE_CLIENT".to_owned(), path)]
    };
    options.env = variable(&client);
    let server = Server::start_with(options.clone());
    let admin = server.admin();
    if runtime == "docker" {
        let built = json!({ "container_type": "base" });
        admin.call("image_rebuild", built).await.ok();
    }
    let id = admin.project("one").await;
    let seen = admin
        .exec(&id, "wc -c < /usr/local/bin/oubliette-client")
        .await;
    let size = std::fs::metadata(&client).unwrap().len().to_string();
    assert_eq!(seen["stdout"].as_str().unwrap().trim(), size, "{runtime}");
    // A terminal takes a step of the client's own.
    let terminal = json!({
        "project_id": id, "exec_id": "t", "command": "tty; read x", "wait_seconds": 20,
        "terminal": { "rows": 10, "columns": 20 },
    });
    let shown = admin.call("container_exec", terminal).await;
    assert!(
        shown.ok()["stdout"]
            .as_str()
            .unwrap()
            .starts_with("/dev/pts/"),
        "{}",
        shown.text
    );

    options.env = variable(std::path::Path::new("/etc/passwd"));
    let server = Server::start_with(options);
    let admin = server.admin();
    let id = admin.project("one").await;
    let refused = admin
        .call("container_start", json!({ "project_id": id }))
        .await;
    assert!(
        refused.sentence().contains("not a Linux program"),
        "{}",
        refused.text
    );
}

#[test]
async fn a_low_limit_of_open_files_blocks_no_call() {
    let home = tempfile::tempdir().unwrap();
    let script = "ulimit -S -n 128 && exec \"$2\" --data-dir \"$1\" serve --listen 127.0.0.1:0";
    let mut child = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(home.path())
        .arg(binary())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.next().unwrap().unwrap();
    let url = ready.split_once(" is ready: ").unwrap().1.to_owned();
    let key = std::fs::read_to_string(home.path().join("admin.token")).unwrap();
    let address = url.trim_start_matches("http://").trim_end_matches("/mcp");
    let address = address.parse().unwrap();
    // A server without free file descriptors would accept the next connection only after it closed silent
    // ones.
    let timeout = Duration::from_secs(10);
    let held = (0..300).map(|_| TcpStream::connect_timeout(&address, timeout).unwrap());
    let held: Vec<TcpStream> = held.collect();
    let admin = Modern::new(&url, key.trim());
    let answered = admin.call("project_list", json!({}));
    let answered = tokio::time::timeout(timeout, answered).await;
    answered.unwrap().ok();
    drop(held);
    child.kill().unwrap();
    child.wait().unwrap();
}
