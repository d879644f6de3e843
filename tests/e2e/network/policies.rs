//! Who may change what a project's containers may reach, and what is told about it.

use serde_json::json;
use support::network::WebServer;

use super::{
    NameServer, log_of, loopback_address, policy_project, project_with, proxy_status, run,
};

#[test(each(sandbox))]
async fn project_tokens_cannot_widen_a_policy_and_only_admins_reach_private_addresses(
    runtime: &str,
) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let _web = WebServer::start(address, 80);
    let strict = json!({ "preset": "strict" });
    let (server, admin, project) = project_with(&names, runtime, strict).await;
    let own = server.with_key(&admin.token(&format!("project:{project}")).await);
    let allow = json!({ "project_id": project, "host": "web.test" });
    let update = json!({ "project_id": project, "network_policy": { "preset": "open" } });
    let open = json!({ "project_id": project, "network": "host" });
    for (operation, arguments) in [
        ("network_allow", &allow),
        ("project_update", &update),
        ("project_update", &open),
    ] {
        let refused = own.call(operation, arguments.clone()).await;
        assert_eq!(refused.body["error"]["code"], -32002, "{}", refused.text);
    }
    let own_tools = own.tools().await;
    let network = own_tools
        .iter()
        .find(|tool| tool["name"] == "network")
        .unwrap();
    let actions = &network["inputSchema"]["properties"]["action"]["enum"];
    assert_eq!(actions, &json!(["check", "log"]));
    let check = json!({ "project_id": project, "host": "web.test", "port": 80 });
    let checked = own.call("network_check", check.clone()).await;
    assert_eq!(checked.ok()["decision"], "deny");

    // A `write` token may allow the name, which then leads only to public addresses.
    let write = server.with_key(&admin.token("write").await);
    write.call("network_allow", allow.clone()).await.ok();
    let checked = own.call("network_check", check.clone()).await;
    assert_eq!(checked.ok()["decision"], "deny");
    let rule = checked.ok()["rule"].as_str().unwrap();
    assert!(rule.contains("loopback"), "{rule}");
    assert_eq!(
        proxy_status(&admin, &project, "http://web.test/").await,
        "403 000"
    );

    // Nor does a name that an admin allows lead to this machine: its DNS would choose what of it.
    admin.call("network_allow", allow).await.ok();
    let checked = own.call("network_check", check.clone()).await;
    assert_eq!(checked.ok()["decision"], "deny");
    assert_eq!(
        proxy_status(&admin, &project, "http://web.test/").await,
        "403 000"
    );

    // The admin's rule for the address holds at once, also for a container that runs.
    let by_address = json!({ "project_id": project, "host": address });
    admin.call("network_allow", by_address).await.ok();
    let checked = own.call("network_check", check).await;
    assert_eq!(
        (&checked.ok()["decision"], &checked.ok()["rule"]),
        (&json!("allow"), &json!("allow web.test"))
    );
    assert_eq!(
        run(&admin, &project, "curl -sS -m 30 http://web.test/").await,
        "hello from web.test\n"
    );

    // A `write` token that sets the same list keeps the admin's entry, and adds none of its own kind.
    let keep = json!({ "project_id": project, "network_policy": { "allow": ["web.test", address, "10.0.0.1"] } });
    write.call("project_update", keep).await.ok();
    assert_eq!(
        proxy_status(&admin, &project, "http://web.test/").await,
        "200 000"
    );
    assert_eq!(
        proxy_status(&admin, &project, "http://10.0.0.1/").await,
        "403 000"
    );
}

#[test]
async fn policies_that_cannot_be_used_are_refused_with_a_sentence() {
    let server = support::Server::start();
    let admin = server.admin();
    for (policy, expected) in [
        (json!({ "allow": ["*"] }), "preset `open`"),
        (json!({ "allow": ["a b"] }), "is not a host"),
        (json!({ "deny": ["a:0"] }), "valid port"),
        (json!({ "preset": "closed" }), "closed"),
        (json!({ "allow": vec!["a.org"; 201] }), "maximum is 200"),
    ] {
        let made = json!({ "name": "one", "network": "policy", "network_policy": policy });
        let refused = admin.call("project_create", made).await;
        assert!(refused.is_error(), "{}", refused.text);
        assert!(
            refused.sentence().contains(expected),
            "{}",
            refused.sentence()
        );
    }
}

#[test(each(docker_channel))]
async fn a_runtime_without_the_network_says_so(runtime: &str) {
    let server = support::server_with(runtime, "").await;
    let admin = server.admin();
    let project = policy_project(&admin, "one", json!({})).await;
    let start = json!({ "project_id": project });
    let refused = admin.call("container_start", start).await;
    assert!(refused.is_error());
    assert!(
        refused.sentence().contains("docker.channel"),
        "{}",
        refused.sentence()
    );
    let options = admin.call("project_options", json!({})).await;
    assert_eq!(options.ok()["runtimes"][0]["networks"]["policy"], false);
}

#[test(each(sandbox))]
async fn a_denied_host_is_once_in_the_log_of_the_session(runtime: &str) {
    let names = NameServer::start();
    let strict = json!({ "preset": "strict" });
    let (_server, admin, project) = project_with(&names, runtime, strict).await;
    let prompt = "/sh for n in $(seq 50); do curl -s -m 5 http://evil.test/; done; true";
    let session = admin.spawn(&project, prompt).await;
    admin.turn(&session, 1).await;
    let log = admin.log(&session).await;
    let denied: Vec<_> = log
        .iter()
        .filter(|event| event["type"] == "network_denied")
        .collect();
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert_eq!(denied[0]["host"], "evil.test");
    assert_eq!(denied[0]["port"], 80);
    assert!(denied[0]["reason"].as_str().unwrap().contains("strict"));
    let only = json!({ "project_id": project, "session_id": session, "limit": 5 });
    let entries = admin.call("network_log", only).await;
    assert_eq!(entries.ok()["entries"].as_array().unwrap().len(), 5);
}

#[test(each(sandbox))]
async fn the_configuration_chooses_the_network_of_projects_that_choose_none(runtime: &str) {
    let names = NameServer::start();
    let config = format!(
        "{}default = \"policy\"\npreset = \"strict\"\n",
        names.config()
    );
    let server = support::server_with(runtime, &config).await;
    let admin = server.admin();
    let project = admin.project("one").await;
    let devices = run(&admin, &project, "tail -n +3 /proc/net/dev | cut -d: -f1").await;
    assert_eq!(devices.trim(), "lo");
    assert_eq!(
        proxy_status(&admin, &project, "http://evil.test/").await,
        "403 000"
    );
}

#[test(each(sandbox))]
async fn a_narrowed_policy_ends_open_connections_that_it_does_not_allow(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    names.set("other.test", address);
    let web = WebServer::start(address, 80);
    let wide = json!({ "allow": ["web.test", "other.test", address] });
    let (server, admin, project) = project_with(&names, runtime, wide).await;
    let hold = |name: &str| {
        format!("(curl -sS -m 100 http://{name}/hold; echo $? > {name}) >/dev/null 2>&1 &")
    };
    for name in ["web.test", "other.test"] {
        run(&admin, &project, &hold(name)).await;
    }
    let timeout = std::time::Duration::from_secs(60);
    assert!(support::eventually(timeout, async || web.connections() == 2).await);
    let narrow = json!({ "preset": "strict", "allow": ["web.test", address] });
    let narrow = json!({ "project_id": project, "network_policy": narrow });
    admin.call("project_update", narrow).await.ok();
    let ended = |name: &str| server.workspace(&project).join(name).exists();
    assert!(support::eventually(timeout, async || ended("other.test")).await);
    assert!(!ended("web.test"));
    let denied = log_of(&admin, &project, "denied").await;
    assert_eq!(denied[0]["host"], "other.test", "{denied:?}");
}

/// Whichever of two updates is stored last is what the gate has.
#[test(each(sandbox), limit = 240)]
async fn updates_at_the_same_time_reach_the_gate_in_their_order(runtime: &str) {
    let (names, address) = (NameServer::start(), loopback_address());
    names.set("web.test", address);
    let _web = WebServer::start(address, 80);
    let open = json!({ "preset": "open", "allow": [address] });
    let strict = json!({ "preset": "strict", "allow": [address] });
    let (_server, admin, project) = project_with(&names, runtime, open.clone()).await;
    run(&admin, &project, "true").await;
    for round in 0..12 {
        let update = async |policy: &serde_json::Value| {
            let update = json!({ "project_id": project, "network_policy": policy });
            admin.call("project_update", update).await.ok();
        };
        tokio::join!(
            update(&open),
            update(&strict),
            update(&open),
            update(&strict)
        );
        let got = json!({ "project_id": project });
        let got = admin.call("project_get", got).await;
        let expected = match got.ok()["network_policy"]["preset"].as_str() {
            Some("open") => "200 000",
            _ => "403 000",
        };
        let status = proxy_status(&admin, &project, "http://web.test/").await;
        assert_eq!(status, expected, "round {round}");
    }
}
