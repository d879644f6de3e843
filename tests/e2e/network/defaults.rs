//! The network of projects that choose none, and who may choose which.

use serde_json::{Value, json};
use support::network::{NameServer, WebServer, loopback_address};
use support::{Modern, Server, cli, server_with};

use super::{proxy_status, run};
use crate::agents::oubliette_tools::{recorder, server_with_project};

#[test(each(sandbox, docker))]
async fn a_project_that_chooses_no_network_has_policy(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let _web = WebServer::start(address, 80);
    let config = format!("{}allow = [\"{address}\"]\n", names.config());
    let server = server_with(runtime, &config).await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let devices = run(&admin, &project, "tail -n +3 /proc/net/dev | cut -d: -f1").await;
    assert_eq!(devices.trim(), "lo");
    let fetch = if runtime == "docker" {
        "wget -q -O -"
    } else {
        "curl -sS -m 30"
    };
    let said = run(&admin, &project, &format!("{fetch} http://web.test/")).await;
    assert_eq!(said, "hello from web.test\n");
    let options = admin.call("project_options", json!({})).await;
    assert_eq!(options.ok()["default_network"], "policy");
    let got = admin
        .call("project_get", json!({ "project_id": project }))
        .await;
    assert_eq!(got.ok()["network"], "policy");
    assert_eq!(got.ok()["warnings"], Value::Null);
}

#[test(each(docker_channel))]
async fn a_runtime_without_it_keeps_its_own_default_and_says_what_is_missing(runtime: &str) {
    let server = server_with(runtime, "").await;
    let admin = server.admin();
    let project = admin.project("one").await;
    run(&admin, &project, "true").await;
    let got = admin
        .call("project_get", json!({ "project_id": project }))
        .await;
    assert_eq!(got.ok()["network"], "bridge");
    let warnings = got.ok()["warnings"].to_string();
    assert!(warnings.contains("no network `policy` here"), "{warnings}");
    let options = admin.call("project_options", json!({})).await;
    assert_eq!(options.ok()["default_network"], "bridge");
    let notes = options.ok()["runtimes"][0]["notes"].to_string();
    assert!(notes.contains("no network `policy` here"), "{notes}");
    let doctor = cli(server.home(), ["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("no network `policy` here"), "{said}");
}

/// What an admin alone may choose: no token, and no agent whatever its scope.
#[test(needs(sandbox))]
async fn only_an_admin_chooses_a_network_that_no_policy_applies_to() {
    let (server, admin, agents) = server_with_project("", json!({})).await;
    let other = admin.project("other").await;
    let agent = agent_of(&server, &admin, &agents).await;
    let write = server.with_key(&admin.token("write").await);
    for network in ["host", "bridge"] {
        let create = json!({ "name": "two", "network": network });
        let update = json!({ "project_id": other, "network": network });
        for (operation, arguments) in [("project_create", create), ("project_update", update)] {
            let refused = write.call(operation, arguments.clone()).await;
            assert_eq!(refused.body["error"]["code"], -32002, "{}", refused.text);
            let refused = agent.call(operation, arguments).await;
            assert_eq!(refused.body["error"]["code"], -32002, "{}", refused.text);
            let why = "may not choose that network";
            assert!(refused.text.contains(why), "{}", refused.text);
        }
    }
    let update = json!({ "project_id": other, "network": "host" });
    admin.call("project_update", update.clone()).await.ok();
    // What is chosen already is no choice.
    write.call("project_update", update).await.ok();
    let doctor = cli(server.home(), ["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        said.contains("containers of other have the network `host`"),
        "{said}"
    );
}

/// A client with the key of an agent that has the scope `admin`.
async fn agent_of(server: &Server, admin: &Modern, project: &str) -> Modern {
    let scope = json!({ "agent_scope": "admin" });
    let keys = recorder(server, admin, project, scope).await;
    server.with_key(&keys.api_key.unwrap())
}

/// An agent could otherwise work in another project instead.
#[test(needs(sandbox))]
async fn an_agent_gives_no_project_a_wider_policy_than_its_own_has() {
    let own = json!({ "preset": "strict", "allow": ["*.a.test"], "deny": ["x.a.test"] });
    let (server, admin, agents) = server_with_project("", json!({ "network_policy": own })).await;
    let agent = agent_of(&server, &admin, &agents).await;
    // Without a choice the new project has the same.
    let created = agent
        .call("project_create", json!({ "name": "same" }))
        .await;
    let same = created.ok()["project_id"].clone();
    assert_eq!(created.ok()["network_policy"]["allow"], own["allow"]);
    assert_eq!(created.ok()["network_policy"]["deny"], own["deny"]);
    let refused_with = |reply: support::Reply, why: &str| {
        assert_eq!(reply.body["error"]["code"], -32002, "{}", reply.text);
        assert!(reply.text.contains(why), "{}", reply.text);
    };
    let wider = "wider `network_policy`";
    for policy in [
        json!({ "preset": "open" }),
        json!({ "preset": "strict", "presets": ["npm"], "deny": ["x.a.test"] }),
        json!({ "preset": "strict", "allow": ["b.test"], "deny": ["x.a.test"] }),
        json!({ "preset": "strict", "allow": ["*.a.test"] }),
    ] {
        let create = json!({ "name": "wider", "network_policy": policy });
        refused_with(agent.call("project_create", create).await, wider);
        let update = json!({ "project_id": same, "network_policy": policy });
        refused_with(agent.call("project_update", update).await, wider);
    }
    let allow = json!({ "project_id": same, "host": "b.test" });
    refused_with(agent.call("network_allow", allow).await, wider);
    let narrow = json!({ "preset": "strict", "allow": ["q.a.test:443"], "deny": ["x.a.test"] });
    let narrow = json!({ "name": "narrow", "network_policy": narrow });
    agent.call("project_create", narrow).await.ok();
    // Nor more branches to push.
    let update = json!({ "project_id": agents, "push_branches": ["a/*"] });
    admin.call("project_update", update).await.ok();
    let created = agent
        .call("project_create", json!({ "name": "branches" }))
        .await;
    assert_eq!(created.ok()["push_branches"], json!(["a/*"]));
    for branches in [json!(["*"]), json!(["a/b", "main"]), json!(["oubliette/*"])] {
        let create = json!({ "name": "more", "push_branches": branches });
        let reply = agent.call("project_create", create).await;
        refused_with(reply, "more branches to push");
        let update = json!({ "project_id": same, "push_branches": branches });
        // It has `oubliette/*` already.
        if branches != json!(["oubliette/*"]) {
            let reply = agent.call("project_update", update).await;
            refused_with(reply, "more branches to push");
        }
    }
    let fewer = json!({ "project_id": same, "push_branches": ["a/b"] });
    agent.call("project_update", fewer).await.ok();
    // A project that reaches nothing gives nothing.
    let update = json!({ "project_id": agents, "network": "none" });
    admin.call("project_update", update).await.ok();
    let created = agent
        .call("project_create", json!({ "name": "none" }))
        .await;
    assert_eq!(created.ok()["network"], "none");
    let policy = json!({ "name": "policy", "network": "policy" });
    let refused = agent.call("project_create", policy).await;
    refused_with(refused, "a wider network");
}

#[test(each(sandbox))]
async fn a_port_of_this_machine_that_an_admin_allows_is_at_the_same_address_inside(runtime: &str) {
    let names = NameServer::start();
    let web = WebServer::on_loopback();
    let config = format!("{}allow = [\"localhost:{}\"]\n", names.config(), web.port());
    let server = server_with(runtime, &config).await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let port = web.port();
    for host in ["127.0.0.1", "localhost"] {
        let line = format!("curl -4 -sS -m 30 http://{host}:{port}/");
        let said = run(&admin, &project, &line).await;
        assert_eq!(said, format!("hello from {host}:{port}\n"));
    }
    // Another port is the container's own, and nothing of this machine.
    let other = WebServer::on_loopback();
    let line = format!("curl -sS -m 10 http://127.0.0.1:{}/", other.port());
    let refused = admin.exec(&project, line).await;
    assert_eq!(refused["exit_code"], 7, "{refused}");
    let through = format!("http://127.0.0.1:{}/", other.port());
    assert_eq!(proxy_status(&admin, &project, &through).await, "403 000");
    assert_eq!(other.connections(), 0);
    let server = "python3 -m http.server 8080 >/dev/null 2>&1 & \
                  for n in $(seq 100); do curl -s -m 5 -o /dev/null http://127.0.0.1:8080/ && break; sleep 0.1; done; \
                  code=$?; kill $!; exit $code";
    run(&admin, &project, server).await;
}
