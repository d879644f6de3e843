//! The examples in the pages for people who build on Oubliette are run, and have the results shown there.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::{Relay, Server, ServerOptions, binary};

/// A piece of code of a page: the words behind its opening fence, and the text.
type Piece = (String, String);

fn page(name: &str) -> Vec<Piece> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let parts: Vec<&str> = text.split("```").collect();
    let code = parts.iter().skip(1).step_by(2);
    code.map(|code| {
        let (words, text) = code.split_once('\n').unwrap();
        (words.to_owned(), text.to_owned())
    })
    .collect()
}

fn json_of(pieces: &[Piece], word: &str) -> Value {
    let words = format!("json {word}");
    let piece = pieces.iter().find(|(words_of, _)| *words_of == words);
    serde_json::from_str(&piece.unwrap().1).unwrap()
}

/// Runs the commands of a page, each with the lines that its output must have.
fn assert_commands_print_shown_output(server: &Server, pieces: &[Piece]) {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(binary(), directory.path().join("oubliette")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", directory.path().display());
    let mut ran = 0;
    for pair in pieces.windows(2) {
        let [(sh, commands), (text, expected)] = pair else {
            unreachable!()
        };
        if sh != "sh" || text != "text" {
            continue;
        }
        let done = Command::new("/bin/sh")
            .args(["-ec", commands])
            .env_clear()
            .env("PATH", &path)
            .env("HOME", server.home())
            .env("OUBLIETTE_HOME", server.home())
            .current_dir(directory.path())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        for line in expected.lines() {
            assert!(output.contains(line), "{commands}{output}{errors}");
        }
        ran += 1;
    }
    assert!(ran > 0);
}

fn server() -> Server {
    Server::start_with(ServerOptions {
        config: "runtime = \"sandbox\"\n".to_owned(),
        ..ServerOptions::default()
    })
}

#[test(needs(sandbox))]
async fn the_examples_of_the_caller_tools_page_work() {
    let (server, pieces) = (server(), page("caller-tools.md"));
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
    tokio::task::spawn_blocking(move || assert_commands_print_shown_output(&server, &pieces))
        .await
        .unwrap();
}

#[test(needs(sandbox))]
async fn the_examples_of_the_admin_agents_page_work() {
    let (server, pieces) = (server(), page("admin-agents.md"));
    let relay = json_of(&pieces, "relay");
    let server = tokio::task::spawn_blocking(move || {
        assert_commands_print_shown_output(&server, &pieces);
        server
    });
    let server = server.await.unwrap();
    let admin = server.admin();
    let all = admin.call("project_list", json!({})).await;
    let mut all = all.ok()["projects"].as_array().unwrap().iter();
    let boss = all.find(|one| one["name"] == "boss").unwrap();
    let project = boss["project_id"].as_str().unwrap();
    let mut message = relay;
    message["params"]["api_key"] = json!(server.admin_key());
    let mut relay = Relay::connect(&server, project).await;
    relay.send(&message).await;
    let reply = relay.reply(1).await;
    let projects = &reply["result"]["structuredContent"]["projects"];
    assert_eq!(projects.as_array().unwrap().len(), 2, "{reply}");
}
