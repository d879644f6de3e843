//! The gate or the server is killed, the journal cannot be written, and everything ends.

use std::os::unix::fs::symlink;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::network::WebServer;
use support::{Modern, binary, cli, eventually};

use super::{
    NO_PROXY, NameServer, gate_pid, log_of, loopback_address, policy_project, project_with, run,
};

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A stand-in for a host, and a project that may reach it.
async fn start(runtime: &str) -> (NameServer, WebServer, support::Server, Modern, String) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let web = WebServer::start(address, 80);
    let allowed = json!({ "allow": ["web.test", address] });
    let (server, admin, project) = project_with(&names, runtime, allowed).await;
    (names, web, server, admin, project)
}

/// Starts a download of some seconds that writes to `download`, and then its exit code to `ended`.
async fn start_download(server: &support::Server, admin: &Modern, project: &str, seconds: u32) {
    let line = format!(
        "{NO_PROXY} rm -f download ended; (curl -sS -N -m 90 http://web.test/drip/{seconds} > download 2> errors; \
         echo $? > ended) >/dev/null 2>&1 &"
    );
    run(admin, project, &line).await;
    let download = server.workspace(project).join("download");
    let begun = eventually(WAIT_TIMEOUT, async || {
        std::fs::read_to_string(&download).is_ok_and(|text| text.contains("line 2"))
    });
    assert!(begun.await);
}

async fn download_result(server: &support::Server, project: &str) -> (String, String) {
    let workspace = server.workspace(project);
    let read = |name: &str| std::fs::read_to_string(workspace.join(name)).unwrap_or_default();
    let ended = eventually(WAIT_TIMEOUT, async || read("ended").ends_with('\n')).await;
    assert!(ended, "the download does not end");
    (read("ended").trim().to_owned(), read("download"))
}

pub(super) fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test(each(sandbox))]
async fn a_killed_gate_is_started_again_and_costs_only_open_connections(runtime: &str) {
    let (_names, _web, server, admin, project) = start(runtime).await;
    start_download(&server, &admin, &project, 10).await;
    let first = gate_pid(server.home()).unwrap();
    // What a gate leaves that is killed while it makes a socket.
    let draft = server.home().join("run/.socket-leftover");
    std::fs::create_dir(&draft).unwrap();
    kill(first);
    let (code, _) = download_result(&server, &project).await;
    assert_ne!(code, "0", "the open connection ended");
    for prefix in ["", NO_PROXY] {
        let line = format!("{prefix} curl -sS -m 60 http://web.test/");
        assert_eq!(run(&admin, &project, &line).await, "hello from web.test\n");
    }
    let second = gate_pid(server.home()).unwrap();
    assert_ne!(first, second);
    assert!(!draft.exists());
}

/// Its ports stay taken, and what connects meanwhile waits.
#[test(each(sandbox))]
async fn a_killed_tunnel_is_started_again_and_loses_no_port(runtime: &str) {
    let (_names, _web, server, admin, project) = start(runtime).await;
    let take = "import socket\n\
                for port in (53, 80, 3128):\n\
                \x20 s = socket.socket()\n\
                \x20 try: s.bind(('127.0.0.1', port)); s.listen(); print('BOUND', port)\n\
                \x20 except OSError: pass\n";
    std::fs::write(server.workspace(&project).join("take.py"), take).unwrap();
    for _ in 0..4 {
        let line = "pkill -KILL -f '[c]lient tunnel' && python3 take.py && curl -sS -m 60 http://web.test/";
        assert_eq!(run(&admin, &project, line).await, "hello from web.test\n");
    }
}

/// As an upgrade replaces a gate, also if a container holds a connection on purpose.
#[test(each(sandbox), limit = 180)]
async fn a_held_connection_keeps_a_gate_of_an_earlier_version_for_a_bounded_time(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let web = WebServer::start(address, 80);
    let config = format!("{}gate_replacement_seconds = 1\n", names.config());
    let mut server = support::server_with(runtime, &config).await;
    let admin = server.admin();
    let allowed = json!({ "allow": ["web.test", address] });
    let project = policy_project(&admin, "one", allowed).await;
    let hold = "(curl -sS -m 170 http://web.test/hold; echo $? > ended) >/dev/null 2>&1 &";
    run(&admin, &project, hold).await;
    assert!(eventually(WAIT_TIMEOUT, async || web.connections() == 1).await);
    let first = gate_pid(server.home()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let upgraded = directory.path().join("oubliette");
    std::fs::copy(binary(), &upgraded).unwrap();
    assert_eq!(server.stop(), Some(0));
    server.start_again_as(&upgraded);
    let replaced = eventually(WAIT_TIMEOUT, async || {
        gate_pid(server.home()).is_some_and(|pid| pid != first)
    });
    assert!(replaced.await);
    let admin = server.admin();
    let fetch = "curl -sS -m 60 http://web.test/";
    assert_eq!(run(&admin, &project, fetch).await, "hello from web.test\n");
}

#[test(each(sandbox, docker))]
async fn a_killed_server_costs_no_connection(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let web = WebServer::start(address, 80);
    let allowed = json!({ "allow": ["web.test", address] });
    let (mut server, admin, project) = project_with(&names, runtime, allowed).await;
    let fetch = if runtime == "docker" {
        "wget -q -O -"
    } else {
        "curl -sS -N -m 60"
    };
    // One download runs, and one request begins while there is no server.
    let line = format!(
        "{NO_PROXY} ({fetch} http://web.test/drip/10 > download; echo $? > ended) >/dev/null 2>&1 & \
         (while [ ! -e away ]; do sleep 0.1; done; {fetch} http://web.test/ > second; echo $? > second-ended) \
         >/dev/null 2>&1 &"
    );
    run(&admin, &project, &line).await;
    let workspace = server.workspace(&project);
    let read = |name: &str| std::fs::read_to_string(workspace.join(name)).unwrap_or_default();
    let begun = eventually(WAIT_TIMEOUT, async || web.connections() == 1).await;
    assert!(begun, "{} {}", read("ended"), read("download"));
    let gate = gate_pid(server.home()).unwrap();
    server.kill();
    std::fs::write(workspace.join("away"), "").unwrap();
    for (name, expected) in [("second", "hello from web.test\n"), ("download", "end\n")] {
        let ended = if name == "second" {
            "second-ended"
        } else {
            "ended"
        };
        assert!(eventually(WAIT_TIMEOUT, async || !read(ended).is_empty()).await);
        assert_eq!(read(ended).trim(), "0");
        assert!(read(name).ends_with(expected), "{}", read(name));
    }
    server.start_again();
    // The next server adopts the gate, and tells it of changes.
    let admin = server.admin();
    names.set("late.test", address);
    let allow = json!({ "project_id": project, "host": "late.test" });
    admin.call("network_allow", allow).await.ok();
    let line = format!("{fetch} http://late.test/");
    assert_eq!(run(&admin, &project, &line).await, "hello from late.test\n");
    assert_eq!(gate_pid(server.home()), Some(gate));
}

#[test(each(sandbox), limit = 180)]
async fn a_restarted_server_cuts_no_connection_of_any_container(runtime: &str) {
    let (_names, web, mut server, admin, first) = start(runtime).await;
    let mut projects = vec![first];
    for name in ["two", "three"] {
        let policy = json!({ "allow": ["web.test", web.address()] });
        projects.push(policy_project(&admin, name, policy).await);
    }
    for project in &projects {
        start_download(&server, &admin, project, 20).await;
    }
    server.kill();
    server.start_again();
    for project in &projects {
        let (code, text) = download_result(&server, project).await;
        assert!(code == "0" && text.ends_with("end\n"), "{code}: {text}");
    }
}

#[test(each(sandbox), limit = 180)]
async fn an_upgraded_server_replaces_the_gate_once_no_connection_is_open(runtime: &str) {
    let (_names, _web, mut server, admin, project) = start(runtime).await;
    let fetch = "curl -sS -m 60 http://web.test/";
    run(&admin, &project, fetch).await;
    let first = gate_pid(server.home()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let upgraded = directory.path().join("oubliette");
    std::fs::copy(binary(), &upgraded).unwrap();
    start_download(&server, &admin, &project, 30).await;
    assert_eq!(server.stop(), Some(0));
    server.start_again_as(&upgraded);
    let admin = server.admin();
    run(&admin, &project, "true").await;
    assert_eq!(gate_pid(server.home()), Some(first), "a connection is open");
    let (code, text) = download_result(&server, &project).await;
    assert_eq!(code, "0");
    assert!(text.ends_with("end\n"));
    // The next server, or the same one later.
    assert_eq!(server.stop(), Some(0));
    server.start_again_as(&upgraded);
    let admin = server.admin();
    assert_eq!(run(&admin, &project, fetch).await, "hello from web.test\n");
    let replaced = eventually(WAIT_TIMEOUT, async || {
        gate_pid(server.home()).is_some_and(|pid| pid != first)
    });
    assert!(replaced.await);
    assert_eq!(run(&admin, &project, fetch).await, "hello from web.test\n");
}

#[test(each(sandbox))]
async fn a_journal_that_cannot_be_written_stops_no_traffic_and_says_what_it_lost(runtime: &str) {
    let (_names, _web, server, admin, project) = start(runtime).await;
    let directory = server.home().join("network");
    std::fs::create_dir(&directory).unwrap();
    let journal = directory.join(format!("{project}.jsonl"));
    symlink("/dev/full", &journal).unwrap();
    let fetch = "curl -sS -m 60 http://web.test/";
    for _ in 0..3 {
        assert_eq!(run(&admin, &project, fetch).await, "hello from web.test\n");
    }
    std::fs::remove_file(&journal).unwrap();
    run(&admin, &project, fetch).await;
    let mut lost = Vec::new();
    let told = eventually(WAIT_TIMEOUT, async || {
        lost = log_of(&admin, &project, "lost").await;
        !lost.is_empty()
    });
    assert!(told.await);
    // Three connections, each opened and closed; the last end may be written later.
    assert!(lost[0]["count"].as_u64().unwrap() >= 5, "{lost:?}");
}

#[test(each(sandbox))]
async fn nothing_is_left_of_the_gate(runtime: &str) {
    let (_names, web, mut server, admin, project) = start(runtime).await;
    run(&admin, &project, "curl -sS -m 60 http://web.test/").await;
    assert!(gate_pid(server.home()).is_some());
    // Without a container it ends by itself.
    let named = json!({ "project_id": project });
    admin.call("project_delete", named).await.ok();
    server.assert_nothing_left().await;
    assert_eq!(gate_pid(server.home()), None);
    let admin = server.admin();
    let allowed = json!({ "allow": ["web.test", web.address()] });
    let project = policy_project(&admin, "two", allowed).await;
    run(&admin, &project, "curl -sS -m 60 http://web.test/").await;
    server.kill();
    assert!(gate_pid(server.home()).is_some(), "it outlives the server");
    let down = cli(server.home(), ["down"]);
    assert!(down.status.success());
    assert_eq!(gate_pid(server.home()), None);
    assert!(!server.home().join("run/gate.sock").exists());
}
