//! The tools of callers: an agent calls them as its own, and the client that drives the session answers.

mod delivery;
mod faults;
mod restarts;
mod rules;
mod scenarios;

use serde_json::{Value, json};
use support::relay::{AgentKeys, RECORDER_CONFIG, keys_of_session};
use support::{Modern, Server, ServerOptions};

const SEND: &str = "/tool myapp_send_notification {\"message\": \"hello\"}";

async fn server_with(config: &str) -> (Server, Modern, String) {
    let server = Server::start_with(ServerOptions {
        config: format!("runtime = \"sandbox\"\n{config}\n{RECORDER_CONFIG}"),
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let made = json!({ "name": "one", "init_git": false });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    (server, admin, project)
}

fn notification() -> Value {
    json!({
        "name": "send_notification", "description": "Send notification",
        "inputSchema": {
            "type": "object", "properties": { "message": { "type": "string" } },
        },
    })
}

fn context(tools: Value) -> Value {
    json!({ "caller_id": "myapp", "caller_tools": tools })
}

/// Begins a session with a prompt and tools.
async fn spawn(caller: &Modern, project: &str, prompt: &str, tools: Value) -> String {
    let more = json!({ "new_session": true, "context": context(tools) });
    caller.spawn_with(project, prompt, more).await
}

/// Polls until the agent calls a tool; the event.
async fn asked(caller: &Modern, session: &str) -> Value {
    let wanted = |event: &Value| event["type"] == "caller_tool_request";
    caller.follow(session, wanted).await.last().unwrap().clone()
}

async fn answer(caller: &Modern, request: &Value, answer: Value) -> support::Reply {
    let mut parameters = answer;
    parameters["session_id"] = request["session_id"].clone();
    parameters["request_id"] = request["request_id"].clone();
    caller.call("caller_tool_response", parameters).await
}

/// Returns when a caller that started a session now and then stopped counts as absent. Every other caller
/// has been silent for at least as long.
async fn wait_for_disconnect_of_another_caller(server: &Server, admin: &Modern, project: &str) {
    let other = server.with_key(&admin.token("write").await);
    let session = spawn(&other, project, SEND, json!([notification()])).await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "caller \"myapp\" is disconnected");
}

/// Starts a session with these tools; the keys that its agent recorded.
async fn recorder(server: &Server, caller: &Modern, project: &str, tools: Value) -> AgentKeys {
    let more = json!({ "new_session": true, "agent": "recorder", "context": context(tools) });
    let session = caller.spawn_with(project, "/say hello", more).await;
    caller.turn(&session, 1).await;
    keys_of_session(server, project, &session)
}
