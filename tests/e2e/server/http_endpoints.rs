//! The endpoints besides `/mcp`, and the annotations of tools.

use serde_json::json;
use support::{Server, ServerOptions, http};

#[test]
async fn health_is_public_and_metrics_are_for_admins() {
    let server = Server::start();
    let admin = server.admin();
    admin.project("one").await;
    let get = |path: &str, key: Option<String>| {
        let request = http().get(format!("{}{path}", server.base()));
        async move {
            let request = match key {
                Some(key) => request.bearer_auth(key),
                None => request,
            };
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        }
    };
    let (status, health) = get("/healthz", None).await;
    assert_eq!(status, 200);
    assert!(health.contains("\"ok\""), "{health}");
    assert_eq!(get("/metrics", None).await.0, 401);
    let reader = admin.token("read").await;
    assert_eq!(get("/metrics", Some(reader)).await.0, 403);
    let (status, metrics) = get("/metrics", Some(server.admin_key())).await;
    assert_eq!(status, 200);
    let counted = "oubliette_calls_total{operation=\"project_create\",outcome=\"ok\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    assert!(metrics.contains("oubliette_projects 1"), "{metrics}");
    for gauge in [
        "oubliette_containers 0",
        "oubliette_pending_caller_requests 0",
        "oubliette_schedules 0",
        "oubliette_cost_usd 0",
        "# TYPE oubliette_sessions gauge",
    ] {
        assert!(metrics.contains(gauge), "{gauge}: {metrics}");
    }
    assert!(
        metrics.contains("oubliette_auth_failures_total 1"),
        "{metrics}"
    );
    assert_eq!(get("/nowhere", None).await.0, 404);
    assert!(get("/", None).await.1.contains("/mcp"));
}

#[test(needs(sandbox))]
async fn a_stopped_container_is_not_counted_as_running() {
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = admin.project("one").await;
    let metrics = async || {
        let request = http().get(format!("{}/metrics", server.base()));
        let response = request.bearer_auth(server.admin_key()).send().await;
        response.unwrap().text().await.unwrap()
    };
    let exec = json!({ "project_id": project, "command": "true" });
    admin.call("container_exec", exec).await.ok();
    let running = metrics().await;
    assert!(running.contains("oubliette_containers 1\n"), "{running}");
    let stop = json!({ "project_id": project });
    admin.call("container_stop", stop).await.ok();
    let stopped = metrics().await;
    assert!(stopped.contains("oubliette_containers 0\n"), "{stopped}");
}

#[test]
async fn tool_annotations_match_the_operations_a_token_may_call() {
    let server = Server::start();
    let tools = server.admin().tools().await;
    let annotations =
        |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap()["annotations"].clone();
    assert_eq!(annotations("config_limits")["readOnlyHint"], json!(true));
    assert_eq!(annotations("project")["destructiveHint"], json!(true));
    let container = annotations("container");
    assert_eq!(
        (&container["idempotentHint"], &container["openWorldHint"]),
        (&json!(false), &json!(true))
    );
    let reader = server.with_key(&server.admin().token("read").await);
    let tools = reader.tools().await;
    let project = tools.iter().find(|tool| tool["name"] == "project").unwrap();
    assert_eq!(project["annotations"]["readOnlyHint"], json!(true));
    let verbs = &project["inputSchema"]["properties"]["action"]["enum"];
    assert_eq!(verbs, &json!(["list", "get", "options"]));
    assert!(
        tools.iter().all(|tool| tool["name"] != "token"),
        "a reader sees no token tool"
    );
}
