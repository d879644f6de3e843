//! Events of a session that the server pushes: to clients with MCP sessions on their stream, to the others
//! by subscription and on the stream of a call.

use std::time::Duration;

use serde_json::{Value, json};
use support::{Legacy, Server, ServerOptions};

fn server() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

/// The messages of an event stream until one is as wanted.
pub(crate) async fn until(
    stream: &mut reqwest::Response,
    wanted: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let mut messages = Vec::new();
    let mut text = String::new();
    let reading = async {
        loop {
            while let Some(end) = text.find('\n') {
                let line: String = text.drain(..=end).collect();
                let Some(data) = line.trim().strip_prefix("data:") else {
                    continue;
                };
                let Ok(message) = serde_json::from_str::<Value>(data.trim()) else {
                    continue;
                };
                messages.push(message);
                if wanted(messages.last().unwrap()) {
                    return;
                }
            }
            let Some(chunk) = stream.chunk().await.unwrap() else {
                return;
            };
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), reading)
        .await
        .is_err()
    {
        panic!("the awaited message did not arrive: {messages:#?}");
    }
    messages
}

#[test(needs(sandbox))]
async fn the_owner_gets_every_event_on_the_stream_of_its_mcp_session() {
    let server = server();
    let admin = server.admin();
    let project = admin.project("one").await;
    let client = Legacy::connect(server.url(), &server.admin_key()).await;
    let mut stream = client.stream().await;
    let parameters =
        json!({ "project_id": project, "prompt": "/say Hello.\n/sh echo hi\n/garbage x" });
    let spawned = client.call("session_spawn", parameters).await;
    let session = spawned.ok()["session_id"].as_str().unwrap().to_owned();
    let idle = |message: &Value| message["params"]["data"]["status"] == "idle";
    let messages = until(&mut stream, idle).await;
    let pushed: Vec<&Value> = messages
        .iter()
        .filter(|message| message["method"] == "notifications/message")
        .map(|message| &message["params"])
        .collect();
    assert!(
        pushed
            .iter()
            .all(|p| p["logger"] == "oubliette.session" && p["level"] == "info")
    );
    let pushed: Vec<&Value> = pushed.iter().map(|params| &params["data"]).collect();
    let log = admin.log(&session).await;
    let expected: Vec<&Value> = log
        .iter()
        .skip(1)
        .filter(|event| event["type"] != "delta" && event["type"] != "log")
        .collect();
    assert_eq!(pushed, expected, "the same events, once, in order");

    // Another MCP session of the owner that names it takes over.
    let other = Legacy::connect(server.url(), &server.admin_key()).await;
    let mut elsewhere = other.stream().await;
    let message = json!({ "session_id": session, "prompt": "/say Again." });
    other.call("session_message", message).await.ok();
    let messages = until(&mut elsewhere, |m| {
        m["params"]["data"]["type"] == "completion"
    })
    .await;
    assert!(
        messages
            .iter()
            .any(|m| m["params"]["data"]["text"] == "Again.")
    );

    // A client that asked for warnings only gets no events of level `info`.
    let quiet = Legacy::connect(server.url(), &server.admin_key()).await;
    let mut silence = quiet.stream().await;
    let set = quiet
        .send("logging/setLevel", json!({ "level": "warning" }))
        .await;
    assert!(set.body["error"].is_null(), "{}", set.text);
    let message = json!({ "session_id": session, "prompt": "/say Once more." });
    quiet.call("session_message", message).await.ok();
    admin.turn(&session, 3).await;
    let reading_to_the_end = tokio::time::timeout(Duration::from_millis(500), async {
        loop {
            let chunk = silence.chunk().await.unwrap().expect("the stream ended");
            let text = String::from_utf8_lossy(&chunk).into_owned();
            assert!(!text.contains("notifications/message"), "{text}");
        }
    });
    assert!(reading_to_the_end.await.is_err());
}

#[test(needs(sandbox))]
async fn only_the_owner_gets_events() {
    let server = server();
    let admin = server.admin();
    let project = admin.project("one").await;
    let owner = Legacy::connect(server.url(), &server.admin_key()).await;
    let mut own_stream = owner.stream().await;
    // The agent speaks when both streams are open.
    let prompt = "/sh until test -e speak; do sleep 0.01; done\n/say Secret words.";
    let spawn = json!({ "project_id": project, "prompt": prompt });
    let spawned = owner.call("session_spawn", spawn).await;
    let session = spawned.ok()["session_id"].as_str().unwrap().to_owned();
    let other_key = admin.token("write").await;
    let client = Legacy::connect(server.url(), &other_key).await;
    let mut stream = client.stream().await;
    client
        .call("session_get", json!({ "session_id": session }))
        .await
        .ok();
    std::fs::write(server.workspace(&project).join("speak"), "").unwrap();
    let is_secret = |message: &Value| message["params"]["data"]["text"] == "Secret words.";
    let pushed = until(&mut own_stream, is_secret).await;
    assert!(pushed.last().is_some_and(is_secret), "{pushed:#?}");
    admin.turn(&session, 1).await;
    let reading_to_the_end = tokio::time::timeout(Duration::from_millis(500), async {
        loop {
            let chunk = stream.chunk().await.unwrap().expect("the stream ended");
            assert!(!String::from_utf8_lossy(&chunk).contains("Secret"));
        }
    });
    assert!(reading_to_the_end.await.is_err());
}

#[test(needs(sandbox))]
async fn a_subscription_notifies_of_new_events_and_ends_with_its_token() {
    let server = server();
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say one").await;
    admin.turn(&session, 1).await;
    let uri = format!("oubliette://sessions/{session}/events");
    let key = admin.token(&format!("project:{project}")).await;
    let reader = server.with_key(&key);
    let listen = json!({ "notifications": { "resourceSubscriptions": [uri] } });
    let mut stream = reader
        .request("subscriptions/listen", listen.clone())
        .send()
        .await
        .unwrap();
    assert_eq!(stream.status(), 200);
    let is_update = |message: &Value| message["method"] == "notifications/resources/updated";
    // Once for the events so far, then for new ones.
    let first = until(&mut stream, is_update).await;
    assert_eq!(first.last().unwrap()["params"]["uri"], uri.as_str());
    admin.message(&session, "/say two").await;
    until(&mut stream, is_update).await;
    admin.turn(&session, 2).await;
    let read = reader.send("resources/read", json!({ "uri": uri })).await;
    let text = read.body["result"]["contents"][0]["text"].as_str().unwrap();
    let page: Value = serde_json::from_str(text).unwrap();
    let events = page["events"].as_array().unwrap();
    assert!(
        events
            .iter()
            .any(|e| e["type"] == "completion" && e["text"] == "two")
    );
    let listed = reader.send("resources/list", json!({})).await;
    assert!(listed.text.contains(&uri), "{}", listed.text);

    // A foreign session cannot be read or listened to.
    let other = admin.project("two").await;
    let foreign = server.with_key(&admin.token(&format!("project:{other}")).await);
    let refused = foreign.send("resources/read", json!({ "uri": uri })).await;
    assert!(refused.body["error"].is_object(), "{}", refused.text);
    let mut foreign_stream = foreign
        .request("subscriptions/listen", listen)
        .send()
        .await
        .unwrap();
    let answer = until(&mut foreign_stream, |message| {
        !message["error"].is_null() || !message["result"].is_null()
    })
    .await;
    assert!(!answer.iter().any(is_update), "{answer:?}");

    // The stream ends with the right to it.
    let tokens = admin.call("token_list", json!({})).await.ok().clone();
    let own = tokens["tokens"].as_array().unwrap().iter();
    let mut own = own.filter(|token| token["scope"] == format!("project:{project}"));
    let revoke = json!({ "token_id": own.next().unwrap()["token_id"] });
    admin.call("token_revoke", revoke).await.ok();
    let ended = async { while stream.chunk().await.is_ok_and(|chunk| chunk.is_some()) {} };
    tokio::time::timeout(Duration::from_secs(60), ended)
        .await
        .expect("the stream does not end");
}

#[test(needs(sandbox))]
async fn a_call_with_a_log_level_gets_events_on_the_stream_of_its_answer() {
    let server = server();
    let admin = server.admin();
    let project = admin.project("one").await;
    let session = admin.spawn(&project, "/say one").await;
    admin.turn(&session, 1).await;
    let arguments = json!({ "session_id": session, "wait_seconds": 5 });
    let params = json!({ "name": "session_events", "arguments": arguments,
        "_meta": { "io.modelcontextprotocol/logLevel": "info" } });
    let mut stream = admin.request("tools/call", params).send().await.unwrap();
    let messages = until(&mut stream, |message| !message["result"].is_null()).await;
    let pushed = messages
        .iter()
        .filter(|m| m["method"] == "notifications/message");
    assert!(pushed.count() >= 3, "{messages:#?}");
}
