//! Oubliette's own tools from inside containers: which an agent finds, with which key, and what it may
//! not do with any.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::relay::{AgentKeys, RECORDER_CONFIG, keys_of_session};
use support::{Modern, Relay, Server, ServerOptions};

pub(crate) async fn server_with_project(config: &str, settings: Value) -> (Server, Modern, String) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{config}\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let project = project(&admin, "one", settings).await;
    (server, admin, project)
}

pub(crate) async fn project(admin: &Modern, name: &str, mut settings: Value) -> String {
    settings["name"] = json!(name);
    settings["init_git"] = json!(false);
    let made = admin.call("project_create", settings).await;
    made.ok()["project_id"].as_str().unwrap().to_owned()
}

/// Sees that the container of a project runs, so that its relay can be dialled.
async fn container(admin: &Modern, project: &str) {
    let start = json!({ "project_id": project });
    admin.call("container_start", start).await.ok();
}

async fn discover(relay: &mut Relay, key: &str) -> BTreeSet<String> {
    let reply = relay
        .request("oubliette_tools", json!({ "api_key": key }))
        .await;
    let tools = reply["result"]["tools"].as_array();
    let tools = tools.unwrap_or_else(|| panic!("{reply}"));
    let name = |tool: &Value| {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert!(tool["description"].is_string());
        tool["name"].as_str().unwrap().to_owned()
    };
    tools.iter().map(name).collect()
}

pub(crate) async fn call(relay: &mut Relay, key: &str, tool: &str, arguments: Value) -> Value {
    let params = json!({ "api_key": key, "tool": tool, "arguments": arguments });
    relay.request("oubliette_call_tool", params).await
}

/// Has the demo agent run a prompt in a new session; the session and the agent's text.
pub(crate) async fn agent(
    admin: &Modern,
    project: &str,
    prompt: &str,
    more: Value,
) -> (String, String) {
    let mut more = more;
    more["new_session"] = json!(true);
    let session = admin.spawn_with(project, prompt, more).await;
    let completion = admin.turn(&session, 1).await;
    assert!(completion["error"].is_null(), "{completion}");
    (session, completion["text"].as_str().unwrap().to_owned())
}

/// Starts a session; the keys that its agent recorded.
pub(crate) async fn recorder(
    server: &Server,
    admin: &Modern,
    project: &str,
    mut more: Value,
) -> AgentKeys {
    more["agent"] = json!("recorder");
    let (session, _) = agent(admin, project, "/say hello", more).await;
    keys_of_session(server, project, &session)
}

pub(crate) fn code(reply: &Value) -> i64 {
    let code = reply["error"]["code"].as_i64();
    code.unwrap_or_else(|| panic!("no error: {reply}"))
}

#[test(needs(sandbox))]
async fn valid_admin_api_key_discovers_all_tools() {
    let (server, admin, project) = server_with_project("", json!({})).await;
    container(&admin, &project).await;
    let mut relay = Relay::connect(&server, &project).await;
    let found = discover(&mut relay, &server.admin_key()).await;
    for name in [
        "project",
        "project_create",
        "project_list",
        "session",
        "session_spawn",
        "session_message",
        "token",
        "token_create",
        "token_list",
        "token_revoke",
        "container_exec",
        "workspace_list",
        "image_rebuild",
        "config_limits",
        "audit_list",
    ] {
        assert!(found.contains(name), "{name}: {found:?}");
    }
    assert!(found.iter().all(|name| !name.starts_with("oubliette_")));

    // The agent sees them with their prefix, under both kinds of names.
    let key = server.admin_key();
    let change = json!({ "project_id": project, "env": { "OUBLIETTE_API_KEY": key } });
    admin.call("project_update", change).await.ok();
    let (_, text) = agent(&admin, &project, "what can you do?", json!({})).await;
    for name in ["oubliette_project", "oubliette_token"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    let (_, text) = agent(&admin, &project, "/tool oubliette_token_list {}", json!({})).await;
    assert!(text.contains("tokens"), "{text}");
}

#[test(needs(sandbox))]
async fn valid_read_only_api_key_discovers_limited_tools() {
    let (server, admin, project) = server_with_project("", json!({})).await;
    container(&admin, &project).await;
    let mut relay = Relay::connect(&server, &project).await;
    let mut lists = Vec::new();
    for scope in ["read", "admin:ro", &format!("project:{project}:ro")] {
        let key = admin.token(scope).await;
        let found = discover(&mut relay, &key).await;
        for name in [
            "project_list",
            "project_get",
            "session_list",
            "session_events",
        ] {
            assert!(found.contains(name), "{scope} {name}");
        }
        for name in [
            "project_create",
            "session_spawn",
            "token",
            "token_list",
            "container_exec",
        ] {
            assert!(!found.contains(name), "{scope} {name}");
        }
        lists.push(found);
    }
    assert_eq!(lists[0], lists[1]);
    let key = admin.token("read").await;
    let refused = call(&mut relay, &key, "project_create", json!({ "name": "x" })).await;
    assert_eq!(code(&refused), -32002, "{refused}");
    assert_eq!(
        refused["error"]["message"],
        "tool not allowed for this token scope: `oubliette_project_create` needs write access; this token \
         (`read`) may only read"
    );
}

#[test(needs(sandbox))]
async fn invalid_api_key_fails_discovery() {
    let (server, admin, project) = server_with_project("", json!({})).await;
    let wrong = format!("oub_{}", "x".repeat(43));
    let change = json!({ "project_id": project, "env": { "OUBLIETTE_API_KEY": wrong } });
    admin.call("project_update", change).await.ok();
    container(&admin, &project).await;
    let mut relay = Relay::connect(&server, &project).await;
    for key in [wrong.as_str(), "", "nonsense"] {
        let reply = relay
            .request("oubliette_tools", json!({ "api_key": key }))
            .await;
        assert_eq!(code(&reply), -32001, "{reply}");
        assert_eq!(reply["error"]["message"], "invalid or expired API key");
    }
    let reply = relay.request("oubliette_tools", json!({})).await;
    assert_eq!(code(&reply), -32602, "{reply}");
    // The client works without them.
    let (_, text) = agent(&admin, &project, "what can you do?", json!({})).await;
    assert!(text.contains("session_message"), "{text}");
    assert!(!text.contains("oubliette_project"), "{text}");
    let list = "/tool oubliette/oubliette_project_list {}";
    let (_, text) = agent(&admin, &project, list, json!({})).await;
    assert!(text.contains("invalid or expired API key"), "{text}");
}

#[test(needs(sandbox))]
async fn droid_calls_project_list_with_valid_key() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let key = admin.token("read").await;
    let env = json!({ "env": { "OUBLIETTE_API_KEY": key } });
    let two = project(&admin, "two", env).await;
    for prompt in [
        "/tool oubliette_project_list {}",
        "/tool oubliette_project {\"action\": \"list\"}",
    ] {
        let (_, text) = agent(&admin, &two, prompt, json!({})).await;
        let result: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        let names: Vec<&Value> = result["projects"].as_array().unwrap().iter().collect();
        assert_eq!(names.len(), 2, "{result}");
    }
    // The log has the token, the container and no key.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let listed = admin
            .call("audit_list", json!({ "operation": "project_list" }))
            .await;
        assert!(!listed.text.contains(&key));
        let entries = listed.ok()["entries"].as_array().unwrap().clone();
        let container = format!("container:{}", two.replace('-', ""));
        let from_inside = entries
            .iter()
            .filter(|entry| entry["address"] == *container);
        if from_inside
            .filter(|entry| entry["token_id"].is_string())
            .count()
            >= 2
        {
            break;
        }
        assert!(Instant::now() < deadline, "{entries:#?}");
    }
    drop(server);
}

#[test(needs(sandbox))]
async fn droid_calls_project_create_with_write_key() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let key = admin.token("write").await;
    let env = json!({ "env": { "OUBLIETTE_API_KEY": key } });
    let two = project(&admin, "two", env).await;
    let create = "/tool oubliette_project_create {\"name\": \"test-project\"}";
    let (_, text) = agent(&admin, &two, create, json!({})).await;
    let result: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    assert_eq!(result["name"], "test-project");
    let got = json!({ "project_id": result["id"] });
    assert_eq!(
        admin.call("project_get", got).await.ok()["name"],
        "test-project"
    );
    // A second one is an error that the agent can read.
    let (_, text) = agent(&admin, &two, create, json!({})).await;
    assert!(text.contains("project already exists"), "{text}");
    let mut relay = Relay::connect(&server, &two).await;
    let taken = call(
        &mut relay,
        &key,
        "project_create",
        json!({ "name": "test-project" }),
    )
    .await;
    assert_eq!(taken["result"]["isError"], true);
    let text = taken["result"]["content"][0]["text"].as_str().unwrap();
    assert!(
        text.starts_with("project already exists: `test-project` has the id "),
        "{text}"
    );
    let made = call(
        &mut relay,
        &key,
        "project",
        json!({ "action": "create", "name": "third" }),
    )
    .await;
    let result = &made["result"];
    assert_eq!(result["isError"], false);
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text, result["structuredContent"]);
    let unknown = call(&mut relay, &key, "project_creat", json!({})).await;
    assert_eq!(code(&unknown), -32602);
    assert!(unknown.to_string().contains("project_create"), "{unknown}");
}

#[test(needs(sandbox))]
async fn droid_calls_token_create_with_insufficient_scope() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let key = admin.token("write").await;
    let env = json!({ "env": { "OUBLIETTE_API_KEY": key } });
    let two = project(&admin, "two", env).await;
    // It is not listed; an agent that calls it all the same is refused.
    let create = "/tool oubliette/oubliette_token_create {\"name\": \"x\", \"scope\": \"admin\"}";
    let (_, text) = agent(&admin, &two, create, json!({})).await;
    assert_eq!(
        text,
        "tool not allowed for this token scope: `oubliette_token_create` needs an `admin` token; the scope of \
         this token is `write`"
    );
    let tokens = admin.call("token_list", json!({})).await;
    assert_eq!(tokens.ok()["tokens"].as_array().unwrap().len(), 2);
    drop(server);
}

#[test(needs(sandbox))]
async fn tool_call_with_expired_key_fails() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let made = admin
        .call("token_create", json!({ "name": "x", "scope": "read" }))
        .await;
    let (key, id) = (made.ok()["key"].clone(), made.ok()["token_id"].clone());
    let env = json!({ "env": { "OUBLIETTE_API_KEY": key } });
    let two = project(&admin, "two", env).await;
    let list = "/tool oubliette_project_list {}";
    let (session, text) = agent(&admin, &two, list, json!({})).await;
    assert!(text.contains("projects"), "{text}");
    admin
        .call("token_revoke", json!({ "token_id": id }))
        .await
        .ok();
    // The same agent and client as before: nothing about the key was remembered.
    admin.message(&session, list).await;
    let completion = admin.turn(&session, 2).await;
    assert_eq!(completion["text"], "invalid or expired API key");

    // One that ends by itself, between discovery and call.
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(20);
    let made = json!({ "name": "y", "scope": "read", "expires_at": soon.to_string() });
    let made = admin.call("token_create", made).await;
    let key = made.ok()["key"].as_str().unwrap();
    let mut relay = Relay::connect(&server, &two).await;
    assert!(discover(&mut relay, key).await.contains("project_list"));
    let deadline = Instant::now() + Duration::from_secs(90);
    let refused = loop {
        let reply = call(&mut relay, key, "project_list", json!({})).await;
        if reply["result"].is_null() {
            break reply;
        }
        assert!(Instant::now() < deadline, "{reply}");
    };
    assert_eq!(code(&refused), -32001, "{refused}");
    // Ends of tokens are kept by the millisecond.
    let grain = jiff::SignedDuration::from_millis(1);
    assert!(jiff::Timestamp::now() + grain >= soon);
}

#[test(needs(sandbox))]
async fn tools_use_oubliette_prefix() {
    let (server, admin, one) = server_with_project("", json!({})).await;
    let key = server.admin_key();
    let mut styles = Vec::new();
    for style in ["both", "unified", "split"] {
        let change = json!({
            "project_id": one, "tools_style": style, "env": { "OUBLIETTE_API_KEY": key },
        });
        admin.call("project_update", change).await.ok();
        let (_, text) = agent(&admin, &one, "what can you do?", json!({})).await;
        let has = |name: &str| {
            text.split([' ', ',', '.', '`', '\n'])
                .any(|word| word == name)
        };
        // The agent names only the first of its tools.
        let first = match style {
            "split" => "oubliette_project_create",
            _ => "oubliette_project",
        };
        assert!(has(first) && has("session_message"), "{text}");
        assert!(!has("project_create"), "{text}");
        let mut relay = Relay::connect(&server, &one).await;
        let found = discover(&mut relay, &key).await;
        styles.push((found.contains("project"), found.contains("project_create")));
    }
    assert_eq!(styles, [(true, true), (true, false), (false, true)]);
}

#[test(needs(sandbox))]
async fn missing_api_key_skips_tool_registration() {
    let (server, admin, one) = server_with_project("", json!({})).await;
    let (_, text) = agent(&admin, &one, "what can you do?", json!({})).await;
    assert!(text.contains("session_message"), "{text}");
    assert!(!text.contains("oubliette_"), "{text}");
    let list = "/tool oubliette/oubliette_project_list {}";
    let (_, text) = agent(&admin, &one, list, json!({})).await;
    assert!(text.contains("unknown tool"), "{text}");
    let agent_keys = recorder(&server, &admin, &one, json!({})).await;
    assert_eq!(agent_keys.api_key, None);
}

#[test(needs(sandbox))]
async fn an_operation_that_is_repeated_under_its_name_is_not_done_twice() {
    let (mut server, admin, one) = server_with_project("", json!({})).await;
    container(&admin, &one).await;
    let key = server.admin_key();
    let mut relay = Relay::connect(&server, &one).await;
    let named = |n: u8, tool: &str, arguments: Value| {
        let call_id = format!("5b0c3a52-1f0b-4a52-8f27-0c9c4f0b7a{n:02}");
        json!({ "api_key": key, "tool": tool, "arguments": arguments, "call_id": call_id })
    };
    let create = named(1, "project_create", json!({ "name": "once" }));
    // At the same time, and again.
    for n in 0..10 {
        relay.begin(n, "oubliette_call_tool", create.clone()).await;
    }
    let mut answers = BTreeSet::new();
    for n in 0..10 {
        answers.insert(relay.reply(n).await["result"].to_string());
    }
    answers
        .insert(relay.request("oubliette_call_tool", create.clone()).await["result"].to_string());
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert!(answers.first().unwrap().contains("once"), "{answers:?}");
    // A refusal is an outcome, too; another token's call of that name is another call.
    let taken = named(2, "project_create", json!({ "name": "once" }));
    for _ in 0..2 {
        let reply = relay.request("oubliette_call_tool", taken.clone()).await;
        assert_eq!(reply["result"]["isError"], true);
        assert!(reply.to_string().contains("already exists"), "{reply}");
    }
    // A server that dies during the call: whether it was done is unknown, and it is not repeated.
    let slow = json!({ "project_id": one, "command": "echo x >> times; sleep 600" });
    let slow = named(3, "container_exec", slow);
    relay
        .begin("slow", "oubliette_call_tool", slow.clone())
        .await;
    let times = server.workspace(&one).join("times");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !times.exists() {
        assert!(Instant::now() < deadline);
        support::pause().await;
    }
    server.kill();
    server.start_again();
    let mut relay = Relay::connect(&server, &one).await;
    for _ in 0..2 {
        let reply = relay.request("oubliette_call_tool", slow.clone()).await;
        assert_eq!(
            reply["result"]["content"][0]["text"],
            "outcome unknown: check the state before you repeat the call"
        );
        assert_eq!(reply["result"]["isError"], true);
    }
    let again = relay.request("oubliette_call_tool", create).await;
    assert!(answers.contains(&again["result"].to_string()), "{again}");
    assert_eq!(std::fs::read_to_string(times).unwrap(), "x\n");
    // A repeated read is done again.
    let list = named(4, "project_list", json!({}));
    for _ in 0..2 {
        let reply = relay.request("oubliette_call_tool", list.clone()).await;
        assert_eq!(reply["result"]["isError"], false, "{reply}");
    }
    let bad = json!({ "api_key": server.admin_key(), "tool": "project_list", "call_id": "x" });
    let bad = relay.request("oubliette_call_tool", bad).await;
    assert_eq!(code(&bad), -32602, "{bad}");
}
