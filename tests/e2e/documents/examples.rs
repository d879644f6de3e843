//! The JSON examples in the pages for people who build on Oubliette.

use serde_json::{Value, json};
use support::{Relay, Server, ServerOptions};

use super::page::{Piece, pieces};

fn json_of(pieces: &[Piece], word: &str) -> Value {
    let words = format!("json {word}");
    let piece = pieces.iter().find(|(words_of, _)| *words_of == words);
    serde_json::from_str(&piece.unwrap().1).unwrap()
}

fn server() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

#[test(needs(sandbox))]
async fn the_json_of_the_caller_tools_page_is_what_is_sent_and_received() {
    let (server, pieces) = (server(), pieces("docs/caller-tools.md"));
    let admin = server.admin();
    let mut spawn = json_of(&pieces, "spawn");
    spawn["project_id"] = json!(admin.project("shown").await);
    let spawned = admin.call("session_spawn", spawn).await;
    let session = spawned.ok()["session_id"].as_str().unwrap().to_owned();
    let asked = |event: &Value| event["type"] == "caller_tool_request";
    let log = admin.follow(&session, asked).await;
    let (event, shown) = (log.last().unwrap(), json_of(&pieces, "event"));
    let keys = |event: &Value| -> Vec<String> {
        let mut keys: Vec<String> = event.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(event), keys(&shown));
    for key in ["type", "tool", "arguments"] {
        assert_eq!(event[key], shown[key]);
    }
    let mut answer = json_of(&pieces, "answer");
    answer["session_id"] = event["session_id"].clone();
    answer["request_id"] = event["request_id"].clone();
    admin.call("caller_tool_response", answer).await.ok();
    let completion = admin.turn(&session, 1).await;
    assert_eq!(completion["text"], "{\"status\":\"sent\"}");
}

#[test(needs(sandbox))]
async fn the_message_of_the_admin_agents_page_is_answered_on_the_relay_socket() {
    let (server, pieces) = (server(), pieces("docs/admin-agents.md"));
    let admin = server.admin();
    let project = admin.project("boss").await;
    admin.project("made inside").await;
    // The socket is there when the container is.
    let exec = json!({ "project_id": project, "command": "true" });
    admin.call("container_exec", exec).await.ok();
    let mut message = json_of(&pieces, "relay");
    message["params"]["api_key"] = json!(server.admin_key());
    let mut relay = Relay::connect(&server, &project).await;
    relay.send(&message).await;
    let reply = relay.reply(1).await;
    let projects = &reply["result"]["structuredContent"]["projects"];
    assert_eq!(projects.as_array().unwrap().len(), 2, "{reply}");
}
