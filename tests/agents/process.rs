//! A real agent as a process, spoken to in plain JSON-RPC lines.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use oubliette_agent::ToolFilter;
use oubliette_model::Level;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use support::agents::{self, Setup};

/// Far longer than any answer takes, on a busy machine too.
const LINE_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Agent {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    next: u64,
    mode: Option<String>,
    pub(crate) can_resume: bool,
}

/// The updates until a request was answered, and its result.
pub(crate) struct Answer {
    pub(crate) updates: Vec<Value>,
    pub(crate) result: Value,
}

impl Agent {
    /// Starts an agent that reaches nothing but loopback.
    pub(crate) fn start(name: &str, setup: &Setup, home: &Path) -> Self {
        let row = agents::row(name);
        let program = row.package.unwrap().program;
        let program = agents::directory(name).join("bin").join(program);
        let key = setup
            .credential
            .as_ref()
            .map(|(kind, _)| &row.credentials[*kind]);
        let closed_proxy = "http://127.0.0.1:9";
        let mut child = Command::new(program)
            .args(&row.argv[1..])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home)
            .env("HTTP_PROXY", closed_proxy)
            .env("HTTPS_PROXY", closed_proxy)
            .env("NO_PROXY", "127.0.0.1,localhost")
            .envs(row.environment(Level::High, &ToolFilter::default()))
            .envs(setup.env.iter().map(|(name, value)| (name, value)))
            .envs(key.map(|variable| (variable, agents::KEY)))
            .current_dir(home)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take().unwrap();
        let mut agent = Self {
            child,
            stdin,
            lines,
            next: 0,
            mode: row.mode(Level::High, &ToolFilter::default()).0,
            can_resume: false,
        };
        let params = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        let answer = agent.call("initialize", params);
        assert_eq!(answer.result["protocolVersion"], 1);
        let capabilities = &answer.result["agentCapabilities"]["sessionCapabilities"];
        agent.can_resume = capabilities["resume"].is_object();
        if let Some(method) = row.auth_method.filter(|_| key.is_some()) {
            agent.call("authenticate", json!({ "methodId": method }));
        }
        agent
    }

    /// Sends a request and reads until its answer, which must be a result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Answer {
        let id = self.send(method, params);
        self.answer(id)
    }

    /// Sets the mode in which it asks nothing.
    pub(crate) fn set_mode(&mut self, session: &str) {
        if let Some(mode) = self.mode.clone() {
            let params = json!({ "sessionId": session, "modeId": mode });
            self.call("session/set_mode", params);
        }
    }

    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> Answer {
        let id = self.send_prompt(session, text);
        self.answer(id)
    }

    pub(crate) fn send_prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        let params = json!({ "sessionId": session, "prompt": prompt });
        self.send("session/prompt", params)
    }

    pub(crate) fn cancel(&mut self, session: &str) {
        let params = json!({ "sessionId": session });
        let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params });
        writeln!(self.stdin, "{cancel}").unwrap();
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let id = self.next;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        writeln!(self.stdin, "{request}").unwrap();
        id
    }

    /// Reads until the answer to a request, which must be a result.
    pub(crate) fn answer(&mut self, id: u64) -> Answer {
        let mut updates = Vec::new();
        loop {
            let line = self.lines.recv_timeout(LINE_TIMEOUT);
            let line = line.unwrap_or_else(|error| panic!("no answer to request {id}: {error}"));
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id && message.get("method").is_none() {
                let result = message.get("result").cloned();
                let result = result.unwrap_or_else(|| panic!("a request failed: {message}"));
                return Answer { updates, result };
            }
            assert_ne!(message["method"], "session/request_permission", "{message}");
            updates.push(message["params"]["update"].clone());
        }
    }

    /// `kill -9`, and for all it started.
    pub(crate) fn kill(&mut self) {
        let group = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Answer {
    /// The text of the turn.
    pub(crate) fn text(&self) -> String {
        let chunks = self
            .updates
            .iter()
            .filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        chunks
            .filter_map(|update| update["content"]["text"].as_str())
            .collect()
    }

    /// Whether a tool call was reported with this status.
    pub(crate) fn has_call(&self, status: &str) -> bool {
        self.updates.iter().any(|update| {
            update["sessionUpdate"] == "tool_call_update" && update["status"] == status
        })
    }
}
