//! The agent's MCP server as a process, with a relay of the test.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[path = "mcp/support.rs"]
mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Agent, Options, Relay, Server};

const SECRET: &str = "oub_this-key-must-never-appear-in-any-output";

fn with_session() -> Options {
    Options {
        session: true,
        ..Options::default()
    }
}

fn names(tools: &Value) -> Vec<&str> {
    let tools = tools["result"]["tools"].as_array().unwrap();
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.collect()
}

/// How long the client takes to start and to end now, to compare other times with.
fn slowest_start() -> Duration {
    let start = || {
        let started = Instant::now();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_oubliette-client"));
        command.arg("--version").output().unwrap();
        started.elapsed()
    };
    (0..5).map(|_| start()).max().unwrap()
}

#[tokio::test]
async fn initialize_is_answered_at_once_without_a_server() {
    // A server that accepts connections and never answers is no better than none.
    let relay = Relay::default();
    for socket in [None, Some(relay.path())] {
        let started = Instant::now();
        let mut agent = Agent::start(&Options {
            socket,
            ..with_session()
        });
        agent.initialize("2025-11-25").await;
        let elapsed = started.elapsed();
        // Its start, which takes longer on a busy machine, and 100 ms.
        let limit = Duration::from_millis(100) + 10 * slowest_start();
        assert!(elapsed < limit, "answered after {elapsed:?}, not {limit:?}");
    }
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut agent = Agent::start(&with_session());
        let reply = agent.initialize(version).await;
        assert_eq!(reply["result"]["protocolVersion"], version);
        assert_eq!(reply["result"]["serverInfo"]["name"], "oubliette");
        assert_eq!(
            reply["result"]["capabilities"]["tools"]["listChanged"],
            true
        );
    }
    let mut agent = Agent::start(&with_session());
    let reply = agent.initialize("1999-01-01").await;
    assert_eq!(reply["result"]["protocolVersion"], "2025-11-25");
}

/// Another process of the same user cannot read the keys in its memory and environment.
#[tokio::test]
async fn the_client_is_not_dumpable() {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;

    // Root may read every process: then the client runs as another user.
    let is_root = rustix::process::geteuid().is_root();
    let user = if is_root {
        65_431
    } else {
        rustix::process::geteuid().as_raw()
    };
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("oubliette-client");
    std::fs::copy(env!("CARGO_BIN_EXE_oubliette-client"), &program).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(directory.path(), mode(0o755)).unwrap();
    std::fs::set_permissions(&program, mode(0o755)).unwrap();
    let start = |program: &std::path::Path, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        command.args(arguments).env_clear();
        command.env("OUBLIETTE_SESSION_ID", "gogol_test");
        command.env("OUBLIETTE_SESSION_KEY", "session-key");
        command.env("OUBLIETTE_SOCKET", directory.path().join("relay.sock"));
        if is_root {
            command.uid(user).gid(user);
        }
        command.stdin(std::process::Stdio::piped());
        command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let owner = |pid: u32| {
        std::fs::metadata(format!("/proc/{pid}/environ"))
            .unwrap()
            .uid()
    };
    let mut client = start(&program, &[]);
    let deadline = Instant::now() + Duration::from_secs(30);
    while owner(client.id()) != 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let found = owner(client.id());
    let status = client.try_wait().unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(status, None, "the client ended");
    assert_eq!(found, 0, "its memory belongs to its user");
    // That of an ordinary process does.
    let mut other = start(std::path::Path::new("/bin/sleep"), &["100"]);
    let found = owner(other.id());
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(found, user);
}

#[tokio::test]
async fn requests_before_initialize_are_answered_at_once() {
    let mut agent = Agent::start(&with_session());
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "probe", "version": "0" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let probe = json!({ "_meta": meta });
    agent
        .send_request("server-discover-probe-1", "server/discover", probe)
        .await;
    let reply = agent.reply("server-discover-probe-1").await;
    assert_eq!(reply["error"]["code"], -32601, "{reply}");
    agent.send_request(1, "something/else", json!({})).await;
    assert_eq!(agent.reply(1).await["error"]["code"], -32601);
    agent
        .send(&json!({ "jsonrpc": "2.0", "method": "notifications/odd" }))
        .await;
    agent.write_bytes(b"not json\n").await;
    agent.send_request(2, "ping", json!({})).await;
    assert_eq!(agent.reply(2).await["result"], json!({}));
    let reply = agent.initialize("2025-11-25").await;
    assert_eq!(reply["result"]["protocolVersion"], "2025-11-25", "{reply}");
    agent
        .send_request(3, "something/else", json!({ "a": 1 }))
        .await;
    assert_eq!(agent.reply(3).await["error"]["code"], -32601);
    agent
        .send_request("x", "server/discover", json!({ "_meta": meta }))
        .await;
    assert_eq!(agent.reply("x").await["error"]["code"], -32601);
    agent.send_request(4, "prompts/list", json!({})).await;
    assert_eq!(agent.reply(4).await["error"]["code"], -32601);
    agent
        .send_request(5, "tools/call", json!({ "nome": 1 }))
        .await;
    assert_eq!(agent.reply(5).await["error"]["code"], -32602);

    // An agent of the protocol version without `initialize`.
    let mut agent = Agent::start(&with_session());
    let list = json!({ "_meta": meta });
    agent.send_request(1, "tools/list", list).await;
    assert_eq!(names(&agent.reply(1).await).len(), 4);
}

#[tokio::test]
async fn a_changed_list_is_reported_when_a_slow_agent_has_asked_for_it_twice() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        confirms_lists: true,
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    server.attach().await;
    server.send_caller_tools("app", json!([])).await;
    agent.tools().await;
    // The first list is used at once.
    let first = server.listed().await;
    // The list that came before the agent was ready may have been announced, too.
    let _ = tokio::time::timeout(Duration::from_secs(1), agent.tools_changed()).await;
    let tools = json!([{ "name": "send" }]);
    server.send_caller_tools("app", tools.clone()).await;
    assert!(agent.tools_changed().await);
    assert_eq!(names(&agent.tools().await)[4..], ["app_send"]);
    assert!(agent.tools_changed().await, "it is notified once more");
    agent.tools().await;
    // The first list can be reported again.
    while server.listed().await == first {}
}

#[tokio::test]
async fn the_first_list_waits_for_the_server_and_later_changes_are_notified() {
    // Without a server the client lists its own tools after two seconds.
    let mut agent = Agent::start(&with_session());
    agent.initialize("2025-11-25").await;
    let started = Instant::now();
    let list = agent.tools().await;
    let first = started.elapsed();
    assert!(first >= Duration::from_millis(1900));
    let limit = Duration::from_millis(2500) + 10 * slowest_start();
    assert!(first < limit, "listed after {first:?}, not {limit:?}");
    let base = [
        "session_message",
        "session_events",
        "session_end",
        "config_limits",
    ];
    assert_eq!(names(&list), base);
    let started = Instant::now();
    agent.tools().await;
    assert!(started.elapsed() < first, "only the first list waits");
    // The server starts later.
    let mut relay = Relay::listen(agent.socket());
    let mut server = relay.accept().await;
    server.attach().await;
    server.send_caller_tools("app", json!([])).await;
    assert!(agent.tools_changed().await);
    let send = json!({ "name": "send", "description": "Sends.", "inputSchema": {
        "type": "object", "properties": { "z": { "type": "string" }, "a": {} }, "$comment": "kept",
    } });
    server
        .send_caller_tools("app", json!([send, { "name": "session.message/long" }]))
        .await;
    assert!(agent.tools_changed().await);
    let list = agent.tools().await;
    let tools = list["result"]["tools"].as_array().unwrap();
    assert_eq!(names(&list)[4..], ["app_send", "app_session_message_long"]);
    assert_eq!(tools[4]["description"], "Sends.");
    assert_eq!(tools[4]["inputSchema"], send["inputSchema"]);
    assert_eq!(tools[5]["inputSchema"]["type"], "object");
    assert!(tools[5].get("description").is_none());

    // The server accepts the connection at the start and replies after a moment.
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    agent.send_request("list", "tools/list", json!({})).await;
    let mut server = relay.accept().await;
    server.attach().await;
    server
        .send_caller_tools("app", json!([{ "name": "one" }]))
        .await;
    assert!(names(&agent.reply("list").await).contains(&"app_one"));
}

#[tokio::test]
async fn without_a_key_it_never_requests_oubliettes_tools() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    let attach = server.attach().await;
    assert_eq!(attach["params"]["session_id"], "gogol_test");
    server.send_caller_tools("app", json!([])).await;
    assert!(
        names(&agent.tools().await)
            .iter()
            .all(|name| !name.starts_with("oubliette_"))
    );
    let reply = agent.call("oubliette_project_list", json!({})).await;
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
    // It sent nothing before the next call.
    agent
        .send_request("call", "tools/call", json!({ "name": "config_limits" }))
        .await;
    assert_eq!(server.next().await.unwrap()["method"], "config_limits");
}

#[tokio::test]
async fn an_invalid_key_gives_a_warning_and_no_tools_and_is_never_printed() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        api_key: Some(SECRET),
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    server.attach().await;
    server.send_caller_tools("app", json!([])).await;
    let request = server.next().await.unwrap();
    assert_eq!(
        (&request["method"], &request["params"]["api_key"]),
        (&json!("oubliette_tools"), &json!(SECRET))
    );
    server
        .fail(&request, -32001, "invalid or expired API key")
        .await;
    assert_eq!(names(&agent.tools().await).len(), 4);
    // A tool that is not listed is forwarded: the key may be valid by then.
    agent
        .send_request(
            "call",
            "tools/call",
            json!({ "name": "oubliette_project_list" }),
        )
        .await;
    let call = server.next().await.unwrap();
    assert_eq!(
        (&call["method"], &call["params"]["tool"]),
        (&json!("oubliette_call_tool"), &json!("project_list"))
    );
    server
        .fail(&call, -32001, "invalid or expired API key")
        .await;
    let reply = agent.reply("call").await;
    assert_eq!(reply["result"]["isError"], true);
    assert_eq!(
        reply["result"]["content"][0]["text"],
        "invalid or expired API key"
    );
    let log = agent.end().await;
    assert!(
        log.contains("warning") && log.contains("invalid or expired"),
        "{log}"
    );
    assert!(
        !log.contains(SECRET) && !log.contains("session-key"),
        "{log}"
    );
}

#[tokio::test]
async fn oubliettes_tools_are_prefixed_and_called_with_the_key_without_a_session() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        api_key: Some(SECRET),
        ..Options::default()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    let request = server.next().await.unwrap();
    assert_eq!(request["method"], "oubliette_tools");
    let tools = json!([{ "name": "project_create", "description": "Makes.", "inputSchema": {
        "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"],
    } }]);
    server.reply(&request, json!({ "tools": tools })).await;
    let list = agent.tools().await;
    assert_eq!(names(&list), ["oubliette_project_create"]);
    assert_eq!(
        list["result"]["tools"][0]["inputSchema"],
        tools[0]["inputSchema"]
    );
    let create = json!({ "name": "oubliette_project_create", "arguments": { "name": "x" } });
    agent.send_request("call", "tools/call", create).await;
    let call = server.next().await.unwrap();
    assert_eq!(call["params"]["api_key"], SECRET);
    assert_eq!(call["params"]["arguments"], json!({ "name": "x" }));
    assert!(call["params"]["call_id"].is_string());
    let result = json!({
        "content": [{ "type": "text", "text": "{\"id\":1}" }],
        "structuredContent": { "id": 1 }, "isError": false,
    });
    server.reply(&call, result.clone()).await;
    let reply = agent.reply("call").await;
    assert_eq!(reply["result"]["content"], result["content"]);
    assert_eq!(
        reply["result"]["structuredContent"],
        result["structuredContent"]
    );
    let unknown = agent
        .call("session_message", json!({ "prompt": "x" }))
        .await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}

/// An agent whose caller offers a tool.
async fn with_caller() -> (Relay, Agent, Server) {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    server.attach().await;
    server
        .send_caller_tools("app", json!([{ "name": "send" }]))
        .await;
    agent.tools().await;
    (relay, agent, server)
}

#[tokio::test]
async fn a_call_is_sent_again_after_a_lost_connection_with_the_same_id_and_answered_once() {
    let (mut relay, mut agent, mut server) = with_caller().await;
    let ask = json!({ "name": "session_message", "arguments": { "prompt": "x" } });
    agent.send_request("one", "tools/call", ask).await;
    let first = server.next().await.unwrap();
    let send = json!({ "name": "app_send", "arguments": { "to": "you" } });
    agent.send_request("two", "tools/call", send).await;
    let second = server.next().await.unwrap();
    assert_eq!(
        (&second["method"], &second["params"]["tool"]),
        (&json!("caller_tool"), &json!("send"))
    );
    for round in 0..3 {
        if round == 1 {
            // For a while there is no server.
            relay.close();
            drop(server);
            relay.open();
        } else {
            drop(server);
        }
        server = relay.accept().await;
        server.attach().await;
        server
            .send_caller_tools("app", json!([{ "name": "send" }]))
            .await;
        for before in [&first, &second] {
            let again = server.next().await.unwrap();
            assert_eq!(again["method"], before["method"]);
            assert_eq!(again["params"]["call_id"], before["params"]["call_id"]);
        }
    }
    server.reply(&second, json!({ "done": 2 })).await;
    server
        .reply(&first, json!({ "text": "done", "session_id": "gogol_x" }))
        .await;
    server.reply(&first, json!({ "text": "twice" })).await;
    let reply = agent.reply("one").await;
    assert_eq!(reply["result"]["structuredContent"]["text"], "done");
    assert_eq!(
        agent.reply("two").await["result"]["structuredContent"]["done"],
        2
    );
    agent.send_request("ping", "ping", json!({})).await;
    agent.reply("ping").await;
    assert!(agent.has_no_unread());
}

#[tokio::test]
async fn a_call_that_is_cancelled_without_a_server_is_cancelled_at_the_next_one() {
    let (mut relay, mut agent, mut server) = with_caller().await;
    let send = json!({ "name": "app_send", "arguments": { "to": "you" } });
    agent.send_request("one", "tools/call", send.clone()).await;
    let first = server.next().await.unwrap();
    let ask = json!({ "name": "session_message", "arguments": { "prompt": "x" } });
    agent.send_request("two", "tools/call", ask).await;
    server.next().await.unwrap();
    relay.close();
    drop(server);
    // No server has received this one.
    agent.send_request("three", "tools/call", send).await;
    for id in ["one", "two", "three"] {
        let cancel = json!({ "requestId": id, "reason": "enough" });
        agent.notify("notifications/cancelled", cancel).await;
    }
    agent.send_request("ping", "ping", json!({})).await;
    agent.reply("ping").await;
    relay.open();
    let mut server = relay.accept().await;
    server.attach().await;
    let again = server.next().await.unwrap();
    assert_eq!(again["params"]["call_id"], first["params"]["call_id"]);
    let mut next = server.next().await.unwrap();
    while next["method"] != "cancel" || next["params"]["id"] != again["id"] {
        next = server.next().await.unwrap();
    }
    server.fail(&again, -32000, "the call was cancelled").await;
    // A third server receives neither the call nor the cancellation.
    drop(server);
    let mut server = relay.accept().await;
    server.attach().await;
    let limits = json!({ "name": "config_limits", "arguments": {} });
    agent.send_request("four", "tools/call", limits).await;
    assert_eq!(server.next().await.unwrap()["method"], "config_limits");
    assert!(agent.has_no_unread());
}

#[tokio::test]
async fn a_long_call_sends_progress_and_forwards_a_cancel() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    server.attach().await;
    server.send_caller_tools("app", json!([])).await;
    let ask = json!({
        "name": "session_message", "arguments": { "prompt": "x" }, "_meta": { "progressToken": "t" },
    });
    agent.send_request("slow", "tools/call", ask).await;
    let call = server.next().await.unwrap();
    let mut last = 0.0;
    for _ in 0..2 {
        let progress = agent.notification("notifications/progress").await;
        assert_eq!(progress["params"]["progressToken"], "t");
        let seconds = progress["params"]["progress"].as_f64().unwrap();
        assert!(seconds > last, "{progress}");
        last = seconds;
    }
    let cancel = json!({ "requestId": "slow", "reason": "enough" });
    agent
        .notify("notifications/cancelled", cancel.clone())
        .await;
    let cancelled = server.next().await.unwrap();
    assert_eq!(
        (&cancelled["method"], &cancelled["params"]["id"]),
        (&json!("cancel"), &call["id"])
    );
    assert!(cancelled.get("id").is_none());
    // A late reply and the cancel of a call that has ended change nothing.
    server.reply(&call, json!({ "text": "late" })).await;
    agent.notify("notifications/cancelled", cancel).await;
    let unknown = json!({ "requestId": 12345 });
    agent.notify("notifications/cancelled", unknown).await;
    agent
        .send_request("next", "tools/call", json!({ "name": "config_limits" }))
        .await;
    let call = server.next().await.unwrap();
    server.fail(&call, -32000, "no luck").await;
    let reply = agent.reply("next").await;
    assert_eq!(reply["result"]["isError"], true);
    assert_eq!(reply["result"]["content"][0]["text"], "no luck");
    assert!(agent.has_no_unread());
}

#[tokio::test]
async fn it_exits_at_the_end_of_its_input_even_with_a_pending_call() {
    for sockets in [false, true] {
        let mut relay = Relay::default();
        let mut agent = Agent::start(&Options {
            socket: Some(relay.path()),
            sockets,
            ..with_session()
        });
        agent.initialize("2025-06-18").await;
        let mut server = relay.accept().await;
        server.attach().await;
        server.send_caller_tools("app", json!([])).await;
        let ask = json!({ "name": "session_message", "arguments": { "prompt": "x" } });
        agent.send_request("slow", "tools/call", ask).await;
        server.next().await.unwrap();
        let started = Instant::now();
        agent.end().await;
        assert!(
            started.elapsed() < Duration::from_secs(1),
            "sockets: {sockets}"
        );
        assert!(
            server.next().await.is_none(),
            "its connection is still open"
        );
    }
    // Also before `initialize`.
    let agent = Agent::start(&with_session());
    agent.end().await;
}
