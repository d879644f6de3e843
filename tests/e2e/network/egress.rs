//! Programs that know a proxy and programs that do not reach what is allowed.

use serde_json::json;
use support::network::{WebServer, start_tls_server};
use support::{RunAs, Server, ServerOptions};

use super::{NO_PROXY, NameServer, log_of, loopback_address, policy_project, project_with, run};

#[test(each(sandbox))]
async fn programs_reach_a_host_with_and_without_a_proxy(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let _web = WebServer::start(address, 80);
    let allowed = json!({ "preset": "strict", "allow": ["web.test", address] });
    let (_server, admin, project) = project_with(&names, runtime, allowed).await;
    for line in [
        "curl -sS -m 30 http://web.test/",
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://web.test/\", timeout=30).read().decode())'",
    ] {
        for prefix in ["", NO_PROXY] {
            let said = run(&admin, &project, &format!("{prefix} {line}")).await;
            assert_eq!(said.trim(), "hello from web.test", "{prefix} {line}");
        }
    }
    let node = format!(
        "{NO_PROXY} node -e 'fetch(\"http://web.test/\").then(r => r.text()).then(t => console.log(t))'"
    );
    assert_eq!(
        run(&admin, &project, &node).await.trim(),
        "hello from web.test"
    );
    let opened = log_of(&admin, &project, "opened").await;
    assert_eq!(opened.len(), 5);
    for way in ["name", "proxy"] {
        assert!(opened.iter().any(|entry| entry["way"] == way), "{opened:?}");
    }
    assert_eq!(opened[0]["rule"], "allow web.test");
    let closed = log_of(&admin, &project, "closed").await;
    assert!(
        closed[0]["received_bytes"].as_u64().unwrap() > 50,
        "{closed:?}"
    );
}

#[test(each(docker))]
async fn programs_in_docker_reach_a_host_with_and_without_a_proxy(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    names.set("private.test", loopback_address());
    let _web = WebServer::start(address, 80);
    let allowed = json!({ "allow": ["web.test", address] });
    let (_server, admin, project) = project_with(&names, runtime, allowed).await;
    for prefix in ["", NO_PROXY] {
        let line = format!("{prefix} wget -q -O - http://web.test/");
        let said = run(&admin, &project, &line).await;
        assert_eq!(said.trim(), "hello from web.test", "{prefix}");
        let refused = format!("{prefix} wget -q -O - http://private.test/");
        let refused = admin.exec(&project, refused).await;
        assert_ne!(refused["exit_code"], 0, "{refused}");
    }
    let devices = run(&admin, &project, "tail -n +3 /proc/net/dev | cut -d: -f1").await;
    assert_eq!(devices.trim(), "lo");
    assert_eq!(log_of(&admin, &project, "denied").await.len(), 2);
}

#[test(each(sandbox))]
async fn a_rule_with_a_port_makes_that_port_reachable_without_a_proxy(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let _web = WebServer::start(address, 8081);
    let own = format!("{address}:8081");
    let allowed = json!({ "preset": "strict", "allow": ["web.test:8081", own] });
    let (_server, admin, project) = project_with(&names, runtime, allowed).await;
    let line = format!("{NO_PROXY} curl -sS -m 30 http://web.test:8081/");
    let said = run(&admin, &project, &line).await;
    assert_eq!(said.trim(), "hello from web.test:8081");
    // Others stay free for servers of the container.
    let server = "python3 -m http.server 8080 >/dev/null 2>&1 & sleep 1; curl -sS -m 10 -o /dev/null \
                  http://127.0.0.1:8080/; code=$?; kill $!; exit $code";
    run(&admin, &project, server).await;
}

#[test(each(sandbox))]
async fn tls_is_for_the_server_that_was_asked_for(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    names.set("other.test", address);
    let allowed = json!({ "allow": ["web.test", address] });
    let (server, admin, project) = project_with(&names, runtime, allowed).await;
    start_tls_server(address, "web.test", &server.workspace(&project));
    for prefix in ["", NO_PROXY] {
        let line = format!("{prefix} curl -sS -m 30 --cacert cert.pem https://web.test/");
        let said = run(&admin, &project, &line).await;
        assert_eq!(said.trim(), "hello from web.test", "{prefix}");
        // The connection is for one name, and TLS for another.
        for names in [
            "--connect-to other.test:443:web.test:443 https://other.test/",
            // Without a name: to the same address.
            "--connect-to 127.9.9.9:443:web.test:443 https://127.9.9.9/",
        ] {
            let before = log_of(&admin, &project, "denied").await.len();
            let line = format!("{prefix} curl -sS -k -m 30 --noproxy '' {names}");
            let refused = admin.exec(&project, line).await;
            assert_ne!(refused["exit_code"], 0, "{refused}");
            let denied = log_of(&admin, &project, "denied").await;
            assert_eq!(denied.len(), before + 1, "{names} {refused}");
            let rule = denied[0]["rule"].as_str().unwrap();
            assert!(rule.starts_with("the TLS client names"), "{rule}");
        }
    }
}

/// Without root, the launcher makes the route in the sandbox's own user namespace.
#[test(needs(root, sandbox))]
async fn programs_reach_a_host_where_the_server_is_not_root() {
    const USER: u32 = 54_322;
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let _web = WebServer::start(address, 80);
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{}", names.config()),
        run_as: Some(RunAs {
            uid: USER,
            gid: USER,
            group: USER,
        }),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = policy_project(&admin, "one", json!({ "allow": ["web.test", address] })).await;
    for prefix in ["", NO_PROXY] {
        let line = format!("{prefix} curl -sS -m 30 http://web.test/");
        let said = run(&admin, &project, &line).await;
        assert_eq!(said.trim(), "hello from web.test", "{prefix}");
    }
    let found = run(&admin, &project, "getent hosts web.test").await;
    assert!(found.starts_with("198.1"), "{found}");
}
