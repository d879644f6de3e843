//! A full disk: containers and commands report it, nothing is lost, and everything works again when there
//! is space.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Modern, binary, eventually, stderr, stdout};
use tempfile::TempDir;

/// A server whose data directory is a small file system, in namespaces that end with it.
struct Small {
    home: TempDir,
    unshare: Child,
    url: String,
    log: std::fs::File,
}

impl Small {
    fn start(megabytes: u32) -> Self {
        Self::start_after(megabytes, "true")
    }

    /// Does something in the data directory before there is a server.
    fn start_after(megabytes: u32, before: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o mode=700,size=\"$3\"m none \"$1\" && \
                      (cd \"$1\" && eval \"$4\") && \
                      exec \"$2\" --data-dir \"$1\" serve --listen 127.0.0.1:0 --runtime sandbox";
        let log = tempfile::tempfile().unwrap();
        let mut unshare = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", script, "sh"])
            .arg(home.path())
            .arg(binary())
            .arg(megabytes.to_string())
            .arg(before)
            .stdout(Stdio::piped())
            .stderr(Stdio::from(log.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(unshare.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let url = first.trim().split_once(" is ready: ").unwrap().1.to_owned();
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Self {
            home,
            unshare,
            url,
            log,
        }
    }

    fn log(&self) -> String {
        let mut log = Vec::new();
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = self.log.read_at(&mut chunk, log.len() as u64) {
            log.extend(&chunk[..read]);
        }
        String::from_utf8_lossy(&log).into_owned()
    }

    fn server_pid(&self) -> String {
        let unshare = self.unshare.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        let children = std::fs::read_to_string(children).unwrap();
        children.trim().to_owned()
    }

    /// A file of the data directory, which only the server itself sees.
    fn file(&self, name: &str) -> PathBuf {
        let seen = Path::new("/proc").join(self.server_pid()).join("root");
        let home = self.home.path().strip_prefix("/").unwrap();
        seen.join(home).join(name)
    }

    fn admin(&self) -> Modern {
        let key = std::fs::read_to_string(self.file("admin.token")).unwrap();
        Modern::new(&self.url, key.trim())
    }

    /// Takes all the space there is.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.file("filler")).unwrap();
        for block in [1 << 16, 1 << 12, 1] {
            while filler.write_all(&vec![0; block]).is_ok() {}
        }
    }

    /// Fills it up and gives some bytes back.
    fn leave(&self, bytes: u64) {
        self.fill();
        let filler = std::fs::File::options()
            .write(true)
            .open(self.file("filler"));
        let filler = filler.unwrap();
        let length = filler.metadata().unwrap().len();
        filler.set_len(length - bytes).unwrap();
    }

    fn empty(&self) {
        std::fs::remove_file(self.file("filler")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

#[test(needs(namespaces, root, sandbox))]
async fn commits_wait_for_disk_space_and_no_event_is_lost() {
    // What containers write is on another disk: only the log has no space.
    let elsewhere = "for d in layers projects; do mkdir $d && mount -t tmpfs none $d; done";
    let server = Small::start_after(16, elsewhere);
    let admin = server.admin();
    let project = admin.project("one").await;
    let prompt = "/say begun\n/repeat 600 /sh printf '%01000d' 7\n/say done";
    let session = admin.spawn(&project, prompt).await;
    let first = |event: &Value| event["type"] == "tool_result";
    admin.follow(&session, first).await;
    server.fill();
    let full = eventually(Duration::from_secs(20), async || {
        server.log().contains("retrying to commit a step")
    });
    assert!(full.await, "the log found space: {}", server.log());
    let reached = admin.log(&session).await.len();
    server.empty();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    assert!(
        completion["text"].as_str().unwrap().contains("done"),
        "{completion}"
    );
    let log = admin.log(&session).await;
    assert!(log.len() > reached);
    let results = log.iter().filter(|event| first(event)).count();
    assert_eq!(results, 600);
    let indexes = log.iter().map(|event| event["index"].as_u64().unwrap());
    assert!(indexes.eq(0..log.len() as u64));
    // The processes of its container end with the server's namespaces, its control groups do not.
    let gone = json!({ "project_id": project });
    admin.call("project_delete", gone).await.ok();
}

#[test(needs(namespaces, root, sandbox))]
async fn on_a_full_disk_containers_report_it_and_recover() {
    let server = Small::start(16);
    let admin = server.admin();
    let (one, two) = (admin.project("one").await, admin.project("two").await);
    let exec = async |id: &str, command: &str| {
        let call = json!({ "project_id": id, "command": command });
        admin.call("container_exec", call).await
    };
    assert_eq!(
        exec(&one, "echo a > kept; cat kept").await.ok()["stdout"],
        "a\n"
    );
    let start = json!({ "project_id": two });
    // First nothing is left, then a little more each time: so each step runs out of space once.
    let mut refused = Vec::new();
    for left in [0, 8 << 10, 24 << 10, 48 << 10, 96 << 10, 160 << 10] {
        server.leave(left);
        for reply in [
            admin.call("container_start", start.clone()).await,
            exec(&one, "echo b > more").await,
            exec(&two, "true").await,
            admin.call("container_stop", start.clone()).await,
            admin
                .call("project_create", json!({ "name": "three" }))
                .await,
        ] {
            assert_eq!(reply.status, 200, "{}", reply.text);
            assert!(reply.body["error"].is_null(), "a fault: {}", reply.text);
            if reply.is_error() {
                refused.push(reply.sentence().to_owned());
            }
        }
    }
    assert!(refused.len() >= 4, "{refused:?}");
    for sentence in &refused {
        let gives_reason = ["full", "No space left", "already exists"]
            .iter()
            .any(|why| sentence.contains(why));
        assert!(gives_reason, "{sentence}");
    }
    // Reads still work.
    let listed = admin.call("project_list", json!({})).await;
    assert!(listed.ok()["projects"].as_array().unwrap().len() >= 2);

    server.empty();
    let made = eventually(Duration::from_secs(40), async || {
        let four = json!({ "name": "four" });
        let again = admin.call("project_create", four).await;
        !again.is_error()
    });
    assert!(made.await);
    assert_eq!(exec(&one, "cat kept").await.ok()["stdout"], "a\n");
    assert_eq!(exec(&two, "echo c").await.ok()["stdout"], "c\n");
    let listed = admin.call("project_list", json!({})).await;
    for project in listed.ok()["projects"].as_array().unwrap() {
        let call = json!({ "project_id": project["project_id"] });
        admin.call("project_delete", call).await.ok();
    }
    for directory in ["run/c", "run/s", "layers", "projects"] {
        let left = std::fs::read_dir(server.file(directory)).unwrap().count();
        assert_eq!(left, 0, "{directory}");
    }
}

#[test(needs(namespaces, root, sandbox))]
async fn a_session_on_a_full_disk_says_why_it_waits_and_doctor_fails() {
    let server = Small::start(24);
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say begun\n/sh sleep 8").await;
    let begun = |event: &Value| event["type"] == "tool_call";
    let log = admin.follow(&session, begun).await;
    server.fill();
    let page = json!({
        "session_id": session, "since_index": log.last().unwrap()["index"], "wait_seconds": 1,
    });
    let stalled = eventually(Duration::from_secs(20), async || {
        let page = admin.call("session_events", page.clone()).await;
        let reason = page.ok()["stalled"].clone();
        reason
            .as_str()
            .is_some_and(|reason| reason.contains("is full"))
    });
    assert!(stalled.await);
    // The file system exists only in the server's namespaces.
    let doctor = Command::new("nsenter")
        .arg(format!("--mount=/proc/{}/ns/mnt", server.server_pid()))
        .arg(binary())
        .arg("--data-dir")
        .arg(server.home.path())
        .arg("doctor")
        .output()
        .unwrap();
    let findings = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(findings.contains("FAIL  no space left on"), "{findings}");
    assert!(!doctor.status.success());
    server.empty();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    let gone = json!({ "project_id": project });
    admin.call("project_delete", gone).await.ok();
}

#[test(needs(namespaces, root, sandbox))]
async fn on_a_full_disk_a_session_with_a_new_workspace_is_spawned_whole_or_not_at_all() {
    let server = Small::start(32);
    let admin = server.admin();
    // A workspace is made on the host, in the project's container, and in a container of its own.
    let (fresh, used) = (admin.project("fresh").await, admin.project("used").await);
    let isolated = json!({ "name": "isolated", "workspace_isolation": true });
    let isolated = admin.call("project_create", isolated).await.ok()["project_id"].clone();
    let isolated = isolated.as_str().unwrap().to_owned();
    for project in [&used, &isolated] {
        let exec = json!({ "project_id": project, "command": "true" });
        admin.call("container_exec", exec).await.ok();
    }
    let projects = [fresh, used, isolated];
    let mut spawned = Vec::new();
    let mut refused = 0;
    for left in [0, 12 << 10, 40 << 10, 96 << 10, 256 << 10] {
        server.leave(left);
        for project in &projects {
            let spawn = json!({ "project_id": project, "prompt": "/say here", "new_session": true,
                "create_workspace": true });
            let reply = admin.call("session_spawn", spawn).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
            assert!(reply.body["error"].is_null(), "a fault: {}", reply.text);
            if reply.is_error() {
                let sentence = reply.sentence();
                let gives_reason = ["full", "No space left"].map(|why| sentence.contains(why));
                assert!(gives_reason.contains(&true), "{sentence}");
                refused += 1;
            } else {
                spawned.push((project, reply.ok()["workspace_id"].clone()));
            }
        }
    }
    assert!(refused > 0, "the disk was never full");
    server.empty();
    for project in &projects {
        let mut expected: Vec<&Value> = spawned
            .iter()
            .filter(|(of, _)| *of == project)
            .map(|(_, workspace)| workspace)
            .collect();
        let default = json!("default");
        expected.push(&default);
        let found = async || {
            let list = json!({ "project_id": project });
            let listed = admin.call("workspace_list", list).await.ok().clone();
            let workspaces = listed["workspaces"].as_array().unwrap().clone();
            let ids = workspaces
                .into_iter()
                .map(|one| one["workspace_id"].clone());
            ids.collect::<Vec<_>>()
        };
        let discarded = eventually(Duration::from_secs(90), async || {
            let found = found().await;
            found.len() == expected.len() && expected.iter().all(|id| found.contains(id))
        });
        assert!(discarded.await, "{:?}, not {expected:?}", found().await);
        let list = json!({ "project_id": project });
        let sessions = admin.call("session_list", list.clone()).await.ok().clone();
        let sessions = sessions["sessions"].as_array().unwrap().len();
        assert_eq!(sessions, expected.len() - 1);
        admin.call("project_delete", list).await.ok();
    }
    for directory in ["run/c", "run/s", "layers", "projects"] {
        let left = std::fs::read_dir(server.file(directory)).unwrap().count();
        assert_eq!(left, 0, "{directory}");
    }
}

#[test(needs(namespaces, root, sandbox))]
async fn a_workspace_on_a_full_disk_has_no_checkpoint_and_the_log_says_why() {
    // Only the files of projects have no space: turns can be committed.
    let elsewhere = "mkdir projects && mount -t tmpfs -o size=6m none projects";
    let server = Small::start_after(64, elsewhere);
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/sh echo one > one").await;
    admin.turn(&session, 1).await;
    admin
        .message(
            &session,
            "/sh head -c 9000000 /dev/zero > filler; echo full",
        )
        .await;
    let completion = admin.turn(&session, 2).await;
    assert_eq!(completion["stop_reason"], "end_turn", "{completion}");
    assert!(completion["changed"].is_null(), "{completion}");
    admin
        .message(&session, "/sh rm filler; echo two > two")
        .await;
    admin.turn(&session, 3).await;
    let log = admin.log(&session).await;
    let turns = log.iter().filter(|event| event["type"] == "checkpoint");
    let turns: Vec<u64> = turns.map(|event| event["turn"].as_u64().unwrap()).collect();
    assert_eq!(turns, [1, 3], "{log:#?}");
    let says_why = |event: &Value| {
        let message = event["message"].as_str().unwrap_or_default();
        message.starts_with("no checkpoint of turn 2") && message.contains("No space left")
    };
    assert!(log.iter().any(says_why), "{log:#?}");
    let call = json!({ "session_id": session, "stat": true });
    let diff = admin.call("session_diff", call).await;
    assert_eq!(diff.ok()["files"].as_array().unwrap().len(), 2);
    let gone = json!({ "project_id": project });
    admin.call("project_delete", gone).await.ok();
}

/// A data directory on a small file system, in a mount namespace that ends with it, for commands that start servers
/// in the background.
struct SmallHome {
    home: TempDir,
    namespace: Child,
}

impl SmallHome {
    fn new(megabytes: u32) -> Self {
        let home = tempfile::tempdir().unwrap();
        let script =
            "mount -t tmpfs -o mode=700,size=\"$2\"m none \"$1\" && echo mounted && exec sleep 600";
        let mut namespace = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(home.path())
            .arg(megabytes.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(namespace.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "mounted\n");
        Self { home, namespace }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new("nsenter")
            .arg(format!("--mount=/proc/{}/ns/mnt", self.namespace.id()))
            .arg(binary())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("OUBLIETTE_HOME", self.home.path())
            .env("OUBLIETTE_SERVER__LISTEN", "127.0.0.1:0")
            .env("OUBLIETTE_RUNTIME", "sandbox")
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a command that must succeed; what it printed.
    fn ok(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert!(ended.status.success(), "{arguments:?}: {}", stderr(&ended));
        stdout(&ended)
    }

    fn free_bytes(&self) -> u64 {
        let root = format!("/proc/{}/root", self.namespace.id());
        let home = self.home.path().strip_prefix("/").unwrap();
        let disk = rustix::fs::statvfs(Path::new(&root).join(home)).unwrap();
        disk.f_bavail * disk.f_frsize
    }

    /// Waits until the agent of the newest session has filled the disk and waits for space.
    async fn wait_until_full(&self) {
        let full = eventually(Duration::from_secs(60), async || {
            self.free_bytes() == 0 && self.ok(&["ps"]).contains("waiting: disk full")
        });
        assert!(
            full.await,
            "{} bytes: {}",
            self.free_bytes(),
            self.ok(&["ps"])
        );
    }
}

impl Drop for SmallHome {
    fn drop(&mut self) {
        let down = self.run(&["down", "--remove", "--yes"]);
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
        if !std::thread::panicking() {
            assert!(down.status.success(), "{}", stderr(&down));
        }
    }
}

#[test(needs(namespaces, root, sandbox), multi_thread, limit = 300)]
async fn a_full_disk_is_freed_with_the_product_and_servers_start_on_it() {
    let home = SmallHome::new(40);
    home.ok(&["project", "create", "big"]);
    let fill = "/sh dd if=/dev/zero of=big bs=1M count=60; ls -la";
    home.ok(&["session", "spawn", "big", fill]);
    home.wait_until_full().await;
    // Other writes are refused: only what frees space has the reserve.
    let refused = home.run(&["project", "create", "other"]);
    assert!(stderr(&refused).contains("full"), "{}", stderr(&refused));
    let page = home.ok(&["session", "events", "latest", "--json"]);
    assert!(page.contains("the project big uses "), "{page}");

    // Removing the file in the container lets the agent go on.
    home.ok(&["container", "exec", "big", "rm -f big"]);
    let idle = eventually(Duration::from_secs(60), async || {
        home.ok(&["session", "get", "latest", "--json"])
            .contains("\"status\": \"idle\"")
    });
    assert!(idle.await, "{}", home.ok(&["ps", "--all"]));

    home.ok(&["session", "message", "latest", fill]);
    home.wait_until_full().await;
    home.ok(&["session", "interrupt", "latest"]);
    home.ok(&["session", "end", "latest"]);
    let ended = home.ok(&["session", "get", "latest", "--json"]);
    assert!(ended.contains("\"status\": \"completed\""), "{ended}");

    // A server starts on the full disk, also after others that were stopped and killed there.
    home.ok(&["down"]);
    for _ in 0..3 {
        home.ok(&["up"]);
        assert_eq!(home.free_bytes() >> 20, 0);
        let status = home.ok(&["status", "--json"]);
        let status: Value = serde_json::from_str(&status).unwrap();
        let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    home.ok(&["project", "delete", "big", "--yes"]);
    let made = eventually(Duration::from_secs(40), async || {
        home.run(&["project", "create", "other"]).status.success()
    });
    assert!(made.await);
}
