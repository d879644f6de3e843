//! Invalid input of every kind gets a clear error, and the server keeps working.

use serde_json::{Value, json};
use support::{Server, http};

#[test]
async fn wrong_names_are_answered_with_the_nearest_right_one() {
    let server = Server::start();
    let admin = server.admin();
    let unknown = admin.call("projct_create", json!({})).await;
    assert_eq!(unknown.code(), -32602);
    assert!(
        unknown.message().contains("did you mean `project_create`"),
        "{}",
        unknown.message()
    );

    for (tool, arguments, expected) in [
        (
            "project",
            json!({}),
            "missing parameter `action`; it is one of `create`",
        ),
        (
            "project",
            json!({ "action": "crate" }),
            "did you mean `create`?",
        ),
        (
            "project",
            json!({ "action": 5 }),
            "`action` must be a string",
        ),
        ("project", json!({ "action": "zzz" }), "it is one of"),
        (
            "project",
            json!({ "action": "get", "projct_id": "x" }),
            "did you mean `project_id`?",
        ),
        (
            "project",
            json!({ "action": "get", "name": "x" }),
            "unknown parameter `name`",
        ),
        ("project_create", json!({}), "missing parameter `name`"),
        ("project_create", json!({ "name": 7 }), "`name`"),
        (
            "project_create",
            json!({ "name": "x", "cpus": "many" }),
            "parameter `cpus`",
        ),
        (
            "project_create",
            json!({ "name": "x", "agent": "cladue" }),
            "did you mean `claude`?",
        ),
        (
            "project_create",
            json!({ "name": "x", "autonomy": "huge" }),
            "`medium`",
        ),
        (
            "project_create",
            json!({ "name": "x", "memory_mb": 1 }),
            "it must be 64",
        ),
        (
            "project_create",
            json!({ "name": "x", "env": { "A B": "1" } }),
            "environment variable",
        ),
        (
            "project_create",
            json!({ "name": "x", "env": { "PIN": { "value": 1 } } }),
            "`env`: the `value` of the variable `PIN` must be a string, not a number; write `{\"PIN\": {\"value\"",
        ),
        (
            "project_create",
            json!({ "name": "x", "env": { "PIN": { "secret": true } } }),
            "`env`: the variable `PIN` is an object without `value`; write `{\"PIN\": {\"value\"",
        ),
        (
            "project_create",
            json!({ "name": "x", "env": { "PIN": { "a": { "b": "c" } } } }),
            "`env`: the variable `PIN` is an object without `value`",
        ),
        (
            "project_create",
            json!({ "name": "x", "env": { "PIN": null } }),
            "`env`: the variable `PIN` is null; write `{\"PIN\": \"value\"}`",
        ),
        (
            "project_create",
            json!({ "name": "x", "env": ["PIN=1"] }),
            "parameter `env` must be an object with the variables, `{\"NAME\": \"value\"}`, not a list",
        ),
        (
            "project_create",
            json!({ "name": "x", "mcp_servers": [{ "name": "a", "command": "b", "env": { "PIN": 1 } }] }),
            "the variable `PIN` must be a string",
        ),
        (
            "project_create",
            json!({ "name": "x", "protected_paths": ["../x"] }),
            "inside",
        ),
        (
            "project_create",
            json!({ "name": "x", "protected_paths": ["/etc"] }),
            "inside",
        ),
        (
            "project_create",
            json!({ "name": "x", "protected_paths": ["*.md"] }),
            "name each file",
        ),
        (
            "project_create",
            json!({ "name": "x", "protected_paths": ["LICENSE,src"] }),
            "name each file",
        ),
        (
            "project_create",
            json!({ "name": "x", "disk_mb": 15 }),
            "at least 16, or 0",
        ),
        (
            "project_create",
            json!({ "name": "x", "mcp_servers": [{ "name": "a", "comand": "b" }] }),
            "mcp_servers",
        ),
        (
            "project_create",
            json!({ "name": "x", "mcp_servers": [{ "name": "oubliette", "command": "b" }] }),
            "not `oubliette`",
        ),
        (
            "project_create",
            json!({ "name": "x", "mcp_servers": [{ "name": "a", "command": "b", "args": vec!["x"; 1000] }] }),
            "the maximum is 100",
        ),
        (
            "project_create",
            json!({ "name": "x", "mcp_servers": [{ "name": "a", "command": "b", "args": ["x".repeat(9000)] }] }),
            "at most 8192 bytes",
        ),
        (
            "project_create",
            json!({ "name": "x", "mcp_servers": many_servers() }),
            "the maximum is 262144",
        ),
        (
            "project_create",
            json!({ "name": "x", "git_credential": "none" }),
            "unknown name",
        ),
        (
            "project_get",
            json!({ "project_id": "short" }),
            "project `short` not found",
        ),
        (
            "project_get",
            json!({ "project_id": null }),
            "missing parameter `project_id`",
        ),
        ("project_list", json!({ "limit": 0 }), "1 to 1000"),
        ("project_list", json!({ "limit": 100000 }), "1 to 1000"),
        ("project_list", json!({ "cursor": "junk" }), "not a cursor"),
        (
            "workspace_delete",
            json!({ "project_id": "x", "workspace_id": "../x" }),
            "project `x` not found",
        ),
    ] {
        let reply = admin.call(tool, arguments.clone()).await;
        assert!(
            reply.sentence().contains(expected),
            "{tool} {arguments}: {}",
            reply.sentence()
        );
    }
}

#[test]
async fn null_for_an_optional_parameter_is_absence() {
    let server = Server::start();
    let made = server
        .admin()
        .call(
            "project_create",
            json!({ "name": "x", "description": null, "env": null }),
        )
        .await;
    assert_eq!(made.ok()["description"], "");
}

#[test]
async fn hostile_names_are_refused_with_a_short_error_and_leave_nothing() {
    let server = Server::start();
    let admin = server.admin();
    let long = "n".repeat(10_000);
    let uuid = "00000000-0000-4000-8000-000000000001";
    for name in [
        "",
        "a/b",
        "..",
        "../../etc",
        "a\0b",
        "🚀",
        "a\nb",
        " a",
        uuid,
        &long,
    ] {
        let reply = admin.call("project_create", json!({ "name": name })).await;
        let sentence = reply.sentence();
        assert!(
            sentence.contains("project name") || sentence.contains("UUID"),
            "{sentence}"
        );
        assert!(sentence.len() < 400, "{name:?} is repeated in full");
    }
    assert_eq!(
        admin.call("project_list", json!({})).await.ok()["projects"],
        json!([])
    );
    let entries = std::fs::read_dir(server.home().join("projects"))
        .unwrap()
        .count();
    assert_eq!(entries, 0, "a refused project left something");
}

#[test]
async fn of_fifty_clients_that_race_for_a_name_one_wins() {
    let server = Server::start();
    let admin = server.admin();
    let racers = (0..50).map(|_| {
        let admin = admin.clone();
        tokio::spawn(async move {
            admin
                .call("project_create", json!({ "name": "prize" }))
                .await
        })
    });
    let mut wins = 0;
    for racer in racers.collect::<Vec<_>>() {
        let reply = racer.await.unwrap();
        if reply.is_error() {
            let sentence = reply.sentence();
            assert!(sentence.starts_with("project already exists"), "{sentence}");
        } else {
            wins += 1;
        }
    }
    assert_eq!(wins, 1);
    let listed = admin.call("project_list", json!({})).await;
    assert_eq!(listed.ok()["projects"].as_array().unwrap().len(), 1);
}

async fn raw(server: &Server, body: impl Into<reqwest::Body>) -> (u16, String) {
    let response = http()
        .post(server.url())
        .bearer_auth(server.admin_key())
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        .unwrap();
    (
        response.status().as_u16(),
        response.text().await.unwrap_or_default(),
    )
}

#[test]
async fn bodies_that_are_huge_deep_or_not_text_are_refused_and_the_server_keeps_working() {
    let server = Server::start();
    let (status, text) = raw(&server, vec![b' '; 20 << 20]).await;
    assert_eq!(status, 413, "{text}");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!((400..500).contains(&raw(&server, deep).await.0));
    assert!((400..500).contains(&raw(&server, vec![0xff, 0xfe, b'{']).await.0));
    assert!((400..500).contains(&raw(&server, "{\"jsonrpc\":").await.0));
    assert!((400..500).contains(&raw(&server, "").await.0));
    assert!((400..500).contains(&raw(&server, "42").await.0));

    let mut deep = json!("x");
    for _ in 0..100 {
        deep = json!({ "a": deep });
    }
    let admin = server.admin();
    let reply = admin
        .call("project_create", json!({ "name": "x", "env": deep }))
        .await;
    assert!(reply.sentence().contains("env"), "{}", reply.sentence());
    admin.call("project_list", json!({})).await.ok();
}

#[test]
async fn foreign_hosts_and_origins_are_refused() {
    let server = Server::start();
    let request = |name: &'static str, value: &'static str| {
        server
            .admin()
            .request("tools/list", json!({}))
            .header(name, value)
            .send()
    };
    assert_eq!(request("host", "evil.example").await.unwrap().status(), 403);
    assert_eq!(
        request("origin", "https://evil.example")
            .await
            .unwrap()
            .status(),
        403
    );
    assert_eq!(
        request("origin", "http://localhost:3000")
            .await
            .unwrap()
            .status(),
        200
    );
}

#[test]
async fn every_result_fits_its_schema() {
    let server = Server::start();
    let admin = server.admin();
    let id = admin.project("one").await;
    let tools = admin.tools().await;
    for (tool, arguments) in [
        ("project", json!({ "action": "get", "project_id": id })),
        ("project", json!({ "action": "list" })),
        ("project", json!({ "action": "options" })),
        ("workspace", json!({ "action": "list", "project_id": id })),
        ("token", json!({ "action": "list" })),
        ("config_limits", json!({})),
        ("audit_list", json!({})),
    ] {
        let reply = admin.call(tool, arguments).await;
        let listed = tools.iter().find(|listed| listed["name"] == tool).unwrap();
        let properties = listed["outputSchema"]["properties"].as_object().unwrap();
        let result = reply.ok().as_object().unwrap();
        let mut checked = 0;
        for (name, schema) in properties {
            let Some(value) = result.get(name) else {
                continue;
            };
            checked += 1;
            assert!(
                fits(value, schema),
                "{tool}.{name}: {value} is not {schema}"
            );
        }
        assert!(checked > 0, "{tool}: {properties:?}");
    }
}

/// Enough of JSON Schema to catch a field of the wrong type; the client SDKs check the rest.
fn fits(value: &Value, schema: &Value) -> bool {
    let is = |kind: &str| match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    schema["type"].as_str().is_some_and(is)
}

/// Servers that are within every limit, but not together.
fn many_servers() -> Value {
    let server = |n: usize| json!({ "name": format!("s{n}"), "command": "b", "args": vec!["x".repeat(8000); 10] });
    (0..10).map(server).collect()
}
