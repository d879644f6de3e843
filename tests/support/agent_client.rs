//! The real `oubliette-client`, as an agent starts it: an MCP server on standard input and output.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::relay::AgentKeys;
use crate::{Server, binary};

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// A client of one session, on the host instead of in the container: it only sees the socket.
#[derive(Debug)]
pub struct AgentClient {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// Replies that arrived before the test waited for them, by id.
    pending: HashMap<u64, Value>,
}

impl AgentClient {
    /// Starts a client and initializes the MCP connection as the agent.
    pub async fn start(server: &Server, project: &str, keys: &AgentKeys) -> Self {
        let variables = Self::variables(server, project, keys);
        let mut child = Command::new(binary())
            .arg0("oubliette-client")
            .env_clear()
            .envs(variables.iter().filter_map(|pair| pair.split_once('=')))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut client = Self {
            _child: child,
            input,
            output,
            pending: HashMap::new(),
        };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "agent", "version": "0" },
        });
        client.begin(0, "initialize", params).await;
        client.reply(0).await;
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        client.send(&initialized).await;
        client
    }

    /// The environment of a client of a session, as `NAME=value`.
    pub fn variables(server: &Server, project: &str, keys: &AgentKeys) -> Vec<String> {
        let container = project.replace('-', "");
        let socket = server.home().join("run/c").join(container);
        vec![
            format!("OUBLIETTE_SOCKET={}", socket.join("relay.sock").display()),
            format!("OUBLIETTE_SESSION_ID={}", keys.session_id),
            format!("OUBLIETTE_SESSION_KEY={}", keys.session_key),
        ]
    }

    async fn send(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.input.write_all(line.as_bytes()).await.unwrap();
    }

    /// Sends a request without waiting for its reply.
    pub async fn begin(&mut self, id: u64, method: &str, params: Value) {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(&message).await;
    }

    pub async fn begin_call(&mut self, id: u64, tool: &str, arguments: Value) {
        let params = json!({ "name": tool, "arguments": arguments });
        self.begin(id, "tools/call", params).await;
    }

    /// The next reply to any request: its id and the whole message.
    pub async fn next(&mut self) -> (u64, Value) {
        loop {
            let line = tokio::time::timeout(scaled(WAIT_TIMEOUT), self.output.next_line()).await;
            let line = line.expect("the client sends nothing").unwrap();
            let message: Value = serde_json::from_str(&line.expect("the client ended")).unwrap();
            if let Some(id) = message["id"].as_u64()
                && message["method"].is_null()
            {
                return (id, message);
            }
        }
    }

    pub async fn reply(&mut self, id: u64) -> Value {
        loop {
            if let Some(reply) = self.pending.remove(&id) {
                return reply;
            }
            let (received, reply) = self.next().await;
            self.pending.insert(received, reply);
        }
    }
}
