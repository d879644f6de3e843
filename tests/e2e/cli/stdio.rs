//! `oubliette mcp stdio`: an MCP client without an address and a key.

use std::process::Stdio;
use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{Server, binary};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

struct Bridge {
    process: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Bridge {
    fn start(server: &Server) -> Self {
        let mut process = Command::new(binary())
            .env("OUBLIETTE_HOME", server.home())
            .args(["mcp", "stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self {
            input: process.stdin.take(),
            output,
            process,
        }
    }

    async fn send(&mut self, message: Value) {
        let line = format!("{message}\n");
        let input = self.input.as_mut().unwrap();
        input.write_all(line.as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        let reading = tokio::time::timeout(scaled(REPLY_TIMEOUT), self.output.next_line());
        let line = reading.await.expect("no reply").unwrap();
        serde_json::from_str(&line.expect("the output is over")).unwrap()
    }

    /// The reply to a request, after notifications.
    async fn reply(&mut self, id: u64) -> Value {
        loop {
            let message = self.next().await;
            if message["id"] == id {
                return message;
            }
        }
    }

    async fn call(&mut self, id: u64, tool: &str, arguments: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments });
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        self.send(call).await;
        self.reply(id).await
    }
}

#[test]
async fn a_request_before_initialize_is_told_what_to_send_first() {
    let server = Server::start();
    let mut bridge = Bridge::start(&server);
    let list = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/list" });
    bridge.send(list.clone()).await;
    let refused = bridge.reply(7).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    let text = refused["error"]["message"].as_str().unwrap();
    assert!(
        text.starts_with("`tools/list` came before `initialize`: send that first"),
        "{text}"
    );
    // Following it works, on the same connection.
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "raw", "version": "0" } });
    bridge
        .send(json!({ "jsonrpc": "2.0", "id": 8, "method": "initialize", "params": params }))
        .await;
    assert!(bridge.reply(8).await["result"].is_object());
    bridge.send(list).await;
    let listed = bridge.reply(7).await;
    assert!(listed["result"]["tools"].is_array(), "{listed}");
}

#[test]
async fn a_client_on_standard_input_and_output_survives_a_restart_of_the_server() {
    let mut server = Server::start();
    let mut bridge = Bridge::start(&server);
    for version in ["2025-06-18", "2025-11-25"] {
        let params = json!({ "protocolVersion": version, "capabilities": {},
            "clientInfo": { "name": "raw", "version": "0" } });
        let initialize =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        bridge = Bridge::start(&server);
        bridge.send(initialize).await;
        let initialized = bridge.reply(1).await;
        assert_eq!(initialized["result"]["protocolVersion"], version);
        let notification = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        bridge.send(notification).await;
        let made = bridge
            .call(2, "project_create", json!({ "name": version }))
            .await;
        assert_eq!(
            made["result"]["structuredContent"]["name"], version,
            "{made}"
        );
    }
    server.kill();
    let restarted = async {
        server.start_again();
    };
    let (listed, ()) = tokio::join!(bridge.call(3, "project_list", json!({})), restarted);
    let projects = &listed["result"]["structuredContent"]["projects"];
    assert_eq!(projects.as_array().map(Vec::len), Some(2), "{listed}");
    // The audit log shows where the calls came from.
    let log = server.admin().call("audit_list", json!({})).await;
    let entries = log.ok()["entries"].as_array().unwrap();
    let mut made = entries
        .iter()
        .filter(|it| it["operation"] == "project_create");
    assert!(made.all(|entry| entry["address"] == "local"), "{log:?}");
    // The input ends, and with it the process.
    drop(bridge.input.take());
    let ended = tokio::time::timeout(scaled(REPLY_TIMEOUT), bridge.process.wait());
    assert!(ended.await.expect("it goes on").unwrap().success());
}

#[test]
async fn the_protocol_without_sessions_works_on_standard_input_and_output_too() {
    let server = Server::start();
    let mut bridge = Bridge::start(&server);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "raw", "version": "0" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    bridge.send(json!("nonsense")).await;
    let list =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": { "_meta": meta } });
    bridge.send(list).await;
    assert!(bridge.reply(1).await["result"]["tools"].is_array());
    let params = json!({ "name": "project_list", "arguments": {}, "_meta": meta });
    let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params });
    bridge.send(call).await;
    let listed = bridge.reply(2).await;
    assert!(
        listed["result"]["structuredContent"]["projects"].is_array(),
        "{listed}"
    );
}

#[test]
async fn without_a_server_it_says_so() {
    let home = tempfile::tempdir().unwrap();
    let ended = support::run_cli(home.path(), &["mcp", "stdio"]).await;
    assert_eq!(ended.status.code(), Some(1));
    assert!(support::stderr(&ended).contains("no server is running"));
}

/// Opens an MCP session of a protocol version that has them.
async fn initialize(bridge: &mut Bridge) {
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "raw", "version": "0" } });
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    bridge.send(initialize).await;
    bridge.reply(1).await;
    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    bridge.send(notification).await;
}

/// A call that waits for an event of a session that does nothing.
async fn start_to_wait(server: &Server, bridge: &mut Bridge, id: u64, meta: Value) {
    let admin = server.admin();
    let project = admin.project("waiting").await;
    let spawn = json!({ "project_id": project, "prompt": "/say hi", "agent": "demo" });
    let session = admin.call("session_spawn", spawn).await.ok()["session_id"].clone();
    admin
        .call("session_end", json!({ "session_id": session }))
        .await;
    let events = admin
        .call("session_events", json!({ "session_id": session }))
        .await;
    let events = events.ok()["events"].as_array().unwrap().clone();
    let last = events.last().unwrap()["index"].clone();
    // Not `status` and `log`, which the end of an agent can still bring.
    let arguments = json!({ "session_id": session, "since_index": last, "wait_seconds": 50, "types": ["plan"] });
    let params = json!({ "name": "session_events", "arguments": arguments, "_meta": meta });
    let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
    bridge.send(call).await;
}

#[test(needs(sandbox))]
async fn large_messages_pass_both_ways() {
    let server = Server::start_with(support::ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..support::ServerOptions::default()
    });
    let project = server.admin().project("large").await;
    let mut bridge = Bridge::start(&server);
    initialize(&mut bridge).await;
    let content = "0123456789abcdef".repeat(3 << 16);
    let write = json!({ "project_id": project, "path": "large", "content": content });
    let written = bridge.call(2, "workspace_write", write).await;
    assert!(written["result"]["isError"] != true, "{written}");
    let read = json!({ "project_id": project, "path": "large" });
    let read = bridge.call(3, "workspace_read", read).await;
    assert_eq!(
        read["result"]["structuredContent"]["content"],
        content.as_str()
    );
}

#[test]
async fn a_cancelled_request_ends_and_others_go_on() {
    let server = Server::start();
    let modern = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "raw", "version": "0" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    for has_session in [true, false] {
        let mut bridge = Bridge::start(&server);
        let meta = if has_session {
            initialize(&mut bridge).await;
            json!({})
        } else {
            modern.clone()
        };
        start_to_wait(&server, &mut bridge, 7, meta.clone()).await;
        let params = json!({ "requestId": 7, "_meta": meta });
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        bridge.send(cancel).await;
        let params = json!({ "name": "project_list", "arguments": {}, "_meta": meta });
        let call = json!({ "jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": params });
        bridge.send(call).await;
        assert!(
            bridge.next().await["id"] == 8,
            "the cancelled request is answered"
        );
        let delete = server.admin().call("project_list", json!({})).await;
        let project = delete.ok()["projects"][0]["project_id"].clone();
        server
            .admin()
            .call("project_delete", json!({ "project_id": project }))
            .await;
        // A request that still waited would delay the end.
        drop(bridge.input.take());
        let ended = tokio::time::timeout(scaled(Duration::from_secs(8)), bridge.process.wait());
        assert!(ended.await.expect("it waits").unwrap().success());
    }
}

#[test(needs(sandbox))]
async fn a_request_that_a_dying_server_leaves_is_answered_with_an_error() {
    let mut server = Server::start_with(support::ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..support::ServerOptions::default()
    });
    let project = server.admin().project("app").await;
    let mut bridge = Bridge::start(&server);
    initialize(&mut bridge).await;
    let arguments = json!({ "project_id": project, "command": "touch begun; sleep 1000" });
    let params = json!({ "name": "container_exec", "arguments": arguments });
    let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    bridge.send(call).await;
    let begun = server.workspace(&project).join("begun");
    support::wait_until("the command", async || begun.exists()).await;
    server.kill();
    let reply = bridge.reply(7).await;
    assert!(reply["error"]["message"].is_string(), "{reply}");
    server.start_again();
    let listed = bridge.call(9, "project_list", json!({})).await;
    assert!(
        listed["result"]["structuredContent"].is_object(),
        "{listed}"
    );
}
