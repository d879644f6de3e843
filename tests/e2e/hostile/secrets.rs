//! Secrets do not appear in what is stored, logged or shown.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{Relay, Server, ServerOptions};

use crate::agents::oubliette_tools::{call, project, recorder, server_with_project};

/// The files below a directory that contain a text.
fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_file() {
                let content = std::fs::read(&path).unwrap_or_default();
                if memmem(&content, text.as_bytes()) {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    found
}

fn memmem(content: &[u8], text: &[u8]) -> bool {
    content.windows(text.len()).any(|window| window == text)
}

#[test(needs(sandbox))]
async fn a_key_that_an_agent_creates_is_nowhere_in_the_store() {
    let (mut server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let keys = recorder(&server, &admin, &two, json!({ "agent_scope": "admin" })).await;
    let minted = keys.api_key.clone().unwrap();
    let mut relay = Relay::attached(&server, &two, &keys).await;
    let create = json!({
        "api_key": minted, "tool": "token_create", "call_id": "6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
        "arguments": { "name": "ci", "scope": "read" },
    });
    let made = relay.request("oubliette_call_tool", create.clone()).await;
    let key = made["result"]["structuredContent"]["key"].as_str();
    let key = key.unwrap_or_else(|| panic!("{made}")).to_owned();
    let again = relay.request("oubliette_call_tool", create).await;
    let result = &again["result"]["structuredContent"];
    assert_eq!(result["name"], "ci", "{again}");
    assert!(
        result["key"].as_str().unwrap().contains("shown once"),
        "{again}"
    );
    let listed = call(&mut relay, &key, "project_list", json!({})).await;
    assert_eq!(listed["result"]["isError"], false, "{listed}");

    let store = |server: &Server| -> Vec<String> {
        let names = ["oubliette.db", "oubliette.db-wal", "oubliette.db-shm"];
        let paths = names.map(|name| server.home().join(name));
        let contains =
            |path: &PathBuf| memmem(&std::fs::read(path).unwrap_or_default(), key.as_bytes());
        let found = paths.iter().filter(|path| contains(path));
        found.map(|path| path.display().to_string()).collect()
    };
    assert_eq!(store(&server), Vec::<String>::new());
    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup.tar");
    let saved = support::run_cli(server.home(), &["backup", backup.to_str().unwrap()]).await;
    assert!(saved.status.success(), "{}", support::stderr(&saved));
    let restored = directory.path().join("restored");
    std::fs::create_dir(&restored).unwrap();
    let loaded = support::run_cli(&restored, &["restore", backup.to_str().unwrap()]).await;
    assert!(loaded.status.success(), "{}", support::stderr(&loaded));
    assert!(restored.join("oubliette.db").exists());
    std::fs::remove_dir_all(restored.join("projects")).unwrap();
    assert_eq!(files_with(&restored, &key), Vec::<String>::new());
    server.stop();
    assert_eq!(store(&server), Vec::<String>::new());
    let found = files_with(&server.home().join("run"), &key);
    assert_eq!(found, Vec::<String>::new());
}

const SECRETS: [&str; 3] = [
    "CANARY correct horse battery staple",
    "CANARY \"quoted\" and \\ and \ttab",
    "CANARY ünïcödé ✓ 秘密の鍵",
];

/// An agent in the shell that sends updates as they are, one per line of a file. At a null it pauses until
/// the server has stored what it has.
fn scripted_agent(updates: &[Value], stop: &Value) -> String {
    let line = |update: &Value| {
        let params = json!({ "sessionId": "s", "update": update });
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }).to_string()
    };
    let mut script = String::from(
        "while read -r line; do\nid=$(printf '%s' \"$line\" | sed -n 's/.*\"id\":\\([0-9]*\\).*/\\1/p')\n\
         case \"$line\" in\n\
         *'\"initialize\"'*) printf '%s\\n' '{\"jsonrpc\":\"2.0\",\"id\":'$id',\"result\":{\"protocolVersion\":1,\"agentCapabilities\":{}}}';;\n\
         *'\"session/new\"'*) printf '%s\\n' '{\"jsonrpc\":\"2.0\",\"id\":'$id',\"result\":{\"sessionId\":\"s\"}}';;\n\
         *'\"session/prompt\"'*)\ncat <<'UPDATES'\n",
    );
    for update in updates {
        if update.is_null() {
            script.push_str("UPDATES\nsleep 1\ncat <<'UPDATES'");
        } else {
            script.push_str(&line(update));
        }
        script.push('\n');
    }
    script.push_str("UPDATES\nprintf '%s\\n' '{\"jsonrpc\":\"2.0\",\"id\":'$id',");
    script.push_str(&stop.to_string()[1..]);
    script.push_str("';;\nesac\ndone\n");
    let args = json!(["-c", script]);
    format!("[agents.scripted]\ncommand = \"/bin/sh\"\nargs = {args}\n")
}

/// Every way in which an agent can show a text, cut after each of its characters.
fn updates_that_show(secret: &str) -> Vec<Value> {
    let text = |kind: &str, text: &str| json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } });
    let mut updates = Vec::new();
    for kind in ["agent_thought_chunk", "agent_message_chunk"] {
        updates.push(text(kind, "it is "));
        let middle = secret.chars().count() / 2;
        for (n, c) in secret.chars().enumerate() {
            if n == middle {
                updates.push(Value::Null);
            }
            updates.push(text(kind, &c.to_string()));
        }
        updates.push(text(kind, " indeed"));
    }
    updates.push(json!({ "sessionUpdate": "plan", "entries": [
        { "content": format!("say {secret}"), "priority": "high", "status": "pending" }] }));
    let call = |status: &str| {
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
        "title": format!("echo {secret}"), "kind": "execute", "status": status,
        "rawInput": { "command": format!("echo {secret}"), (secret): 1 } })
    };
    updates.push(call("in_progress"));
    for c in secret.chars() {
        updates.push(
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1",
            "_meta": { "terminal_output": { "data": c.to_string() } } }),
        );
    }
    updates.push(call("completed"));
    let content =
        |text: &str| json!({ "type": "content", "content": { "type": "text", "text": text } });
    let (one, two) = secret.split_at(secret.floor_char_boundary(secret.len() / 2));
    updates.push(
        json!({ "sessionUpdate": "tool_call", "toolCallId": "2", "title": "cat",
        "status": "failed", "content": [content(secret), content(one), content(two)] }),
    );
    updates.push(json!({ "sessionUpdate": secret }));
    updates
}

#[test(needs(sandbox))]
async fn a_secret_is_hidden_in_every_event_however_it_is_cut_and_escaped() {
    for secret in SECRETS {
        let stop = json!({ "error": { "code": -32000, "message": format!("no {secret}") } });
        let config = scripted_agent(&updates_that_show(secret), &stop);
        let server = Server::start_with(ServerOptions {
            config: format!("runtime = \"sandbox\"\n{config}"),
            ..ServerOptions::default()
        });
        let admin = server.admin();
        let env = json!({ "THE_SECRET": secret, "NODE_ENV": "production" });
        let one = project(&admin, "one", json!({ "env": env, "agent": "scripted" })).await;
        let session = admin.spawn(&one, "say production").await;
        let completion = admin.turn(&session, 1).await;
        assert!(completion["error"].as_str().is_some(), "{completion}");
        let log = admin.log(&session).await;
        let kinds: Vec<&str> = log.iter().filter_map(|it| it["type"].as_str()).collect();
        for kind in [
            "delta",
            "message",
            "thought",
            "plan",
            "tool_call",
            "tool_result",
            "log",
        ] {
            assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
        }
        // What was stored in the middle of the secret shows no part of it.
        for is_thought in [false, true] {
            let deltas = log.iter().filter(|event| {
                event["type"] == "delta" && (event["thought"] == true) == is_thought
            });
            let streamed: String = deltas.filter_map(|event| event["text"].as_str()).collect();
            assert!(streamed.starts_with("it is "), "{streamed:?}");
            assert!(
                "it is [redacted] indeed".starts_with(&streamed),
                "{streamed:?}"
            );
        }
        for event in &log {
            // As text, however it is escaped.
            let shown = texts(event).join("\n");
            assert!(!shown.contains(secret), "{event}");
        }
        let message = log.iter().find(|event| event["type"] == "message").unwrap();
        assert_eq!(message["text"], "it is [redacted] indeed");
        let prompt = log.iter().find(|event| event["type"] == "prompt").unwrap();
        assert_eq!(prompt["text"], "say production");
        let got = admin.session(&session).await;
        assert!(!texts(&got).join("\n").contains(secret), "{got}");
    }
}

/// Checks that a value shows a secret nowhere, and that something was removed from it.
fn assert_redacted(value: &Value, secret: &str) {
    let shown = texts(value).join("\n");
    assert!(!shown.contains(secret), "{value}");
    assert!(shown.contains("[redacted]"), "{value}");
}

#[test(needs(sandbox))]
async fn a_secret_is_hidden_in_what_an_agent_asks_its_callers() {
    let (_server, admin, _) = server_with_project("", json!({})).await;
    for (n, secret) in SECRETS.into_iter().enumerate() {
        let env = json!({ "env": { "THE_SECRET": secret } });
        let two = project(&admin, &format!("p{n}"), env).await;
        let more = json!({ "new_session": true, "agent": "demo", "autonomy": "off" });
        let question = format!("/ask may I say {secret} aloud?");
        let session = admin.spawn_with(&two, &question, more).await;
        let is_request = |event: &Value| event["type"] == "permission_request";
        let log = admin.follow(&session, is_request).await;
        assert_redacted(log.last().unwrap(), secret);
        let waiting = admin.status(&session, "waiting").await;
        assert_eq!(waiting["waiting_for"]["kind"], "permission", "{waiting}");
        let list = json!({ "project_id": two });
        let listed = admin.call("session_list", list).await.ok().clone();
        for shown in [&waiting, &listed] {
            assert!(!texts(shown).join("\n").contains(secret), "{shown}");
        }

        let arguments = json!({ "message": format!("it is {secret} indeed"), (secret): 1 });
        let prompt = format!("/tool myapp_send_notification {arguments}");
        let tool = json!({ "name": "send_notification", "inputSchema": { "type": "object" } });
        let context = json!({ "caller_id": "myapp", "caller_tools": [tool] });
        let more = json!({ "new_session": true, "agent": "demo", "context": context });
        let session = admin.spawn_with(&two, &prompt, more).await;
        let is_request = |event: &Value| event["type"] == "caller_tool_request";
        let log = admin.follow(&session, is_request).await;
        let request = log.last().unwrap();
        let expected = json!({ "message": "it is [redacted] indeed", "[redacted]": 1 });
        assert_eq!(request["arguments"], expected, "{request}");
        assert_redacted(request, secret);
        let page = json!({ "session_id": session, "since_index": request["index"] });
        let page = admin.call("session_events", page).await.ok().clone();
        let seen = admin.session(&session).await;
        let delivered = admin.message(&session, "/say next").await;
        for shown in [&page, &seen, &delivered] {
            let pending = &shown["pending_caller_requests"];
            assert_eq!(pending[0]["arguments"], expected, "{shown}");
            assert!(!texts(shown).join("\n").contains(secret), "{shown}");
        }
        assert_eq!(seen["waiting_for"]["kind"], "caller_tool", "{seen}");
        for shown in admin.log(&session).await {
            // The caller wrote the prompt.
            let is_prompt = shown["type"] == "prompt";
            assert!(
                is_prompt || !texts(&shown).join("\n").contains(secret),
                "{shown}"
            );
        }
    }
}

/// Every string in a value, also the names of fields.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .flat_map(|(name, value)| [vec![name.clone()], texts(value)].concat())
                .collect()
        }
        _ => Vec::new(),
    }
}

#[test(needs(sandbox))]
async fn a_key_that_an_agent_streams_is_hidden_from_readers() {
    let (server, admin, _) = server_with_project("", json!({})).await;
    let two = project(&admin, "two", json!({})).await;
    let create = r#"/tool oubliette_token_create {"name": "ci", "scope": "admin"}"#;
    let more = json!({ "new_session": true, "agent": "demo", "agent_scope": "admin" });
    let session = admin.spawn_with(&two, create, more).await;
    admin.turn(&session, 1).await;
    let reader = server.with_key(&admin.token("read").await);
    let log = reader.log(&session).await;
    let mut shown = String::new();
    for event in &log {
        shown.push_str(&texts(event).join("\n"));
    }
    let deltas = log.iter().filter(|event| event["type"] == "delta");
    let streamed: String = deltas.filter_map(|event| event["text"].as_str()).collect();
    for text in [&shown, &streamed] {
        let keys = text.split("oub_").skip(1);
        for key in keys {
            let length = key.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
            assert!(length.unwrap_or(key.len()) < 20, "{text}");
        }
    }
    assert!(shown.contains("oub_****"), "{shown}");
}

#[test(needs(sandbox))]
async fn ordinary_words_of_the_environment_are_shown_and_marked_values_are_not() {
    let (_server, admin, _) = server_with_project("", json!({})).await;
    let env = json!({
        "NODE_ENV": "production",
        "PLAIN": { "value": "sk-this-is-no-secret-at-all", "secret": false },
        "MARKED": { "value": "ordinary words", "secret": true },
        "DATABASE_URL": "postgres://app:hunter2hunter2@db/app",
        "DEPLOY_TOKEN": "word-by-word",
    });
    let two = project(&admin, "two", json!({ "env": env })).await;
    let said =
        "/say production sk-this-is-no-secret-at-all; ordinary words; hunter2hunter2; word-by-word";
    let session = admin
        .spawn_with(&two, said, json!({ "agent": "demo" }))
        .await;
    let completion = admin.turn(&session, 1).await;
    assert_eq!(
        completion["text"],
        "production sk-this-is-no-secret-at-all; [redacted]; [redacted]; [redacted]"
    );
    let shown = admin.session(&session).await.to_string();
    let got = admin
        .call("project_get", json!({ "project_id": two }))
        .await;
    assert!(!shown.contains("hunter2"), "{shown}");
    let text = &got.text;
    assert!(
        !text.contains("hunter2") && !text.contains("production"),
        "{text}"
    );
    let names = json!([
        "DATABASE_URL",
        "DEPLOY_TOKEN",
        "MARKED",
        "NODE_ENV",
        "PLAIN"
    ]);
    assert_eq!(got.ok()["env_names"], names);
    for (env, expected) in [
        (
            json!({ "A": { "value": "short", "secret": true } }),
            "8 bytes",
        ),
        (json!({ "A": { "secret": true } }), "value"),
        (
            json!({ "A": { "value": "hunter2hunter2", "hidden": true } }),
            "hidden",
        ),
        (
            json!({ "A_KEY": "x".repeat(100 << 10), "B_KEY": "y".repeat(100 << 10),
            "C_KEY": "z".repeat(100 << 10) }),
            "maximum",
        ),
    ] {
        let update = json!({ "project_id": two, "env": env });
        let refused = admin.call("project_update", update).await;
        assert!(refused.sentence().contains(expected), "{}", refused.text);
        assert!(!refused.text.contains("hunter2"), "{}", refused.text);
    }
}

#[test(needs(sandbox))]
async fn a_secret_at_the_border_of_the_kept_stderr_is_hidden() {
    const SECRET: &str = "hunter2-correct-horse-battery";
    let key = format!("oub_{}", "k3y".repeat(14));
    // The last 4096 bytes are kept; they begin inside the secret, or inside the key.
    let script = |shown: &str, cut: usize| {
        let rest = 4096 - (shown.len() - cut);
        format!("printf %s '{shown}' >&2; head -c {rest} /dev/zero | tr '\\0' ' ' >&2; exit 3")
    };
    let mut config = "runtime = \"sandbox\"\n".to_owned();
    for (name, shown) in [("secret", SECRET), ("key", &key)] {
        let args = json!(["-c", script(shown, 1)]);
        config += &format!("[agents.{name}]\ncommand = \"/bin/sh\"\nargs = {args}\n");
    }
    let server = Server::start_with(ServerOptions {
        config,
        ..ServerOptions::default()
    });
    let admin = server.admin();
    let id = project(&admin, "one", json!({ "env": { "API_KEY": SECRET } })).await;
    for (agent, left) in [("secret", &SECRET[1..]), ("key", &key[1..])] {
        let spawn = json!({
            "project_id": id, "prompt": "go", "agent": agent, "new_session": true,
        });
        let session = admin.call("session_spawn", spawn).await.ok()["session_id"].clone();
        let session = session.as_str().unwrap();
        admin.turn(session, 1).await;
        let log = serde_json::to_string(&admin.log(session).await).unwrap();
        assert!(log.contains("exit"), "{log}");
        assert!(!log.contains(left), "{log}");
        assert!(!server.log().contains(left), "{}", server.log());
    }
}
