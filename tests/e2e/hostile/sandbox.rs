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
    // A process whose key can be read shows that the loops find keys.
    let control = "OUBLIETTE_API_KEY=control setsid sleep 1000 >/dev/null 2>&1 &";
    assert_eq!(admin.exec(&project, control).await["exit_code"], 0);
    let found = "n=0; while [ ! -e stop ]; do for f in /proc/[0-9]*/environ; do \
                 tr '\\0' '\\n' <$f 2>/dev/null | grep -e ^OUBLIETTE_SESSION_KEY= \
                 -e ^OUBLIETTE_API_KEY= >>found; done; n=$((n+1)); echo $n >rounds.$0; mv rounds.$0 rounds-$0; \
                 done";
    let loops = format!(
        "for i in 1 2; do setsid sh -c {} $i >/dev/null 2>&1 & done",
        quote(found)
    );
    assert_eq!(admin.exec(&project, loops).await["exit_code"], 0);
    // And by an agent, whose own keys are no secret from it.
    let by_agent = format!(
        "/sh env | grep -e ^OUBLIETTE_SESSION_KEY= -e ^OUBLIETTE_API_KEY= >own; \
         setsid sh -c {} 3 >/dev/null 2>&1 &",
        quote(found)
    );
    let session = admin.spawn(&project, &by_agent).await;
    admin.turn(&session, 1).await;
    let workspace = server.workspace(&project);
    let rounds = |number: u32| -> u64 {
        let text = std::fs::read_to_string(workspace.join(format!("rounds-{number}")));
        text.map_or(0, |text| text.trim().parse().unwrap())
    };
    for number in 1..=3 {
        wait_for_file(&workspace.join(format!("rounds-{number}"))).await;
    }
    for _ in 0..4 {
        let before = [1, 2, 3].map(rounds);
        let more = json!({ "new_session": true });
        // The agent lives for at least three rounds of each loop.
        let waits = "/sh for i in 1 2 3; do n=$(cat rounds-$i); until [ $(cat rounds-$i) -ge $((n+3)) ]; \
                     do sleep 0.05; done; done";
        let prompt = format!("{waits}\n/tool oubliette_project_list");
        let session = admin.spawn_with(&project, &prompt, more).await;
        admin
            .follow(&session, |event| event["type"] == "completion")
            .await;
        let after = [1, 2, 3].map(rounds);
        let is_scanned = before
            .iter()
            .zip(&after)
            .all(|(before, after)| before + 3 <= *after);
        assert!(is_scanned, "{before:?} {after:?}");
    }
    // The agents are idle now: their memory is tried as well. A process can open its own.
    let memory = "(: </proc/self/mem) && echo own; for d in /proc/[0-9]*; do \
                  if tr '\\0' ' ' <$d/cmdline | grep -q 'demo-agen[t]'; then \
                  echo agent; head -c1 $d/environ 2>/dev/null; readlink $d/cwd $d/fd/0; \
                  dd if=$d/maps count=1 2>/dev/null; (: <$d/mem) 2>/dev/null && echo opened; \
                  fi; done; touch stop; exit 0";
    let seen = admin.exec(&project, memory).await;
    let lines = seen["stdout"].as_str().unwrap();
    let agents = lines
        .strip_prefix("own\n")
        .unwrap_or_else(|| panic!("{seen}"));
    assert!(!agents.is_empty(), "{seen}");
    assert!(agents.lines().all(|line| line == "agent"), "{seen}");
    let found = std::fs::read_to_string(workspace.join("found")).unwrap_or_default();
    assert!(!found.is_empty(), "the loops find no key at all");
    let own = std::fs::read_to_string(workspace.join("own")).unwrap();
    let mut foreign = found
        .lines()
        .filter(|line| own.lines().all(|own| own != *line));
    assert!(
        foreign.all(|line| line == "OUBLIETTE_API_KEY=control"),
        "keys were read"
    );
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

/// In every runtime, with what every image has.
#[test(runtimes)]
async fn a_process_that_is_orphaned_ends_with_its_session(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let workspace = server.workspace(&project);
    let script =
        "n=0; while :; do n=$((n+1)); echo $n >beat.new; mv beat.new beat; sleep 0.05; done\n";
    std::fs::write(workspace.join("beat.sh"), script).unwrap();
    let prompt = "/sh (setsid sh -c 'setsid env -i /bin/sh beat.sh & exit' >/dev/null 2>&1 &)";
    let session = admin.spawn(&project, prompt).await;
    admin
        .follow(&session, |event| event["type"] == "completion")
        .await;
    let beat = workspace.join("beat");
    let first = wait_for_file(&beat).await;
    let runs = eventually(WAIT_TIMEOUT, async || {
        std::fs::read_to_string(&beat).is_ok_and(|text| text != first)
    });
    assert!(runs.await, "the process does not run after its turn");
    let end = json!({ "session_id": session });
    admin.call("session_end", end).await.ok();
    let last = std::fs::read_to_string(&beat).unwrap();
    let ran_on = eventually(Duration::from_secs(2), async || {
        std::fs::read_to_string(&beat).is_ok_and(|text| text != last)
    });
    assert!(!ran_on.await, "a process outlived its session");
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

// Only root can read the environment of an agent.
#[test(needs(opencode, root, sandbox), limit = 300)]
async fn the_listener_of_opencode_needs_a_password_of_its_own() {
    let (server, llm) = agents::server_with_agent("opencode", "sandbox");
    let admin = server.admin();
    // With this network every project can connect to the listeners of the others.
    let host = json!({ "network": "host" });
    let one = agents::project(&server, "opencode", &llm, host).await;
    let made = json!({ "name": "two", "network": "host" });
    let made = admin.call("project_create", made).await;
    let two = made.ok()["project_id"].as_str().unwrap().to_owned();
    for _ in 0..2 {
        let more = json!({ "new_session": true });
        let session = admin.spawn_with(&one, "say Hello.", more).await;
        let completion = admin.turn(&session, 1).await;
        let text = completion["text"].as_str().unwrap();
        assert!(text.starts_with("Hello."), "{text}");
    }
    let mut listeners = Vec::new();
    for process in server.leftovers().processes {
        let pid = process.split_whitespace().next().unwrap().to_owned();
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let mut variables = environment.split('\0');
        let password = variables.find_map(|it| it.strip_prefix("OPENCODE_SERVER_PASSWORD="));
        for port in listening_ports(&[process]) {
            let password = password.expect("it listens without a password");
            listeners.push((port, password.to_owned()));
        }
    }
    assert_eq!(listeners.len(), 2, "{:#?}", server.leftovers().processes);
    assert_ne!(listeners[0].1, listeners[1].1, "the passwords are the same");
    let passwords: Vec<Option<&str>> = listeners
        .iter()
        .map(|(_, password)| Some(password.as_str()))
        .chain([None])
        .collect();
    for (port, own) in &listeners {
        for password in &passwords {
            let user = password.map_or(String::new(), |it| format!("-u 'opencode:{it}'"));
            let line = format!(
                "curl -s -m 40 --noproxy '*' -o /dev/null -w '%{{http_code}}' {user} http://127.0.0.1:{port}/session"
            );
            let ran = admin.exec(&two, line).await;
            let expected = if *password == Some(own.as_str()) {
                "200"
            } else {
                "401"
            };
            assert_eq!(ran["stdout"], expected, "{ran}");
        }
    }
}

/// The TCP ports on which these processes, whose id is their first word, listen.
fn listening_ports(processes: &[String]) -> Vec<u16> {
    let mut sockets = Vec::new();
    for process in processes {
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
    fn new(dir: &str, name: &str, mode: u32) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let path = Path::new(dir).join(format!("oubliette-e2e-{}-{name}", std::process::id()));
        std::fs::write(&path, "secret").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
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
    let make = |when: &str| directories.map(|dir| Canary::new(dir, when, 0o600));
    let before = make("before");
    let public = Canary::new("/etc", "public", 0o644);
    assert_eq!(admin.exec(&project, "true").await["exit_code"], 0);
    let after = make("after");
    for Canary(path) in before.iter().chain(&after) {
        let ran = admin.exec(&project, json!(["cat", path])).await;
        assert_eq!(ran["stdout"], "", "{}: {ran}", path.display());
        assert_eq!(ran["exit_code"], 1, "{}: {ran}", path.display());
        let why = ran["stderr"].as_str().unwrap();
        let is_refused = ["Permission denied", "No such file"]
            .iter()
            .any(|it| why.contains(it));
        assert!(is_refused, "{}: {ran}", path.display());
    }
    // What every user may read is there, so that the command does read files.
    let ran = admin.exec(&project, json!(["cat", public.0])).await;
    assert_eq!(ran["stdout"], "secret", "{ran}");
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
