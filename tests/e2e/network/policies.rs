//! Who may change what a project's containers may reach, and what is told about it.

use serde_json::json;
use support::network::WebServer;

use super::{NameServer, loopback_address, policy_project, project_with, proxy_status, run};

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

    // The admin's rule holds at once, also for a container that runs.
    admin.call("network_allow", allow).await.ok();
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
    let keep =
        json!({ "project_id": project, "network_policy": { "allow": ["web.test", "10.0.0.1"] } });
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
        (json!({ "ask": true }), "`ask: true` is not supported yet"),
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
