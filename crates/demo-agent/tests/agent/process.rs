//! A process of the agent, and its output.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Far longer than any step of these tests takes.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Agent {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
    /// Lines that are not messages.
    pub(crate) garbage: Vec<String>,
}

/// The updates of a turn, and the response to its prompt.
pub(crate) struct Turn {
    pub(crate) updates: Vec<Value>,
    pub(crate) response: Value,
}

impl Agent {
    pub(crate) fn start(home: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_oubliette-demo-agent"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        let mut agent = Self {
            child,
            stdin,
            lines,
            next_id: 0,
            garbage: Vec::new(),
        };
        let response = agent.call(
            "initialize",
            json!({ "protocolVersion": 1, "clientCapabilities": {} }),
        );
        assert_eq!(response["result"]["protocolVersion"], 1, "{response}");
        assert_eq!(response["result"]["agentCapabilities"]["loadSession"], true);
        agent
    }

    /// An agent with a session in an empty directory.
    pub(crate) fn ready() -> (Self, String, TempDir) {
        let home = tempfile::tempdir().unwrap();
        let mut agent = Self::start(home.path());
        let session = agent.new_session(home.path(), json!([]));
        (agent, session, home)
    }

    pub(crate) fn new_session(&mut self, directory: &Path, servers: Value) -> String {
        let response = self.call(
            "session/new",
            json!({ "cwd": directory, "mcpServers": servers }),
        );
        let session = response["result"]["sessionId"].as_str();
        session.unwrap_or_else(|| panic!("{response}")).to_owned()
    }

    pub(crate) fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{message}").unwrap();
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// The next message; none at the end of the output.
    pub(crate) fn next(&mut self) -> Option<Value> {
        let deadline = Instant::now() + RECEIVE_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(error) => panic!("the agent writes nothing: {error}"),
            };
            match serde_json::from_str(&line) {
                Ok(message) => return Some(message),
                Err(_) => self.garbage.push(line),
            }
        }
    }

    /// Sends a request and returns its response; updates are dropped.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.finish(id, |_, _| {}).response
    }

    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.request(
            "session/prompt",
            json!({ "sessionId": session, "prompt": prompt }),
        )
    }

    pub(crate) fn turn(&mut self, session: &str, text: &str) -> Turn {
        let id = self.prompt(session, text);
        self.finish(id, |_, _| {})
    }

    /// A turn in which every permission request gets this outcome; the number of requests.
    pub(crate) fn turn_with(
        &mut self,
        session: &str,
        text: &str,
        outcome: &Value,
    ) -> (Turn, usize) {
        let id = self.prompt(session, text);
        let mut asked = 0;
        let turn = self.finish(id, |agent, message| {
            if message["method"] == "session/request_permission" {
                asked += 1;
                let result = json!({ "outcome": outcome });
                agent.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }));
            }
        });
        (turn, asked)
    }

    pub(crate) fn cancel(&mut self, session: &str) {
        let params = json!({ "sessionId": session });
        self.send(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params }));
    }

    /// Reads until the response to a request.
    pub(crate) fn finish(
        &mut self,
        id: u64,
        mut on_message: impl FnMut(&mut Self, &Value),
    ) -> Turn {
        let mut updates = Vec::new();
        loop {
            let message = self.next().expect("the agent ended");
            if message["id"] == id && message.get("method").is_none() {
                return Turn {
                    updates,
                    response: message,
                };
            }
            on_message(self, &message);
            let update = &message["params"]["update"];
            // The list of commands arrives at any time, once for each session.
            let belongs_to_turn = update["sessionUpdate"] != "available_commands_update";
            if message["method"] == "session/update" && belongs_to_turn {
                updates.push(update.clone());
            }
        }
    }

    /// Reads until an update matches, and returns it.
    pub(crate) fn update(&mut self, matches: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.next().expect("the agent ended");
            let update = &message["params"]["update"];
            if message["method"] == "session/update" && matches(update) {
                return update.clone();
            }
        }
    }

    /// Whether the agent writes nothing for 300 ms.
    pub(crate) fn is_silent(&self) -> bool {
        self.lines.recv_timeout(Duration::from_millis(300)) == Err(RecvTimeoutError::Timeout)
    }

    pub(crate) fn close_input(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the exit; the exit code and the standard error.
    pub(crate) fn wait_for_exit(&mut self) -> (Option<i32>, String) {
        while self.next().is_some() {}
        let mut stderr = String::new();
        let mut pipe = self.child.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap().code(), stderr)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Turn {
    pub(crate) fn stop_reason(&self) -> &str {
        self.response["result"]["stopReason"]
            .as_str()
            .unwrap_or_else(|| panic!("no result: {}", self.response))
    }

    pub(crate) fn chunks(&self) -> Vec<&str> {
        self.updates_of("agent_message_chunk")
            .map(|update| update["content"]["text"].as_str().unwrap())
            .collect()
    }

    /// The whole text of the turn.
    pub(crate) fn text(&self) -> String {
        self.chunks().concat()
    }

    pub(crate) fn updates_of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.updates
            .iter()
            .filter(move |update| update["sessionUpdate"] == kind)
    }

    /// The last update of the only tool call of the turn.
    pub(crate) fn call(&self) -> &Value {
        assert_eq!(
            self.updates_of("tool_call").count(),
            1,
            "{:?}",
            self.updates
        );
        self.updates_of("tool_call_update").last().unwrap()
    }
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + RECEIVE_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::yield_now();
    }
}
