//! A caller of Oubliette: gives an agent a tool, answers its calls and prints the agent's answer.
//! OUBLIETTE_URL=http://127.0.0.1:7433/mcp OUBLIETTE_TOKEN=oub_… oubliette-example "prompt"
#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::env::{args, var};

use rmcp::model::CallToolRequestParams;
use rmcp::service::{Peer, RoleClient, ServiceExt};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;
const NAME: &str = "rust example";
const PROMPT: &str = r#"/tool myapp_send_notification {"message": "hello"}"#;

/// Calls an operation of the server.
async fn call(server: &Peer<RoleClient>, tool: &str, arguments: Value) -> Result<Value, Failure> {
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    let request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    let result = server.call_tool(request).await?;
    match result.is_error {
        Some(true) => Err(format!("{:?}", result.content).into()),
        _ => Ok(result.structured_content.unwrap_or_default()),
    }
}

/// Runs the tool and sends its result.
async fn respond(server: Peer<RoleClient>, request: Value) {
    let mut answer = json!({ "error": "`message` is missing" });
    if let Some(message) = request["arguments"]["message"].as_str() {
        println!("notification: {message}");
        answer = json!({ "result": { "status": "sent" } });
    }
    answer["session_id"] = request["session_id"].clone();
    answer["request_id"] = request["request_id"].clone();
    if let Err(error) = call(&server, "caller_tool_response", answer).await {
        eprintln!("the response was refused: {error}");
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default(); // for https
    let config = StreamableHttpClientTransportConfig::with_uri(var("OUBLIETTE_URL")?);
    let config = config.auth_header(var("OUBLIETTE_TOKEN")?);
    let transport = StreamableHttpClientTransport::from_config(config);
    let client = ().serve(transport).await?;
    let all = call(&client, "project_list", json!({})).await?;
    let mut all = all["projects"].as_array().into_iter().flatten();
    let project = match all.find(|one| one["name"] == NAME) {
        Some(known) => known.clone(),
        None => call(&client, "project_create", json!({ "name": NAME })).await?,
    };
    let tool = json!({
        "name": "send_notification", "description": "Tell the user something.",
        "inputSchema": { "type": "object", "properties": { "message": { "type": "string" } } },
    });
    let spawn = json!({
        "project_id": project["project_id"], "prompt": args().nth(1).unwrap_or(PROMPT.to_owned()),
        "new_session": true, "context": { "caller_id": "myapp", "caller_tools": [tool] },
    });
    let made = call(&client, "session_spawn", spawn).await?;
    let mut since = made["last_event_index"].clone();
    loop {
        let wait =
            json!({ "session_id": made["session_id"], "since_index": since, "wait_seconds": 20 });
        let page = call(&client, "session_events", wait).await?;
        since = page["last_index"].clone();
        for event in page["events"].as_array().into_iter().flatten() {
            if event["type"] == "caller_tool_request" {
                tokio::spawn(respond(client.peer().clone(), event.clone()));
            } else if event["type"] == "completion" {
                println!("{}", event["text"].as_str().unwrap_or_default());
                return Ok(());
            }
        }
    }
}
