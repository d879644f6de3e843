//! How the agent receives the results of a caller's tool.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[path = "mcp/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use serde_json::{Value, json};
use support::{Agent, Options, Relay};

#[tokio::test]
async fn text_json_and_mcp_content_reach_the_agent_unchanged() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        session: true,
        ..Options::default()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    server.attach().await;
    let tools = json!([{ "name": "send" }]);
    server.send_caller_tools("app", tools).await;
    agent.tools().await;
    let text = |text: &str| json!({ "type": "text", "text": text });
    let image = json!({ "type": "image", "data": "aGVsbG8=", "mimeType": "image/png" });
    let link = json!({ "type": "resource_link", "uri": "https://example.org/a", "name": "a" });
    let unknown = json!({ "type": "hologram", "depth": 3 });
    let object = json!({ "status": "sent" });
    let not_mcp = json!({ "content": "a file's", "more": 1 });
    for (result, content, structured) in [
        (object.clone(), vec![text(&object.to_string())], object),
        (
            json!("plain"),
            vec![text("plain")],
            json!({ "result": "plain" }),
        ),
        (
            json!([1, 2]),
            vec![text("[1,2]")],
            json!({ "result": [1, 2] }),
        ),
        (Value::Null, vec![text("null")], json!({ "result": null })),
        (
            json!({ "content": [text("see:"), image, link] }),
            vec![text("see:"), image.clone(), link.clone()],
            Value::Null,
        ),
        (
            json!({ "content": [text("x")], "structuredContent": { "n": 1 } }),
            vec![text("x")],
            json!({ "n": 1 }),
        ),
        (
            json!({ "content": [unknown] }),
            vec![text(&unknown.to_string())],
            Value::Null,
        ),
        (not_mcp.clone(), vec![text(&not_mcp.to_string())], not_mcp),
    ] {
        let call = json!({ "name": "app_send", "arguments": {} });
        agent.send_request("call", "tools/call", call).await;
        let request = server.next().await.unwrap();
        server.reply(&request, result.clone()).await;
        let reply = agent.reply("call").await;
        let got = &reply["result"];
        assert_eq!(got["content"], Value::from(content), "{result}");
        assert_eq!(got["structuredContent"], structured, "{result}");
        assert_ne!(got["isError"], true, "{result}");
    }
    let call = json!({ "name": "app_send", "arguments": {} });
    agent.send_request("call", "tools/call", call).await;
    let request = server.next().await.unwrap();
    let failed = json!({ "content": [text("no such recipient")], "isError": true });
    server.reply(&request, failed).await;
    assert_eq!(agent.reply("call").await["result"]["isError"], true);
}
