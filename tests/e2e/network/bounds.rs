//! A container that opens as many connections as it can.

use std::time::Duration;

use serde_json::json;
use support::eventually;
use support::network::WebServer;

use super::{NameServer, loopback_address, policy_project, project_with, run};

const GATE_LIMIT: usize = 512;
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

#[test(each(sandbox), limit = 300)]
async fn ten_thousand_connections_of_one_container_disturb_no_other(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let web = WebServer::start(address, 80);
    let allowed = json!({ "allow": ["web.test"] });
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
