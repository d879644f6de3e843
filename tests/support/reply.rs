//! The reply to a call.

use serde_json::Value;

/// An HTTP status and the JSON-RPC message in the body, if there was one.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub body: Value,
    pub text: String,
}

impl Reply {
    pub async fn read(response: reqwest::Response) -> Self {
        let status = response.status().as_u16();
        let is_event_stream = response
            .headers()
            .get("content-type")
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let text = response.text().await.unwrap_or_default();
        let body = if is_event_stream {
            last_message(&text)
        } else {
            serde_json::from_str(&text).unwrap_or(Value::Null)
        };
        Self { status, body, text }
    }

    /// The structured result of a tool call that succeeded.
    #[track_caller]
    pub fn ok(&self) -> &Value {
        assert!(!self.is_error(), "the call failed: {}", self.text);
        let result = &self.body["result"]["structuredContent"];
        assert!(
            result.is_object(),
            "no structured result: {} {}",
            self.status,
            self.text
        );
        result
    }

    pub fn is_error(&self) -> bool {
        self.body["result"]["isError"] == true
    }

    /// The sentence of a tool call that failed.
    #[track_caller]
    pub fn sentence(&self) -> &str {
        assert!(
            self.is_error(),
            "the call did not fail: {} {}",
            self.status,
            self.text
        );
        self.body["result"]["content"][0]["text"].as_str().unwrap()
    }

    /// The code of a JSON-RPC error.
    #[track_caller]
    pub fn code(&self) -> i64 {
        let code = self.body["error"]["code"].as_i64();
        code.unwrap_or_else(|| panic!("no JSON-RPC error: {} {}", self.status, self.text))
    }

    /// The message of a JSON-RPC error.
    pub fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }
}

/// The last JSON-RPC message of an event stream.
fn last_message(text: &str) -> Value {
    let messages = text.lines().filter_map(|line| line.strip_prefix("data:"));
    messages
        .filter_map(|data| serde_json::from_str(data).ok())
        .next_back()
        .unwrap_or(Value::Null)
}
