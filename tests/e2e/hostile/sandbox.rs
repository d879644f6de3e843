//! A process in a container that attacks the server, the host, or other processes.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use support::{Modern, Server, agents, eventually, server_with};

/// For what takes a moment on an idle machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a script of Python in a project's container that runs on after the command.
async fn start_script(admin: &Modern, project: &str, workspace: &Path, script: &str) {
    std::fs::write(workspace.join("attack.py"), script).unwrap();
    let command = "nohup setsid python3 attack.py >attack.log 2>&1 &";
    let started = admin.exec(project, command).await;
    assert_eq!(started["exit_code"], 0, "{started}");
}

async fn wait_for_file(path: &Path) -> String {
    let mut text = String::new();
    let found = eventually(WAIT_TIMEOUT, async || {
        text = std::fs::read_to_string(path).unwrap_or_default();
        !text.is_empty()
    })
    .await;
    assert!(found, "{} was not written", path.display());
    text
}

fn port(server: &Server) -> u16 {
    server.base().rsplit(':').next().unwrap().parse().unwrap()
}

#[test(each(sandbox))]
async fn no_container_can_bind_the_servers_port_while_the_server_is_away(runtime: &str) {
    let mut server = server_with(runtime, "[network]\ndefault = \"host\"\n").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let port = port(&server);
    let workspace = server.workspace(&project);
    // Every address, plain and Multipath TCP, until one can be bound.
    let script = format!(
        "import socket, itertools, os\n\
         v4, v6 = socket.AF_INET, socket.AF_INET6\n\
         kinds = list(itertools.product([(v4,'127.0.0.1'),(v4,'0.0.0.0'),(v6,'::1'),(v6,'::')],[0,262]))\n\
         for i in itertools.count():\n\
         \x20 for (family, address), protocol in kinds:\n\
         \x20   try:\n\
         \x20     s = socket.socket(family, socket.SOCK_STREAM, protocol)\n\
         \x20     s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
         \x20     s.bind((address, {port}))\n\
         \x20     s.listen()\n\
         \x20     open('bound','w').write(f'{{address}} {{protocol}}')\n\
         \x20     raise SystemExit\n\
         \x20   except OSError: pass\n\
         \x20   finally: s.close()\n\
         \x20 open('rounds.new','w').write(str(i)); os.rename('rounds.new','rounds')\n"
    );
    start_script(&admin, &project, &workspace, &script).await;
    let rounds = || -> u64 {
        let text = std::fs::read_to_string(workspace.join("rounds")).unwrap_or_default();
        text.parse().unwrap_or_default()
    };
    let bound = workspace.join("bound");
    let started = eventually(WAIT_TIMEOUT, async || bound.exists() || rounds() > 0).await;
    assert!(started, "the script does not run");
    server.kill();
    let first = rounds();
    let tried = eventually(WAIT_TIMEOUT, async || {
        bound.exists() || rounds() > first + 50
    })
    .await;
    assert!(tried, "the script does not run");
    assert!(!bound.exists(), "a container has the server's port");
    // The host's own processes can, so the server can start again.
    drop(TcpListener::bind(("127.0.0.1", port)).unwrap());
    server.start_again();
    let other = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); \
                 port = s.getsockname()[1]; s.close(); socket.create_server(('127.0.0.1', port))";
    let ran = admin.exec(&project, json!(["python3", "-c", other])).await;
    assert_eq!(ran["exit_code"], 0, "other ports can be bound: {ran}");
}

#[test(runtimes)]
async fn the_keys_of_an_agent_cannot_be_read_by_other_processes(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let made = json!({ "name": "one", "agent_scope": "write" });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let found = "n=0; while [ ! -e stop ]; do for f in /proc/[0-9]*/environ; do \
                 tr '\\0' '\\n' <$f 2>/dev/null | grep -e ^OUBLIETTE_SESSION_KEY= \
                 -e ^OUBLIETTE_API_KEY= >>found; done; n=$((n+1)); echo $n >rounds; done";
    let loops = format!(
        "for i in 1 2; do setsid sh -c {} >/dev/null 2>&1 & done",
        quote(found)
    );
    assert_eq!(admin.exec(&project, loops).await["exit_code"], 0);
    let workspace = server.workspace(&project);
    for _ in 0..4 {
        let more = json!({ "new_session": true });
        let session = admin
            .spawn_with(&project, "/tool oubliette_project_list", more)
            .await;
        admin
            .follow(&session, |event| event["type"] == "completion")
            .await;
    }
    // The agents are idle now: their memory is tried as well.
    let memory = "for d in /proc/[0-9]*; do \
                  if tr '\\0' ' ' <$d/cmdline | grep -q 'demo-agen[t]'; then \
                  echo agent; head -c1 $d/environ 2>/dev/null; readlink $d/cwd $d/fd/0; \
                  dd if=$d/maps count=1 2>/dev/null; fi; done; touch stop; exit 0";
    let seen = admin.exec(&project, memory).await;
    let lines = seen["stdout"].as_str().unwrap();
    assert!(lines.starts_with("agent\n"), "{seen}");
    assert!(lines.lines().all(|line| line == "agent"), "{seen}");
    wait_for_file(&workspace.join("rounds")).await;
    let found = std::fs::read_to_string(workspace.join("found")).unwrap_or_default();
    assert_eq!(found, "", "keys were read");
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[test(each(sandbox))]
async fn a_process_cannot_leave_its_session(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let workspace = server.workspace(&project);
    // Everything that has ever let a process leave its tree: another session, orphaned, no
    // environment, and another limit than the one it inherited.
    let script = "import os, resource, time\n\
        if os.fork(): os._exit(0)\n\
        os.setsid()\n\
        for new in [(5, -1), (-1, -1)]:\n\
        \x20 try: resource.setrlimit(resource.RLIMIT_RTTIME, new); open('changed','w').write('x')\n\
        \x20 except (OSError, ValueError): pass\n\
        \x20 try: resource.prlimit(0, resource.RLIMIT_RTTIME, new); open('changed','w').write('x')\n\
        \x20 except (OSError, ValueError): pass\n\
        if os.fork(): os._exit(0)\n\
        while True:\n\
        \x20 open('beat.new','w').write(str(time.time_ns())); os.rename('beat.new','beat')\n\
        \x20 time.sleep(0.01)\n";
    std::fs::write(workspace.join("attack.py"), script).unwrap();
    let prompt = "/sh env -i /usr/bin/python3 attack.py >/dev/null 2>&1";
    let session = admin.spawn(&project, prompt).await;
    admin
        .follow(&session, |event| event["type"] == "completion")
        .await;
    let beat = workspace.join("beat");
    wait_for_file(&beat).await;
    let ended = admin
        .call("session_end", json!({ "session_id": session }))
        .await;
    ended.ok();
    let last = std::fs::read_to_string(&beat).unwrap();
    let ran_on = eventually(Duration::from_secs(2), async || {
        std::fs::read_to_string(&beat).unwrap() != last
    });
    assert!(!ran_on.await, "a process outlived its session");
    assert!(!workspace.join("changed").exists());
}

#[test(each(sandbox))]
async fn what_a_container_runs_is_killed_before_services_of_the_host(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let scores = "cat /proc/self/oom_score_adj; (echo 0 >/proc/self/oom_score_adj; \
                  echo -1 >/proc/self/oom_score_adj) 2>/dev/null; sh -c 'cat /proc/self/oom_score_adj'";
    let ran = admin.exec(&project, scores).await;
    assert_eq!(ran["stdout"], "300\n300\n", "{ran}");
}

#[test(needs(opencode, sandbox), limit = 300)]
async fn the_listener_of_opencode_needs_a_password_of_its_own() {
    let (server, _llm) = agents::server_with_agent("opencode", "sandbox");
    let admin = server.admin();
    let made = json!({ "name": "one", "agent": "opencode", "model": "mock/mock-model", "network": "host" });
    let made = admin.call("project_create", made).await;
    let one = made.ok()["project_id"].as_str().unwrap().to_owned();
    let two = json!({ "name": "two", "network": "host" });
    let two = admin.call("project_create", two).await;
    let two = two.ok()["project_id"].as_str().unwrap().to_owned();
    let session = admin.spawn(&one, "say Hello.").await;
    let log = admin
        .follow(&session, |event| event["type"] == "completion")
        .await;
    let text = log.last().unwrap()["text"].as_str().unwrap();
    assert!(text.starts_with("Hello."), "{text}");
    let ports = listening_ports(&server);
    assert!(!ports.is_empty(), "opencode does not listen");
    for port in ports {
        let script = format!(
            "import urllib.request, urllib.error\n\
             try: print(urllib.request.urlopen('http://127.0.0.1:{port}/session').status)\n\
             except urllib.error.HTTPError as e: print(e.code)"
        );
        let ran = admin.exec(&two, json!(["python3", "-c", script])).await;
        assert_eq!(ran["stdout"], "401\n", "{ran}");
    }
}

/// The TCP ports on which processes of this server's containers listen.
fn listening_ports(server: &Server) -> Vec<u16> {
    let mut sockets = Vec::new();
    for process in server.leftovers().processes {
        let pid = process.split_whitespace().next().unwrap_or_default();
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"));
        for descriptor in descriptors.into_iter().flatten().flatten() {
            let target = std::fs::read_link(descriptor.path()).unwrap_or_default();
            let target = target.to_string_lossy().into_owned();
            let inode = target
                .strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']'));
            sockets.extend(inode.map(str::to_owned));
        }
    }
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listening = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_ours = fields[3] == "0A" && sockets.iter().any(|inode| inode == fields[9]);
        let port = u16::from_str_radix(fields[1].rsplit(':').next()?, 16).ok()?;
        is_ours.then_some(port)
    });
    listening.collect()
}

/// A file of the host's root, removed again on drop.
struct Canary(std::path::PathBuf);

impl Canary {
    fn new(dir: &str, name: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let path = Path::new(dir).join(format!("oubliette-e2e-{}-{name}", std::process::id()));
        std::fs::write(&path, "secret").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Self(path)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

// Only root can make files that are secrets of the host.
#[test(each(sandbox), needs(root))]
async fn secrets_of_the_host_cannot_be_read_whenever_they_were_made(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let directories = [
        "/etc",
        "/opt",
        "/usr/local/etc",
        "/srv",
        "/var/lib",
        "/root",
    ];
    let make = |when: &str| directories.map(|dir| Canary::new(dir, when));
    let before = make("before");
    assert_eq!(admin.exec(&project, "true").await["exit_code"], 0);
    let after = make("after");
    for Canary(path) in before.iter().chain(&after) {
        let ran = admin.exec(&project, json!(["cat", path])).await;
        assert_eq!(ran["stdout"], "", "{}: {ran}", path.display());
    }
}

#[test(each(sandbox))]
async fn filling_memory_through_files_does_not_end_the_container(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let made = json!({ "name": "one", "memory_mb": 128 });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let session = admin.spawn(&project, "/say hello").await;
    admin
        .follow(&session, |event| event["type"] == "completion")
        .await;
    let fill = "for d in /dev/shm /run /tmp; do dd if=/dev/zero of=$d/fill bs=1M; done";
    let ran = admin.exec(&project, fill).await;
    let errors = ran["stderr"].as_str().unwrap();
    assert_eq!(errors.matches("No space left").count(), 3, "{ran}");
    let before = admin
        .exec(&project, "rm /dev/shm/fill /run/fill /tmp/fill; echo fine")
        .await;
    assert_eq!(before["stdout"], "fine\n", "{before}");
    // The agent is the same process: the container was not started again.
    let log = admin.log(&session).await;
    admin.message(&session, "/say again").await;
    let more = admin.follow_from(&session, log.len() as i64 - 1, |event| {
        event["type"] == "completion"
    });
    let resumed = more
        .await
        .iter()
        .any(|event| event["resumed_by"].is_string());
    assert!(!resumed, "the container was started again");
}
