//! The agent's MCP server, run as agents run it, with a relay of ours.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

#[path = "mcp/support.rs"]
mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Agent, Options, Relay, Server};

const SECRET: &str = "oub_this-key-must-never-be-said-by-anybody-ever";

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

#[tokio::test]
async fn it_introduces_itself_at_once_though_there_is_no_server() {
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

#[tokio::test]
async fn what_comes_before_the_introduction_is_answered_at_once() {
    let mut agent = Agent::start(&with_session());
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "probe", "version": "0" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let probe = json!({ "_meta": meta });
    agent
        .begin("server-discover-probe-1", "server/discover", probe)
        .await;
    let reply = agent.reply("server-discover-probe-1").await;
    assert_eq!(reply["error"]["code"], -32601, "{reply}");
    agent.begin(1, "something/else", json!({})).await;
    assert_eq!(agent.reply(1).await["error"]["code"], -32601);
    agent
        .send(&json!({ "jsonrpc": "2.0", "method": "notifications/odd" }))
        .await;
    agent.raw(b"not json\n").await;
    agent.begin(2, "ping", json!({})).await;
    assert_eq!(agent.reply(2).await["result"], json!({}));
    let reply = agent.initialize("2025-11-25").await;
    assert_eq!(reply["result"]["protocolVersion"], "2025-11-25", "{reply}");
    agent.begin(3, "something/else", json!({ "a": 1 })).await;
    assert_eq!(agent.reply(3).await["error"]["code"], -32601);
    agent
        .begin("x", "server/discover", json!({ "_meta": meta }))
        .await;
    assert_eq!(agent.reply("x").await["error"]["code"], -32601);
    agent.begin(4, "prompts/list", json!({})).await;
    assert_eq!(agent.reply(4).await["error"]["code"], -32601);
    agent.begin(5, "tools/call", json!({ "nome": 1 })).await;
    assert_eq!(agent.reply(5).await["error"]["code"], -32602);

    // A client of the protocol without an introduction.
    let mut agent = Agent::start(&with_session());
    let list = json!({ "_meta": meta });
    agent.begin(1, "tools/list", list).await;
    assert_eq!(names(&agent.reply(1).await).len(), 4);
}

#[tokio::test]
async fn the_first_list_waits_for_the_server_and_later_changes_are_told() {
    // Nobody is there: what it knows by itself, after two seconds.
    let mut agent = Agent::start(&with_session());
    agent.initialize("2025-11-25").await;
    let started = Instant::now();
    let list = agent.tools().await;
    let first = started.elapsed();
    assert!(first >= Duration::from_millis(1900));
    let base = [
        "session_message",
        "session_events",
        "session_end",
        "config_limits",
    ];
    assert_eq!(names(&list), base);
    let started = Instant::now();
    agent.tools().await;
    assert!(started.elapsed() < first, "only the first one waits");
    // Then the server comes.
    let mut relay = Relay::listen(agent.socket());
    let mut server = relay.accept().await;
    server.attach().await;
    server.caller_tools("app", json!([])).await;
    assert!(agent.tools_changed().await);
    let send = json!({ "name": "send", "description": "Sends.", "inputSchema": {
        "type": "object", "properties": { "z": { "type": "string" }, "a": {} }, "$comment": "kept",
    } });
    server
        .caller_tools("app", json!([send, { "name": "session.message/long" }]))
        .await;
    assert!(agent.tools_changed().await);
    let list = agent.tools().await;
    let tools = list["result"]["tools"].as_array().unwrap();
    assert_eq!(names(&list)[4..], ["app_send", "app_session_message_long"]);
    assert_eq!(tools[4]["description"], "Sends.");
    assert_eq!(tools[4]["inputSchema"], send["inputSchema"]);
    assert_eq!(tools[5]["inputSchema"]["type"], "object");
    assert!(tools[5].get("description").is_none());

    // It was there from the start, and took a moment.
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    agent.begin("list", "tools/list", json!({})).await;
    let mut server = relay.accept().await;
    server.attach().await;
    server.caller_tools("app", json!([{ "name": "one" }])).await;
    assert!(names(&agent.reply("list").await).contains(&"app_one"));
}

#[tokio::test]
async fn without_a_key_it_never_asks_for_oubliettes_tools() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    let attach = server.attach().await;
    assert_eq!(attach["params"]["session_id"], "gogol_test");
    server.caller_tools("app", json!([])).await;
    assert!(
        names(&agent.tools().await)
            .iter()
            .all(|name| !name.starts_with("oubliette_"))
    );
    let reply = agent.call("oubliette_project_list", json!({})).await;
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
    // The next thing that it says is the next thing that it is asked.
    agent
        .begin("call", "tools/call", json!({ "name": "config_limits" }))
        .await;
    assert_eq!(server.next().await.unwrap()["method"], "config_limits");
}

#[tokio::test]
async fn an_invalid_key_is_a_warning_and_no_tools_and_is_never_said() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        api_key: Some(SECRET),
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    server.attach().await;
    server.caller_tools("app", json!([])).await;
    let asked = server.next().await.unwrap();
    assert_eq!(
        (&asked["method"], &asked["params"]["api_key"]),
        (&json!("oubliette_tools"), &json!(SECRET))
    );
    server
        .fail(&asked, -32001, "invalid or expired API key")
        .await;
    assert_eq!(names(&agent.tools().await).len(), 4);
    // What is not listed is forwarded all the same; the key may be valid by then.
    agent
        .begin(
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
    let said = agent.end().await;
    assert!(
        said.contains("warning") && said.contains("invalid or expired"),
        "{said}"
    );
    assert!(
        !said.contains(SECRET) && !said.contains("session-key"),
        "{said}"
    );
}

#[tokio::test]
async fn tools_of_oubliette_are_prefixed_and_called_with_the_key_without_any_session() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        api_key: Some(SECRET),
        ..Options::default()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    let asked = server.next().await.unwrap();
    assert_eq!(asked["method"], "oubliette_tools");
    let tools = json!([{ "name": "project_create", "description": "Makes.", "inputSchema": {
        "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"],
    } }]);
    server.reply(&asked, json!({ "tools": tools })).await;
    let list = agent.tools().await;
    assert_eq!(names(&list), ["oubliette_project_create"]);
    assert_eq!(
        list["result"]["tools"][0]["inputSchema"],
        tools[0]["inputSchema"]
    );
    let create = json!({ "name": "oubliette_project_create", "arguments": { "name": "x" } });
    agent.begin("call", "tools/call", create).await;
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

/// An agent that has a tool of its caller's.
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
        .caller_tools("app", json!([{ "name": "send" }]))
        .await;
    agent.tools().await;
    (relay, agent, server)
}

#[tokio::test]
async fn a_call_goes_on_over_a_lost_connection_with_the_same_name_and_one_answer() {
    let (mut relay, mut agent, mut server) = with_caller().await;
    let ask = json!({ "name": "session_message", "arguments": { "prompt": "x" } });
    agent.begin("one", "tools/call", ask).await;
    let first = server.next().await.unwrap();
    let send = json!({ "name": "app_send", "arguments": { "to": "you" } });
    agent.begin("two", "tools/call", send).await;
    let second = server.next().await.unwrap();
    assert_eq!(
        (&second["method"], &second["params"]["tool"]),
        (&json!("caller_tool"), &json!("send"))
    );
    for round in 0..3 {
        if round == 1 {
            // No server at all for a while.
            relay.close();
            drop(server);
            relay.open();
        } else {
            drop(server);
        }
        server = relay.accept().await;
        server.attach().await;
        server
            .caller_tools("app", json!([{ "name": "send" }]))
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
    agent.begin("ping", "ping", json!({})).await;
    agent.reply("ping").await;
    assert!(agent.nothing_else());
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_there_is_no_server_is_cancelled_at_the_next_one() {
    let (mut relay, mut agent, mut server) = with_caller().await;
    let send = json!({ "name": "app_send", "arguments": { "to": "you" } });
    agent.begin("one", "tools/call", send.clone()).await;
    let first = server.next().await.unwrap();
    let ask = json!({ "name": "session_message", "arguments": { "prompt": "x" } });
    agent.begin("two", "tools/call", ask).await;
    server.next().await.unwrap();
    relay.close();
    drop(server);
    // And one that no server has heard of.
    agent.begin("three", "tools/call", send).await;
    for id in ["one", "two", "three"] {
        let cancel = json!({ "requestId": id, "reason": "enough" });
        agent.notify("notifications/cancelled", cancel).await;
    }
    agent.begin("ping", "ping", json!({})).await;
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
    // Nothing of it is said to yet another server.
    drop(server);
    let mut server = relay.accept().await;
    server.attach().await;
    let limits = json!({ "name": "config_limits", "arguments": {} });
    agent.begin("four", "tools/call", limits).await;
    assert_eq!(server.next().await.unwrap()["method"], "config_limits");
    assert!(agent.nothing_else());
}

#[tokio::test]
async fn progress_is_told_while_a_call_takes_its_time_and_a_cancel_is_passed_on() {
    let mut relay = Relay::default();
    let mut agent = Agent::start(&Options {
        socket: Some(relay.path()),
        ..with_session()
    });
    agent.initialize("2025-11-25").await;
    let mut server = relay.accept().await;
    server.attach().await;
    server.caller_tools("app", json!([])).await;
    let ask = json!({
        "name": "session_message", "arguments": { "prompt": "x" }, "_meta": { "progressToken": "t" },
    });
    agent.begin("slow", "tools/call", ask).await;
    let call = server.next().await.unwrap();
    let mut last = 0.0;
    for _ in 0..2 {
        let told = agent.notification("notifications/progress").await;
        assert_eq!(told["params"]["progressToken"], "t");
        let progress = told["params"]["progress"].as_f64().unwrap();
        assert!(progress > last, "{told}");
        last = progress;
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
    // An answer that comes all the same, and a cancel of what is over, change nothing.
    server.reply(&call, json!({ "text": "late" })).await;
    agent.notify("notifications/cancelled", cancel).await;
    let unknown = json!({ "requestId": 12345 });
    agent.notify("notifications/cancelled", unknown).await;
    agent
        .begin("next", "tools/call", json!({ "name": "config_limits" }))
        .await;
    let call = server.next().await.unwrap();
    server.fail(&call, -32000, "no luck").await;
    let reply = agent.reply("next").await;
    assert_eq!(reply["result"]["isError"], true);
    assert_eq!(reply["result"]["content"][0]["text"], "no luck");
    assert!(agent.nothing_else());
}

#[tokio::test]
async fn the_end_of_its_input_is_its_end_whatever_it_waits_for() {
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
        server.caller_tools("app", json!([])).await;
        let ask = json!({ "name": "session_message", "arguments": { "prompt": "x" } });
        agent.begin("slow", "tools/call", ask).await;
        server.next().await.unwrap();
        let started = Instant::now();
        agent.end().await;
        assert!(
            started.elapsed() < Duration::from_secs(1),
            "sockets: {sockets}"
        );
        assert!(server.next().await.is_none(), "its connection is over, too");
    }
    // Also before it was introduced to anybody.
    let agent = Agent::start(&with_session());
    agent.end().await;
}
