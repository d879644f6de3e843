//! Servers that die between a question and its answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use support::{AgentClient, Modern, Random, Relay};

use super::{SEND, answer, asked, notification, recorder, server_with, spawn};

#[test(needs(sandbox))]
async fn a_restart_between_question_and_answer_loses_neither() {
    let (mut server, admin, project) = server_with("").await;
    let slow = json!({ "name": "slow_tool", "timeout_seconds": 8 });
    let tools = json!([notification(), slow]);
    let session = spawn(&admin, &project, SEND, tools.clone()).await;
    let request = asked(&admin, &session).await;
    for _ in 0..2 {
        server.kill();
        server.start_again();
    }
    let seen = admin.session(&session).await;
    assert_eq!(
        seen["pending_caller_requests"][0]["request_id"],
        request["request_id"]
    );
    answer(&admin, &request, json!({ "result": { "ok": 1 } }))
        .await
        .ok();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "{\"ok\":1}");
    let log = admin.log(&session).await;
    let of = |kind: &'static str| log.iter().filter(|event| event["type"] == kind).count();
    assert_eq!(
        (of("caller_tool_request"), of("caller_tool_response")),
        (1, 1)
    );

    // The timeout is counted from the request, not from the start of the server, and its result
    // reaches the agent's client when it is connected again.
    let session = spawn(&admin, &project, "/tool myapp_slow_tool {}", tools).await;
    let request = asked(&admin, &session).await;
    let begun = Instant::now();
    server.kill();
    server.start_again();
    let call = json!({ "session_id": session });
    let shown = admin.call("session_events", call).await;
    let pending = &shown.ok()["pending_caller_requests"][0];
    assert!(
        pending.is_null() || pending["expires_at"] == request["expires_at"],
        "{pending}"
    );
    let completion = admin.turn(&session, 1).await;
    assert_eq!(
        completion["text"],
        "caller tool \"slow_tool\" timed out after 8 s"
    );
    assert!(begun.elapsed() < scaled(Duration::from_secs(20)));
}

#[test(needs(sandbox))]
async fn a_call_that_is_repeated_asks_once_and_ends_with_its_session() {
    let (server, admin, project) = server_with("").await;
    let agent_keys = recorder(&server, &admin, &project, json!([{ "name": "x" }])).await;
    let call = json!({ "tool": "x", "call_id": "5b0c3a52-1f0b-4a52-8f27-0c9c4f0b7a11" });
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    relay.begin(1, "caller_tool", call.clone()).await;
    let request = asked(&admin, &agent_keys.session_id).await;
    drop(relay);
    let mut relay = Relay::attached(&server, &project, &agent_keys).await;
    relay.begin(1, "caller_tool", call.clone()).await;
    relay.begin(2, "caller_tool", call.clone()).await;
    answer(&admin, &request, json!({ "result": "once" }))
        .await
        .ok();
    assert_eq!(relay.reply(1).await["result"], "once");
    assert_eq!(relay.reply(2).await["result"], "once");
    assert_eq!(relay.request("caller_tool", call).await["result"], "once");
    let log = admin.log(&agent_keys.session_id).await;
    let requests = log.iter().filter(|e| e["type"] == "caller_tool_request");
    assert_eq!(requests.count(), 1);

    relay.begin(3, "caller_tool", json!({ "tool": "x" })).await;
    let pending = support::wait_for("the request", async || {
        let seen = admin.session(&agent_keys.session_id).await;
        seen["pending_caller_requests"]
            .get(0)
            .is_some()
            .then_some(seen)
    })
    .await;
    assert_eq!(
        pending["pending_caller_requests"].as_array().unwrap().len(),
        1
    );
    let end = json!({ "session_id": agent_keys.session_id });
    admin.call("session_end", end).await.ok();
    let gone = relay.reply(3).await;
    assert_eq!(gone["error"]["data"]["kind"], "cancelled", "{gone}");
    let seen = admin.session(&agent_keys.session_id).await;
    assert_eq!(seen["pending_caller_requests"], json!([]));
}

#[test(runtimes)]
async fn in_every_kind_of_container_a_call_outlives_its_server(runtime: &str) {
    let mut server = support::server_with(runtime, "").await;
    let admin = server.admin();
    let made = json!({ "name": "one", "init_git": false });
    let made = admin.call("project_create", made).await;
    let project = made.ok()["project_id"].as_str().unwrap().to_owned();
    let session = spawn(&admin, &project, SEND, json!([notification()])).await;
    let request = asked(&admin, &session).await;
    server.kill();
    server.start_again();
    let result = json!({ "result": { "runtime": runtime } });
    answer(&admin, &request, result).await.ok();
    let completion = admin.turn(&session, 1).await;
    let expected = json!({ "runtime": runtime }).to_string();
    assert_eq!(completion["text"], *expected, "{runtime}");
}

const CALLS: u64 = 500;
const CLIENTS: u64 = 2;

/// A caller that answers every request after a random time, also when servers die.
async fn caller_of(caller: Modern, session: String) {
    let mut since = -1;
    let mut random = Random::new();
    loop {
        let page = json!({ "session_id": session, "since_index": since, "wait_seconds": 5 });
        let reply = caller.call_until_answered("session_events", page).await;
        let page = reply.ok();
        since = page["last_index"].as_i64().unwrap();
        for event in page["events"].as_array().unwrap() {
            if event["type"] == "caller_tool_request" {
                let after = random.duration_below(Duration::from_secs(4));
                tokio::spawn(respond(caller.clone(), event.clone(), after));
            }
        }
    }
}

async fn respond(caller: Modern, request: Value, after: Duration) {
    // How long the caller works on it.
    tokio::time::sleep(after).await;
    let arguments = json!({
        "session_id": request["session_id"], "request_id": request["request_id"],
        "result": { "n": request["arguments"]["n"] },
    });
    // The reply is "not found" if an earlier attempt was accepted and its connection broke.
    caller
        .call_until_answered("caller_tool_response", arguments)
        .await;
}

#[test(needs(sandbox), limit = 240)]
async fn of_five_hundred_calls_at_once_each_is_asked_once_and_answered_once_whenever_servers_die() {
    // No call ends because it waited for long, so that one that ends without its answer has lost it.
    let patient =
        "[caller_tools]\ntimeout_seconds = 200\ngrace_seconds = 200\npresence_seconds = 200\n";
    let (mut server, admin, project) = server_with(patient).await;
    let tools = json!([{ "name": "echo" }]);
    let agent_keys = recorder(&server, &admin, &project, tools).await;
    let caller = tokio::spawn(caller_of(admin.clone(), agent_keys.session_id.clone()));
    let mut agents = Vec::new();
    for client in 0..CLIENTS {
        let mut agent = AgentClient::start(&server, &project, &agent_keys).await;
        agents.push(tokio::spawn(async move {
            let own = (1..=CALLS).filter(|n| n % CLIENTS == client);
            let own: Vec<u64> = own.collect();
            for n in &own {
                agent.begin_call(*n, "myapp_echo", json!({ "n": n })).await;
            }
            let mut replies = BTreeMap::new();
            while replies.len() < own.len() {
                let (n, reply) = agent.next().await;
                assert!(replies.insert(n, reply).is_none(), "{n} is answered twice");
            }
            // Any other reply would be received before this one.
            agent.begin(0, "ping", json!({})).await;
            assert_eq!(agent.next().await.0, 0, "an answer to nothing");
            replies
        }));
    }
    let mut random = Random::new();
    for round in 0..8 {
        // The moment of the kill.
        tokio::time::sleep(random.duration_below(Duration::from_millis(900))).await;
        match round % 2 {
            0 => server.kill(),
            _ => assert_eq!(server.stop(), Some(0)),
        }
        server.start_again();
    }
    let (mut answered, mut failed) = (0, Vec::new());
    for agent in agents {
        for (n, reply) in agent.await.unwrap() {
            let result = &reply["result"];
            if result["isError"] == true {
                failed.push(result["content"][0]["text"].as_str().unwrap().to_owned());
            } else {
                assert_eq!(result["structuredContent"], json!({ "n": n }));
                answered += 1;
            }
        }
    }
    caller.abort();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(answered, CALLS);

    let log = admin.log(&agent_keys.session_id).await;
    let of = |kind: &'static str| log.iter().filter(move |event| event["type"] == kind);
    let ids = |kind: &'static str| -> BTreeSet<String> {
        let ids = of(kind).map(|event| event["request_id"].to_string());
        ids.collect()
    };
    let asked: BTreeSet<u64> = of("caller_tool_request")
        .map(|event| event["arguments"]["n"].as_u64().unwrap())
        .collect();
    assert_eq!(of("caller_tool_request").count(), asked.len());
    assert_eq!(asked.len() as u64, CALLS);
    assert_eq!(of("caller_tool_response").count() as u64, CALLS);
    assert_eq!(ids("caller_tool_request"), ids("caller_tool_response"));
}
