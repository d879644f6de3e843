//! A raw client of protocol 2025-11-25: a session, replies as event streams.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::{Reply, http, http_kept_alive};

#[derive(Debug)]
pub struct Legacy {
    http: reqwest::Client,
    url: String,
    key: String,
    session: String,
    next_id: AtomicU64,
}

impl Legacy {
    pub const VERSION: &str = "2025-11-25";

    /// Initializes a session.
    pub async fn connect(url: &str, key: &str) -> Self {
        let client = Self::try_connect(url, key).await;
        client.expect("no session was opened")
    }

    /// Initializes a session; `None` if the key is not valid.
    pub async fn try_connect(url: &str, key: &str) -> Option<Self> {
        let connected = Self::connect_declaring(url, key, json!({})).await;
        connected.map(|(client, _)| client)
    }

    /// Initializes a session with capabilities of the client; with the result, which has the server's.
    pub async fn connect_declaring(
        url: &str,
        key: &str,
        capabilities: Value,
    ) -> Option<(Self, Value)> {
        let mut client = Self {
            http: http(),
            url: url.to_owned(),
            key: key.to_owned(),
            session: String::new(),
            next_id: AtomicU64::new(1),
        };
        let params = json!({
            "protocolVersion": Self::VERSION,
            "capabilities": capabilities,
            "clientInfo": { "name": "raw", "version": "0" },
        });
        let response = client.request("initialize", params).send().await.unwrap();
        let session = response.headers().get("mcp-session-id")?;
        client.session = session.to_str().unwrap().to_owned();
        let reply = Reply::read(response).await;
        assert_eq!(reply.body["result"]["protocolVersion"], Self::VERSION);
        let accepted = client.notify("notifications/initialized", json!({})).await;
        (accepted.status == 202).then(|| (client, reply.body["result"].clone()))
    }

    /// This client with connections that are kept alive, for measurements.
    #[must_use]
    pub fn kept_alive(mut self) -> Self {
        self.http = http_kept_alive();
        self
    }

    /// The same session with another key.
    pub fn with_key(&self, key: &str) -> Self {
        Self {
            http: http(),
            url: self.url.clone(),
            key: key.to_owned(),
            session: self.session.clone(),
            next_id: AtomicU64::new(1000),
        }
    }

    pub fn session(&self) -> &str {
        &self.session
    }

    fn headers(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        let request = request
            .bearer_auth(&self.key)
            .header("accept", "application/json, text/event-stream");
        if self.session.is_empty() {
            return request;
        }
        request
            .header("mcp-session-id", &self.session)
            .header("mcp-protocol-version", Self::VERSION)
    }

    pub fn request(&self, method: &str, params: Value) -> reqwest::RequestBuilder {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.headers(self.http.post(&self.url)).json(&body)
    }

    pub async fn notify(&self, method: &str, params: Value) -> Reply {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        Reply::read(
            self.headers(self.http.post(&self.url))
                .json(&body)
                .send()
                .await
                .unwrap(),
        )
        .await
    }

    pub async fn send(&self, method: &str, params: Value) -> Reply {
        Reply::read(self.request(method, params).send().await.unwrap()).await
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Reply {
        self.send(
            "tools/call",
            json!({ "name": tool, "arguments": arguments }),
        )
        .await
    }

    /// Opens the session's own event stream.
    pub async fn stream(&self) -> reqwest::Response {
        self.headers(self.http.get(&self.url)).send().await.unwrap()
    }

    /// Ends the session.
    pub async fn delete(&self) -> Reply {
        Reply::read(
            self.headers(self.http.delete(&self.url))
                .send()
                .await
                .unwrap(),
        )
        .await
    }
}
