//! A raw client of a container's relay socket, and an agent that records its keys.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::Server;

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Configuration of an agent `recorder`: the demo agent, with its input recorded, including its keys.
pub const RECORDER_CONFIG: &str = "[agents.recorder]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"tee -a \
     /workspace/.agent-input | /usr/local/bin/oubliette-client demo-agent\"]\n";

/// The id and keys that a session's client is started with.
#[derive(Debug, Clone)]
pub struct AgentKeys {
    pub session_id: String,
    pub session_key: String,
    pub api_key: Option<String>,
}

/// The keys that the agents `recorder` of a project were started with, in order.
pub fn recorded_keys(server: &Server, project: &str) -> Vec<AgentKeys> {
    let input = std::fs::read_to_string(server.workspace(project).join(".agent-input"));
    let input = input.unwrap_or_default();
    let keys = input.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let servers = message["params"]["mcpServers"].as_array()?;
        let ours = servers.iter().find(|one| one["name"] == "oubliette")?;
        let variable = |name: &str| {
            let mut env = ours["env"].as_array()?.iter();
            let found = env.rfind(|one| one["name"] == name)?;
            Some(found["value"].as_str()?.to_owned())
        };
        Some(AgentKeys {
            session_id: variable("OUBLIETTE_SESSION_ID")?,
            session_key: variable("OUBLIETTE_SESSION_KEY")?,
            api_key: variable("OUBLIETTE_API_KEY"),
        })
    });
    keys.collect()
}

/// The keys that one session's client was started with last.
pub fn keys_of_session(server: &Server, project: &str, session: &str) -> AgentKeys {
    let all = recorded_keys(server, project).into_iter();
    let mut own = all.filter(|keys| keys.session_id == session);
    own.next_back().expect("the agent recorded no keys")
}

/// A connection to a container's relay.
#[derive(Debug)]
pub struct Relay {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    /// Messages that arrived while the test waited for another one.
    pending: VecDeque<Value>,
}

impl Relay {
    /// Connects as a process in the container of a project does.
    pub async fn connect(server: &Server, project: &str) -> Self {
        let container = project.replace('-', "");
        let path = server.home().join("run/c").join(container);
        let deadline = Instant::now() + scaled(WAIT_TIMEOUT);
        let stream = loop {
            match UnixStream::connect(path.join("relay.sock")).await {
                Ok(stream) => break stream,
                // A server that has just started has not opened its relay sockets yet.
                Err(_) if Instant::now() < deadline => crate::pause().await,
                Err(error) => panic!("cannot connect to the relay: {error}"),
            }
        };
        let (reader, writer) = stream.into_split();
        Self {
            reader: BufReader::new(reader),
            writer,
            pending: VecDeque::new(),
        }
    }

    /// Connects and attaches.
    pub async fn attached(server: &Server, project: &str, keys: &AgentKeys) -> Self {
        let mut relay = Self::connect(server, project).await;
        let reply = relay.attach(&keys.session_id, &keys.session_key).await;
        assert_eq!(reply["result"]["session_id"], *keys.session_id, "{reply}");
        let config = relay.next().await.unwrap();
        assert_eq!(config["method"], "caller_tools_config", "{config}");
        relay
    }

    pub async fn attach(&mut self, session: &str, key: &str) -> Value {
        let params = json!({ "session_id": session, "session_key": key });
        self.request("attach", params).await
    }

    /// Closes the half that is written to.
    pub async fn shutdown_write(&mut self) {
        self.writer.shutdown().await.unwrap();
    }

    /// Sends bytes as they are.
    pub async fn raw(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    pub async fn send(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    /// Sends a request without waiting for its reply.
    pub async fn begin(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let id: Value = id.into();
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(&message).await;
    }

    /// The next message; none if the connection is over.
    pub async fn next(&mut self) -> Option<Value> {
        if let Some(message) = self.pending.pop_front() {
            return Some(message);
        }
        self.read().await
    }

    async fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        let reading = self.reader.read_line(&mut line);
        let read = tokio::time::timeout(scaled(WAIT_TIMEOUT), reading).await;
        match read.expect("the relay sends nothing") {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    /// The reply to a request that was begun.
    pub async fn reply(&mut self, id: impl Into<Value>) -> Value {
        let id: Value = id.into();
        if let Some(at) = self.pending.iter().position(|message| message["id"] == id) {
            return self.pending.remove(at).unwrap();
        }
        loop {
            let message = self.read().await.expect("the connection is over");
            if message["id"] == id && message["method"].is_null() {
                return message;
            }
            self.pending.push_back(message);
        }
    }

    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        self.begin("request", method, params).await;
        self.reply("request").await
    }
}
