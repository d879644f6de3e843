//! Lines that a container sends to its relay socket: none of them may break the connection, and a valid
//! request after them gets its reply.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oubliette_engine::{Engine, NewToken, RelayListeners, Settings};
use oubliette_model::{ApiKey, ProjectId, ProjectSettings, Scope, SessionId, Status, WorkspaceId};
use oubliette_runtime::ContainerId;
use oubliette_server::RelayServer;
use oubliette_store::sqlite::Sqlite;
use oubliette_store::{
    NewSession, Project, Session, SessionMessage, SessionStep, SessionTreeLimits, Store,
    TokenStore, ToolDeclaration,
};
use serde_json::{Value, json};
use support::Random;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::{RunResult, Target, message_kind, mutate};

const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
const CONTAINER_ID: &str = "fuzzed";
const LAST_REQUEST_ID: &str = "last";

const WORDS: [&str; 32] = [
    "\n",
    "\r\n",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "-1",
    "1e999",
    "\\u0000",
    "\\ud800",
    "\"id\":",
    "\"method\":",
    "\"params\":",
    "\"jsonrpc\":\"2.0\"",
    "attach",
    "cancel",
    "caller_tool",
    "session_message",
    "session_events",
    "session_end",
    "config_limits",
    "oubliette_tools",
    "oubliette_call_tool",
    "supervise",
    "stream",
    "call_id",
    "arguments",
];

const PROJECT_ID: Uuid = Uuid::from_u128(1);

pub(crate) struct Frames {
    runtime: Runtime,
    relay: RelayServer,
    container: ContainerId,
    /// Placeholders in the corpus, and the secrets of this run that replace them.
    placeholders: [(&'static str, String); 3],
    _engine: Engine,
    _home: TempDir,
}

impl Frames {
    pub(crate) fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let home = tempfile::tempdir().unwrap();
        let key = ApiKey::from_random([7; 32]);
        let reader = NewToken::generate("reader", Scope::Read, Timestamp::now(), None).unwrap();
        let container = ContainerId::new(CONTAINER_ID).unwrap();
        let (engine, relay, session) = runtime.block_on(async {
            let store = Arc::new(Sqlite::open(&home.path().join("oubliette.db")).unwrap());
            let mut settings = Settings::defaults(home.path());
            // No caller responds, so calls of its tools must fail at once.
            settings.caller_tools.presence_seconds = 0;
            settings.caller_tools.grace_seconds = 0;
            let no_runtime = std::future::ready(Err("there are no containers".to_owned()));
            let engine = Engine::start(store.clone(), settings, no_runtime)
                .await
                .unwrap();
            let relay = RelayServer::new(engine.clone());
            relay.open(&container, None).await.unwrap();
            let added = store.add_token(&reader.token, reader.key.hash(), None);
            assert!(added.await.unwrap());
            let session = add_session(&*store, &key).await;
            let project = home.path().join("projects").join(PROJECT_ID.to_string());
            for directory in ["workspace", "workspaces"] {
                std::fs::create_dir_all(project.join(directory)).unwrap();
            }
            (engine, relay, session)
        });
        Self {
            runtime,
            relay,
            container,
            placeholders: [
                ("@SESSION_KEY@", key.reveal().to_owned()),
                ("@SESSION@", session.to_string()),
                ("@KEY@", reader.key.reveal().to_owned()),
            ],
            _engine: engine,
            _home: home,
        }
    }
}

/// Stores a session that has a running agent and a caller's tools.
async fn add_session(store: &dyn Store, key: &ApiKey) -> SessionId {
    let now = Timestamp::now();
    let project = Project {
        id: ProjectId::new(PROJECT_ID),
        name: "fuzzed".parse().unwrap(),
        revision: 1,
        settings: ProjectSettings::default(),
        created_at: now,
        updated_at: now,
    };
    store.reserve_project(&project).await.unwrap();
    assert!(store.confirm_project(project.id, None).await.unwrap());
    let id = SessionId::new(Uuid::from_u128(2));
    let session = Session::new(id, project.id, WorkspaceId::default(), "demo", now);
    let schema = json!({ "type": "object", "properties": { "message": { "type": "string" } } });
    let tools = json!([{ "name": "send", "schema": schema }, { "name": "any" }]);
    let message = SessionMessage {
        id: 0,
        text: "go".to_owned(),
        attachments: Vec::new(),
        declaration: Some(ToolDeclaration {
            caller_id: "app".to_owned(),
            tools: tools.to_string(),
            token_id: oubliette_model::TokenId::new(Uuid::from_u128(3)),
        }),
        change_id: None,
        sender_scope: None,
        wait_id: None,
        created_at: now,
    };
    let new = NewSession {
        session,
        message: Some(message),
        join: None,
        call: None,
        run: None,
        events: Vec::new(),
        limits: SessionTreeLimits {
            depth: 3,
            sessions: 50,
            cost_usd: 1.0,
            spawns_per_minute: 10,
        },
    };
    store.spawn_session(&new, None).await.unwrap();
    let live = json!({
        "process_id": "1", "container": CONTAINER_ID, "boot_id": "1", "ready": true, "stdout": 0,
        "stdin": 0, "next_id": 1, "turn": null,
    });
    let step = SessionStep {
        at: now,
        status: Some(Status::Running),
        key: Some(key.hash()),
        live: Some(Some(live.to_string())),
        ..SessionStep::default()
    };
    store.commit_step(id, step).await.unwrap();
    id
}

impl Target for Frames {
    fn run(&mut self, input: &[u8], random: &mut Random) -> RunResult {
        let mut text = input.to_vec();
        for (placeholder, secret) in &self.placeholders {
            text = replace_all(&text, placeholder.as_bytes(), secret.as_bytes());
        }
        let last = json!({ "id": LAST_REQUEST_ID, "method": "nothing" });
        text.extend(format!("\n{last}\n").into_bytes());
        let pieces = 1 + random.below(4) as usize;
        let size = text.len() / pieces + 1;
        let (near, far) = tokio::io::duplex(1 << 16);
        let Self {
            runtime,
            relay,
            container,
            ..
        } = self;
        runtime.block_on(async {
            relay.admit(container, Box::new(far));
            let (reader, mut writer) = tokio::io::split(near);
            let writing = async {
                for piece in text.chunks(size) {
                    writer
                        .write_all(piece)
                        .await
                        .map_err(|_| "the server closed the connection".to_owned())?;
                }
                Ok(())
            };
            let reading = async {
                let mut kinds = Vec::new();
                let mut lines = BufReader::new(reader).lines();
                loop {
                    let received = lines.next_line().await.ok().flatten();
                    let line =
                        received.ok_or_else(|| "the server closed the connection".to_owned())?;
                    let message: Value = serde_json::from_str(&line)
                        .map_err(|error| format!("a reply is not JSON: {error}"))?;
                    let error = &message["error"];
                    if message["id"] == LAST_REQUEST_ID {
                        return if error["code"] == -32601 {
                            Ok(kinds)
                        } else {
                            Err(format!("wrong reply to the last request: {message}"))
                        };
                    }
                    let text = error["message"].as_str().unwrap_or("a result");
                    if error["code"] == -32000 && text.starts_with("an internal ") {
                        return Err(format!("internal error: {message}"));
                    }
                    kinds.push(format!("{} {}", error["code"], message_kind(text)));
                }
            };
            let both = async { tokio::try_join!(writing, reading) };
            match tokio::time::timeout(REPLY_TIMEOUT, both).await {
                // A connection that opens a stream the server has not requested is closed.
                Ok(Err(_)) if opens_a_stream(&text) => Ok(vec!["a stream".to_owned()]),
                Ok(done) => done.map(|((), kinds)| kinds),
                Err(_) => Err(format!(
                    "the last request has no reply after {REPLY_TIMEOUT:?}"
                )),
            }
        })
    }

    fn mutate(&self, inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
        mutate::mutate_bytes(inputs, &WORDS, random)
    }
}

fn opens_a_stream(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n');
    let is_stream = |line: &[u8]| {
        let message: Option<Value> = serde_json::from_slice(line).ok();
        message.is_some_and(|message| message["method"] == "stream")
    };
    lines.any(is_stream)
}

fn replace_all(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(from) {
            replaced.extend(to);
            at += from.len();
        } else {
            replaced.push(text[at]);
            at += 1;
        }
    }
    replaced
}
