//! What comes in through a container's relay socket: every line gets its answer or none, the connection
//! goes on, and a request after all that is answered as if nothing had been.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oubliette_engine::{Doors, Engine, Minted, Settings};
use oubliette_model::{ApiKey, ProjectId, ProjectSettings, Scope, SessionId, Status, WorkspaceId};
use oubliette_runtime::ContainerId;
use oubliette_server::{Doorkeeper, Relay};
use oubliette_store::sqlite::Sqlite;
use oubliette_store::{
    Declaration, Message, NewSession, Project, Session, Step, Store, Tokens, TreeLimits,
};
use serde_json::{Value, json};
use support::Random;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{Outcome, Target, kind_of, mutate};

const LONGEST: Duration = Duration::from_secs(20);
const CONTAINER: &str = "fuzzed";
const LAST: &str = "the last of all";

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

pub(crate) struct Frames {
    runtime: Runtime,
    door: Doorkeeper,
    container: ContainerId,
    /// What stands for the secrets of this run in the corpus, and the secrets.
    names: [(&'static str, String); 3],
    _engine: Engine,
    _home: TempDir,
}

impl Frames {
    pub(crate) fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let home = tempfile::tempdir().unwrap();
        let key = ApiKey::from_random([7; 32]);
        let reader = Minted::draw("reader", Scope::Read, Timestamp::now(), None).unwrap();
        let container = ContainerId::new(CONTAINER).unwrap();
        let (engine, door, session) = runtime.block_on(async {
            let store = Arc::new(Sqlite::open(&home.path().join("oubliette.db")).unwrap());
            let mut settings = Settings::defaults(home.path());
            // Nobody is there to answer, and nobody waits for it.
            settings.caller_tools.presence_seconds = 0;
            settings.caller_tools.grace_seconds = 0;
            let nothing = std::future::ready(Err("there are no containers".to_owned()));
            let engine = Engine::start(store.clone(), settings, nothing)
                .await
                .unwrap();
            let relay = Relay::new(engine.clone(), CancellationToken::new());
            let door = Doorkeeper(relay);
            door.open(&container, None).await.unwrap();
            let added = store.add_token(&reader.token, reader.key.hash(), None);
            assert!(added.await.unwrap());
            (engine, door, session(&*store, &key).await)
        });
        Self {
            runtime,
            door,
            container,
            names: [
                ("@SESSION_KEY@", key.reveal().to_owned()),
                ("@SESSION@", session.to_string()),
                ("@KEY@", reader.key.reveal().to_owned()),
            ],
            _engine: engine,
            _home: home,
        }
    }
}

/// A session with an agent, as far as the store knows, and with a caller's tool.
async fn session(store: &dyn Store, key: &ApiKey) -> SessionId {
    let now = Timestamp::now();
    let project = Project {
        id: ProjectId::new(Uuid::from_u128(1)),
        name: "fuzzed".parse().unwrap(),
        revision: 1,
        settings: ProjectSettings::default(),
        created_at: now,
        updated_at: now,
    };
    store.reserve(&project).await.unwrap();
    assert!(store.confirm(project.id, None).await.unwrap());
    let id = SessionId::new(Uuid::from_u128(2));
    let session = Session::new(id, project.id, WorkspaceId::default_one(), "demo", now);
    let schema = json!({ "type": "object", "properties": { "message": { "type": "string" } } });
    let tools = json!([{ "name": "send", "schema": schema }, { "name": "any" }]);
    let message = Message {
        id: 0,
        text: "go".to_owned(),
        attachments: Vec::new(),
        declaration: Some(Declaration {
            caller_id: "app".to_owned(),
            tools: tools.to_string(),
            by: oubliette_model::TokenId::new(Uuid::from_u128(3)),
        }),
        change_id: None,
        created_at: now,
    };
    let new = NewSession {
        session,
        message: Some(message),
        join: false,
        call: None,
        run: None,
        limits: TreeLimits {
            depth: 3,
            sessions: 50,
            cost_usd: 1.0,
            spawns_per_minute: 10,
        },
    };
    store.spawn_session(&new, None).await.unwrap();
    let live = json!({
        "process_id": "1", "container": CONTAINER, "boot_id": "1", "ready": true, "stdout": 0,
        "stdin": 0, "next_id": 1, "turn": null,
    });
    let step = Step {
        at: now,
        status: Some(Status::Running),
        key: Some(key.hash()),
        live: Some(Some(live.to_string())),
        ..Step::default()
    };
    store.step(id, step).await.unwrap();
    id
}

impl Target for Frames {
    fn feed(&mut self, input: &[u8], random: &mut Random) -> Outcome {
        let mut text = input.to_vec();
        for (name, secret) in &self.names {
            text = replaced(&text, name.as_bytes(), secret.as_bytes());
        }
        let last = json!({ "id": LAST, "method": "nothing" });
        text.extend(format!("\n{last}\n").into_bytes());
        let pieces = 1 + random.below(4) as usize;
        let size = text.len() / pieces + 1;
        let (near, far) = tokio::io::duplex(1 << 16);
        let Self {
            runtime,
            door,
            container,
            ..
        } = self;
        runtime.block_on(async {
            door.admit(container, Box::new(far));
            let (reader, mut writer) = tokio::io::split(near);
            let writing = async {
                for piece in text.chunks(size) {
                    writer
                        .write_all(piece)
                        .await
                        .map_err(|_| "it hung up".to_owned())?;
                }
                Ok(())
            };
            let reading = async {
                let mut kinds = Vec::new();
                let mut lines = BufReader::new(reader).lines();
                loop {
                    let line = lines.next_line().await.ok().flatten();
                    let line = line.ok_or_else(|| "it hung up".to_owned())?;
                    let message: Value = serde_json::from_str(&line)
                        .map_err(|error| format!("it answered no JSON: {error}"))?;
                    let error = &message["error"];
                    if message["id"] == LAST {
                        return match error["code"].as_i64() {
                            Some(-32601) => Ok(kinds),
                            _ => Err(format!("it answered {message}")),
                        };
                    }
                    if error["code"] == -32000 && error["message"] == "internal error" {
                        return Err(format!("it failed: {message}"));
                    }
                    let what = error["message"].as_str().unwrap_or("a result");
                    kinds.push(format!("{} {}", error["code"], kind_of(what)));
                }
            };
            let both = async { tokio::try_join!(writing, reading) };
            match tokio::time::timeout(LONGEST, both).await {
                // Whoever opens a stream that nobody has asked for has no more lines to say.
                Ok(Err(_)) if opens_a_stream(&text) => Ok(vec!["a stream".to_owned()]),
                Ok(done) => done.map(|((), kinds)| kinds),
                Err(_) => Err(format!("the last request has no answer after {LONGEST:?}")),
            }
        })
    }

    fn mutate(&self, inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
        mutate::bytes(inputs, &WORDS, random)
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

fn replaced(text: &[u8], name: &[u8], with: &[u8]) -> Vec<u8> {
    let mut made = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match text[at..].starts_with(name) {
            true => {
                made.extend(with);
                at += name.len();
            }
            false => {
                made.push(text[at]);
                at += 1;
            }
        }
    }
    made
}
