//! A raw client of protocol 2026-07-28: no session, everything in each request.

use std::time::Duration;

use oubliette_test_harness::scaled;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Reply, http, http_kept_alive};

/// A server that was killed is back, and has answered, within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Clone)]
pub struct Modern {
    http: reqwest::Client,
    url: String,
    key: String,
    capabilities: Value,
}

impl Modern {
    pub const VERSION: &str = "2026-07-28";

    pub fn new(url: &str, key: &str) -> Self {
        Self {
            http: http(),
            url: url.to_owned(),
            key: key.to_owned(),
            capabilities: json!({}),
        }
    }

    /// This client with tasks.
    #[must_use]
    pub fn with_tasks(mut self) -> Self {
        self.capabilities = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
        self
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// This client with connections that are kept alive, for measurements.
    #[must_use]
    pub fn kept_alive(mut self) -> Self {
        self.http = http_kept_alive();
        self
    }

    /// A request that can still be changed before it is sent.
    pub fn request(&self, method: &str, mut params: Value) -> reqwest::RequestBuilder {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(Self::VERSION);
        params["_meta"]["io.modelcontextprotocol/clientInfo"] =
            json!({ "name": "raw", "version": "0" });
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        let name = ["name", "uri", "taskId"]
            .iter()
            .find_map(|key| params[*key].as_str());
        let name = name.unwrap_or_default().to_owned();
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let request = self
            .http
            .post(&self.url)
            .bearer_auth(&self.key)
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", Self::VERSION)
            .header("mcp-method", method)
            .json(&body);
        if name.is_empty() {
            request
        } else {
            request.header("mcp-name", name)
        }
    }

    pub async fn send(&self, method: &str, params: Value) -> Reply {
        Reply::read(self.request(method, params).send().await.unwrap()).await
    }

    /// A send whose connection may break.
    pub async fn try_send(&self, method: &str, params: Value) -> Option<Reply> {
        let response = self.request(method, params).send().await.ok()?;
        Some(Reply::read(response).await)
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Reply {
        self.send(
            "tools/call",
            json!({ "name": tool, "arguments": arguments }),
        )
        .await
    }

    /// Repeats a call until a server answers it, for tests that kill servers. A refusal is an
    /// answer; a reply that is no message of MCP is none.
    ///
    /// # Panics
    /// If no server answers in time.
    pub async fn call_until_answered(&self, tool: &str, arguments: Value) -> Reply {
        let call = json!({ "name": tool, "arguments": arguments });
        let deadline = Instant::now() + scaled(ANSWER_TIMEOUT);
        let mut last = None;
        while Instant::now() < deadline {
            last = self.try_send("tools/call", call.clone()).await;
            let is_answer =
                |reply: &Reply| reply.body["result"].is_object() || reply.body["error"].is_object();
            if let Some(reply) = last.take_if(|reply| is_answer(reply)) {
                return reply;
            }
            // There is no event for the start of the next server.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no server answered {tool}; the last reply was {last:?}");
    }

    /// The longest of some calls: what this machine takes for one now, to compare other times with.
    pub async fn slowest_call(&self) -> Duration {
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let started = Instant::now();
            self.call("project_list", json!({})).await.ok();
            slowest = slowest.max(started.elapsed());
        }
        slowest
    }

    pub async fn tools(&self) -> Vec<Value> {
        let reply = self.send("tools/list", json!({})).await;
        reply.body["result"]["tools"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }

    /// Makes a project and returns its id.
    pub async fn project(&self, name: &str) -> String {
        let reply = self.call("project_create", json!({ "name": name })).await;
        reply.ok()["project_id"].as_str().unwrap().to_owned()
    }

    /// Makes a token and returns its key.
    pub async fn token(&self, scope: &str) -> String {
        let reply = self
            .call("token_create", json!({ "name": "test", "scope": scope }))
            .await;
        reply.ok()["key"].as_str().unwrap().to_owned()
    }
}
