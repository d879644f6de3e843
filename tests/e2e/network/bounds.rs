//! A container that opens as many connections, or is refused as often, as it can.

use std::time::Duration;

use serde_json::json;
use support::network::WebServer;
use support::{Server, ServerOptions, eventually};

use super::{NameServer, log_of, loopback_address, policy_project, project_with, run};

const GATE_LIMIT: usize = 512;
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

#[test(each(sandbox), limit = 300)]
async fn ten_thousand_connections_of_one_container_disturb_no_other(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let web = WebServer::start(address, 80);
    let allowed = json!({ "allow": ["web.test", address] });
    let (server, admin, project) = project_with(&names, runtime, allowed.clone()).await;
    let other = policy_project(&admin, "two", allowed).await;
    run(&admin, &other, "true").await;
    // Holds what it gets, and goes on.
    let script = "import socket, time, resource\n\
                  hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n\
                  resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n\
                  at = socket.gethostbyname('web.test'); held = []; refused = 0\n\
                  for i in range(10000):\n\
                  \x20 s = socket.socket(); s.settimeout(5)\n\
                  \x20 try:\n\
                  \x20   s.connect((at, 80)); s.send(b'GET /hold HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n')\n\
                  \x20   held.append(s)\n\
                  \x20   if len(held) > 900: held.pop(0).close()\n\
                  \x20 except OSError: refused += 1\n\
                  print('tried', i + 1, flush=True)\n\
                  time.sleep(20)\n";
    let workspace = server.workspace(&project);
    std::fs::write(workspace.join("flood.py"), script).unwrap();
    let start = "nohup setsid python3 flood.py > flood.log 2>&1 &";
    run(&admin, &project, start).await;
    let reached = eventually(RECOVERY_TIMEOUT, async || web.peak() >= GATE_LIMIT / 2).await;
    assert!(reached, "{}", web.peak());
    // While the flood goes on.
    let said = run(&admin, &other, "curl -sS -m 30 http://web.test/").await;
    assert_eq!(said.trim(), "hello from web.test");
    let log = workspace.join("flood.log");
    let done = eventually(Duration::from_secs(200), async || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("tried 10000"))
    });
    assert!(done.await, "{:?}", std::fs::read_to_string(&log));
    let listed = admin.call("project_list", json!({})).await;
    assert_eq!(listed.ok()["projects"].as_array().unwrap().len(), 2);
    // One more for the other container.
    assert!(web.peak() <= GATE_LIMIT + 1, "{}", web.peak());
    run(&admin, &project, "pkill -f '[f]lood.py' || true").await;
    let works_again = eventually(RECOVERY_TIMEOUT, async || {
        let ran = admin
            .exec(&project, "curl -sS -m 30 http://web.test/")
            .await;
        ran["stdout"] == "hello from web.test\n"
    });
    assert!(works_again.await);
}

/// Where the process may have few files open, the containers share what there is.
#[test(needs(sandbox), limit = 240)]
async fn one_container_does_not_use_up_the_few_files_that_the_gate_may_open() {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let web = WebServer::start(address, 80);
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{}", names.config()),
        wrapper: ["sh", "-c", "ulimit -n 256; exec \"$@\"", "sh"]
            .map(str::to_owned)
            .to_vec(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let allowed = json!({ "allow": ["web.test", address] });
    let project = policy_project(&admin, "one", allowed.clone()).await;
    let other = policy_project(&admin, "two", allowed).await;
    run(&admin, &other, "true").await;
    let script = "import socket, time\n\
                  at = socket.gethostbyname('web.test'); held = []\n\
                  for i in range(220):\n\
                  \x20 s = socket.socket(); s.settimeout(5)\n\
                  \x20 try: s.connect((at, 80)); s.send(b'GET /hold HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n'); held.append(s)\n\
                  \x20 except OSError: pass\n\
                  print('tried', flush=True)\n\
                  time.sleep(100)\n";
    let workspace = server.workspace(&project);
    std::fs::write(workspace.join("flood.py"), script).unwrap();
    let start = "nohup setsid python3 flood.py > flood.log 2>&1 &";
    run(&admin, &project, start).await;
    let tried = eventually(RECOVERY_TIMEOUT, async || {
        std::fs::read_to_string(workspace.join("flood.log")).is_ok_and(|log| log.contains("tried"))
    });
    assert!(tried.await);
    assert!(web.peak() >= 8, "{}", web.peak());
    for _ in 0..5 {
        let said = run(&admin, &other, "curl -sS -m 30 http://web.test/").await;
        assert_eq!(said, "hello from web.test\n");
    }
}

/// What a container did first stays in the journal, whatever it does afterwards.
#[test(each(sandbox), limit = 240)]
async fn a_flood_of_refused_names_does_not_push_earlier_entries_out(runtime: &str) {
    let names = NameServer::start();
    let strict = json!({ "preset": "strict" });
    let (server, admin, project) = project_with(&names, runtime, strict).await;
    run(&admin, &project, "getent hosts first.test; true").await;
    let script = "import socket, struct\n\
                  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)\n\
                  for n in range(25000):\n\
                  \x20 name = b''.join(bytes([len(l)]) + l for l in (b'n%d' % n, b'evil' * 12, b'test')) + b'\\0'\n\
                  \x20 s.sendto(struct.pack('>HHHHHH', n & 65535, 256, 1, 0, 0, 0) + name + struct.pack('>HH', 1, 1), ('127.0.0.1', 53))\n\
                  \x20 s.recv(600)\n\
                  print('done')\n";
    std::fs::write(server.workspace(&project).join("flood.py"), script).unwrap();
    let start = "nohup setsid python3 flood.py > flood.log 2>&1 &";
    run(&admin, &project, start).await;
    let log = server.workspace(&project).join("flood.log");
    let done = eventually(Duration::from_secs(200), async || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("done"))
    });
    assert!(done.await, "{:?}", std::fs::read_to_string(&log));
    let limit = json!({ "project_id": project, "limit": 1000 });
    admin.call("network_log", limit).await.ok();
    let journal = server
        .home()
        .join("network")
        .join(format!("{project}.jsonl"));
    let text = std::fs::read_to_string(journal).unwrap();
    assert!(text.contains("first.test"), "{} bytes", text.len());
    assert!(text.len() < 2 << 20, "{} bytes", text.len());
    assert!(!log_of(&admin, &project, "denied").await.is_empty());
}
