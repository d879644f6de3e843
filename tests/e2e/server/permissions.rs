//! For every scope, every operation and every project: the decision is the contract's.

use serde_json::{Value, json};
use support::{Modern, Reply, Server, ServerOptions};

/// The access that an operation needs. Repeated here from the contract, so that a mistake in the registry
/// fails a test.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Class {
    Admin,
    GlobalRead,
    GlobalWrite,
    ProjectRead,
    ProjectWrite,
    /// Settings of a project that its own tokens may not change.
    ProjectSettings,
}
use Class::{Admin, GlobalRead, GlobalWrite, ProjectRead, ProjectSettings, ProjectWrite};

const CONTRACT: &[(&str, Class)] = &[
    ("project_create", GlobalWrite),
    ("project_list", GlobalRead),
    ("project_options", GlobalRead),
    ("project_get", ProjectRead),
    ("project_update", ProjectWrite),
    ("project_delete", ProjectWrite),
    ("project_push", ProjectWrite),
    ("project_changes", ProjectRead),
    ("project_tasks", ProjectRead),
    ("container_start", ProjectWrite),
    ("container_stop", ProjectWrite),
    ("container_exec", ProjectWrite),
    ("container_logs", ProjectWrite),
    ("session_spawn", ProjectWrite),
    ("session_message", ProjectWrite),
    ("session_get", ProjectRead),
    ("session_list", ProjectRead),
    ("session_events", ProjectRead),
    ("session_interrupt", ProjectWrite),
    ("session_permit", ProjectWrite),
    ("session_end", ProjectWrite),
    ("session_cleanup", ProjectWrite),
    ("session_diff", ProjectRead),
    ("session_review", ProjectWrite),
    ("session_rewind", ProjectWrite),
    ("session_fork", ProjectWrite),
    ("workspace_list", ProjectRead),
    ("workspace_create", ProjectWrite),
    ("workspace_delete", ProjectWrite),
    ("workspace_files", ProjectRead),
    ("workspace_read", ProjectRead),
    ("workspace_write", ProjectWrite),
    ("schedule_create", ProjectWrite),
    ("schedule_list", ProjectRead),
    ("schedule_get", ProjectRead),
    ("schedule_update", ProjectWrite),
    ("schedule_delete", ProjectWrite),
    ("schedule_trigger", ProjectWrite),
    ("schedule_history", ProjectRead),
    ("token_create", Admin),
    ("token_list", Admin),
    ("token_revoke", Admin),
    ("credential_add", Admin),
    ("credential_list", Admin),
    ("credential_remove", Admin),
    ("config_limits", ProjectRead),
    ("caller_tool_response", ProjectWrite),
    ("network_check", ProjectRead),
    ("network_log", ProjectRead),
    ("network_allow", ProjectSettings),
    ("image_rebuild", GlobalWrite),
    ("audit_list", Admin),
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Decision {
    Allowed,
    Refused,
    NotFound,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Which {
    Own,
    Foreign,
    Missing,
}

/// The table of scopes, again from the contract.
fn expected(scope: &str, class: Class, which: Which) -> Decision {
    let bound = scope.starts_with("project:");
    let read_only = scope.ends_with(":ro") || scope == "read";
    let class_allowed = match class {
        Admin => scope == "admin",
        GlobalWrite | ProjectSettings => !bound && !read_only,
        GlobalRead => true,
        ProjectWrite => !read_only,
        ProjectRead => true,
    };
    let about_project = matches!(class, ProjectRead | ProjectWrite | ProjectSettings);
    match (class_allowed, about_project, which) {
        (false, _, _) => Decision::Refused,
        (true, true, Which::Missing) => Decision::NotFound,
        (true, true, Which::Foreign) if bound => Decision::NotFound,
        (true, _, _) => Decision::Allowed,
    }
}

/// The operations that name a session and nothing else.
const ABOUT_A_SESSION: [&str; 10] = [
    "session_get",
    "session_events",
    "session_interrupt",
    "session_permit",
    "session_end",
    "session_diff",
    "session_review",
    "session_rewind",
    "session_fork",
    "caller_tool_response",
];

/// The operations that name a schedule and nothing else.
const ABOUT_A_SCHEDULE: [&str; 5] = [
    "schedule_get",
    "schedule_update",
    "schedule_delete",
    "schedule_trigger",
    "schedule_history",
];

/// A schedule that never runs by itself.
fn idle_schedule(project: &str) -> Value {
    json!({
        "name": "idle", "cron_expr": "@daily", "prompt": "hi", "enabled": false,
        "targets": [{ "project_id": project }],
    })
}

/// `named` is the session or schedule that the operation is about.
fn arguments(operation: &str, project: &str, named: &str) -> Value {
    let session = named;
    match operation {
        "schedule_create" => idle_schedule(project),
        about if ABOUT_A_SCHEDULE.contains(&about) => json!({ "schedule_id": named }),
        "session_permit" => {
            json!({ "session_id": session, "request_id": "x", "decision": "deny" })
        }
        "caller_tool_response" => json!({ "session_id": session, "request_id": "x" }),
        "session_rewind" => json!({ "session_id": session, "turn": 0, "what": "files" }),
        about if ABOUT_A_SESSION.contains(&about) => json!({ "session_id": session }),
        "session_spawn" | "session_message" => json!({ "project_id": project, "prompt": "hi" }),
        "project_create" => json!({ "name": format!("made {}", unique()) }),
        "token_create" => json!({ "name": "t", "scope": "read" }),
        "credential_add" => {
            json!({ "name": "key", "kind": "anthropic", "value": "sk-ant-0123456789" })
        }
        "credential_list" => json!({}),
        "credential_remove" => json!({ "name": "none" }),
        "token_revoke" => json!({ "token_id": uuid(0) }),
        "project_tasks" => json!({ "project_id": project, "change_id": "x" }),
        "workspace_delete" => json!({ "project_id": project, "workspace_id": "default" }),
        "workspace_read" => json!({ "project_id": project, "path": "x" }),
        "workspace_write" => json!({ "project_id": project, "path": "x", "content": "" }),
        "image_rebuild" => json!({ "container_type": "base" }),
        "network_check" | "network_allow" => json!({ "project_id": project, "host": "a.invalid" }),
        "container_exec" => json!({ "project_id": project, "command": "true" }),
        "project_list" | "project_options" | "token_list" | "audit_list" => json!({}),
        _ => json!({ "project_id": project }),
    }
}

fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn uuid(n: u32) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

fn decision(reply: &Reply, project: &str, named: &str) -> Decision {
    if reply.body["error"]["code"] == -32002 {
        // The words of the contract, then the reason.
        let reason = reply
            .message()
            .strip_prefix("tool not allowed for this token scope: ");
        let reason = reason.unwrap_or_else(|| panic!("{}", reply.text));
        let names_need = ["write access", "`write` or `admin`", "`admin` token"];
        assert!(
            names_need.iter().any(|need| reason.contains(need)),
            "{reason}"
        );
        return Decision::Refused;
    }
    let not_found = [
        format!("project `{project}` not found"),
        format!("session `{named}` not found"),
        format!("schedule `{named}` not found"),
    ];
    let hidden = reply.is_error()
        && not_found
            .iter()
            .any(|start| reply.sentence().starts_with(start));
    if hidden {
        Decision::NotFound
    } else {
        Decision::Allowed
    }
}

#[test(limit = 300)]
async fn every_scope_operation_and_project_is_decided_as_in_the_contract() {
    // Permission is decided before anything is started; there need be nothing to start.
    let server = Server::start_with(ServerOptions {
        config: "runtime = \"none\"\n".to_owned(),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let foreign = admin.project("foreign").await;
    for scope in [
        "admin",
        "admin:ro",
        "read",
        "write",
        "project",
        "project:ro",
    ] {
        for (operation, class) in CONTRACT {
            for which in [Which::Own, Which::Foreign, Which::Missing] {
                // A project of its own for each case: some cases delete it.
                let own = admin.project(&format!("own {}", unique())).await;
                let scope = match scope {
                    "project" => format!("project:{own}"),
                    "project:ro" => format!("project:{own}:ro"),
                    other => other.to_owned(),
                };
                let target = match which {
                    Which::Own => own.clone(),
                    Which::Foreign if *operation == "project_delete" => {
                        admin.project(&format!("victim {}", unique())).await
                    }
                    Which::Foreign => foreign.clone(),
                    Which::Missing => uuid(404),
                };
                let caller = server.with_key(&admin.token(&scope).await);
                let normal = if scope == "admin:ro" { "read" } else { &scope };
                let expected = expected(normal, *class, which);
                let exists = which != Which::Missing;
                let named = match *operation {
                    // Only the token that created a session answers its requests.
                    "caller_tool_response" if exists && expected == Decision::Allowed => {
                        let new = json!({ "new_session": true });
                        caller.spawn_with(&target, "hi", new).await
                    }
                    operation if exists && ABOUT_A_SESSION.contains(&operation) => {
                        admin.spawn(&target, "hi").await
                    }
                    operation if exists && ABOUT_A_SCHEDULE.contains(&operation) => {
                        let made = admin.call("schedule_create", idle_schedule(&target)).await;
                        made.ok()["schedule_id"].as_str().unwrap().to_owned()
                    }
                    operation if ABOUT_A_SCHEDULE.contains(&operation) => uuid(404),
                    _ => format!("gogol_{}", "0".repeat(32)),
                };
                let parameters = arguments(operation, &target, &named);
                let reply = caller.call(operation, parameters).await;
                assert_eq!(
                    decision(&reply, &target, &named),
                    expected,
                    "{scope} {operation} {which:?}: {}",
                    reply.text
                );
            }
        }
    }
}

#[test]
async fn the_contract_lists_every_operation() {
    let mut listed: Vec<&str> = CONTRACT.iter().map(|(name, _)| *name).collect();
    let mut registered: Vec<&str> = oubliette_engine::operations::all()
        .iter()
        .map(|entry| entry.name)
        .collect();
    listed.sort_unstable();
    registered.sort_unstable();
    assert_eq!(listed, registered);
}

/// Every name a list of tools offers, with the action that makes it an operation.
fn offered(tools: &[Value]) -> Vec<(String, Option<String>)> {
    let mut names = Vec::new();
    for tool in tools {
        let name = tool["name"].as_str().unwrap().to_owned();
        match tool["inputSchema"]["properties"]["action"]["enum"].as_array() {
            Some(verbs) => names.extend(
                verbs
                    .iter()
                    .map(|verb| (name.clone(), Some(verb.as_str().unwrap().to_owned()))),
            ),
            None => names.push((name, None)),
        }
    }
    names
}

#[test]
async fn tool_lists_contain_exactly_the_operations_that_the_token_may_call() {
    let server = Server::start();
    let admin = server.admin();
    let own = admin.project("own").await;
    for scope in [
        "admin",
        "read",
        "write",
        &format!("project:{own}"),
        &format!("project:{own}:ro"),
    ] {
        let caller = server.with_key(&admin.token(scope).await);
        let offered = offered(&caller.tools().await);
        for (operation, _) in CONTRACT {
            let (noun, verb) = operation.split_once('_').unwrap();
            let listed = offered.iter().any(|(name, action)| {
                name == operation || (name == noun && action.as_deref() == Some(verb))
            });
            // An unknown parameter: a call that is allowed fails because of it.
            let reply = caller
                .call(operation, json!({ "unknown_parameter": 1 }))
                .await;
            let refused = reply.body["error"]["code"] == -32002;
            assert_eq!(listed, !refused, "{scope} {operation}: {}", reply.text);
        }
    }
}

#[test]
async fn a_foreign_project_looks_like_a_missing_one_to_a_project_token() {
    let server = Server::start();
    let admin = server.admin();
    let (own, foreign) = (admin.project("own").await, admin.project("foreign").await);
    let caller = server.with_key(&admin.token(&format!("project:{own}")).await);
    let missing = uuid(404);
    for operation in [
        "project_get",
        "project_update",
        "project_delete",
        "workspace_list",
    ] {
        let foreign_reply = caller
            .call(operation, json!({ "project_id": foreign }))
            .await;
        let missing_reply = caller
            .call(operation, json!({ "project_id": missing }))
            .await;
        let neutral = |reply: &Reply, id: &str| reply.text.replace(id, "ID");
        assert_eq!(
            neutral(&foreign_reply, &foreign),
            neutral(&missing_reply, &missing),
            "{operation}"
        );
    }
    let listed = caller.call("project_list", json!({})).await;
    let listed = listed.ok()["projects"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["project_id"], json!(own));
    let limits = caller.call("config_limits", json!({})).await;
    assert_eq!(limits.ok()["projects"].as_array().unwrap().len(), 1);
    // A cursor made for the foreign project leads nowhere.
    let beyond = caller
        .call("project_list", json!({ "cursor": "projects:a" }))
        .await;
    assert!(!beyond.text.contains("foreign"), "{}", beyond.text);
    admin
        .call("project_get", json!({ "project_id": foreign }))
        .await
        .ok();
}

#[test]
async fn a_project_token_changes_settings_but_not_limits_network_scope_or_name() {
    let server = Server::start();
    let admin = server.admin();
    let own = admin.project("own").await;
    let caller = server.with_key(&admin.token(&format!("project:{own}")).await);
    let update = |caller: &Modern, field: &str, value: Value| {
        let mut parameters = json!({ "project_id": own });
        parameters[field] = value;
        let caller = caller.clone();
        async move { caller.call("project_update", parameters).await }
    };
    update(&caller, "description", json!("fine")).await.ok();
    for (field, value) in [
        ("memory_mb", json!(128)),
        ("cpus", json!(1.0)),
        ("max_processes", json!(100)),
        ("disk_mb", json!(100)),
        ("network", json!("none")),
        ("agent_scope", json!("read")),
        ("max_recursion_depth", json!(9)),
        ("max_agents_per_session", json!(9)),
        ("max_cost_usd", json!(9)),
        ("name", json!("foreign")),
    ] {
        let refused = update(&caller, field, value.clone()).await;
        assert_eq!(refused.code(), -32002, "{field}: {}", refused.text);
        assert_eq!(refused.body["error"]["data"]["parameter"], field);
        assert_eq!(
            refused.message(),
            format!(
                "tool not allowed for this token scope: this token (`project:{own}`) may not set \
                 `{field}`; a `write` or `admin` token can"
            )
        );
        update(&admin, field, value).await.ok();
    }
    let writer = server.with_key(&admin.token("write").await);
    let wider = update(&writer, "agent_scope", json!("admin")).await;
    assert!(wider.sentence().contains("wider"), "{}", wider.sentence());
}
