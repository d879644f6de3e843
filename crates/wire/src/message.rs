//! JSON-RPC messages.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Codes of JSON-RPC errors.
pub mod codes {
    pub const PARSE: i64 = -32700;
    pub const SHAPE: i64 = -32600;
    pub const METHOD: i64 = -32601;
    pub const PARAMS: i64 = -32602;
    pub const FAILED: i64 = -32000;
    pub const UNAUTHENTICATED: i64 = -32001;
    pub const REFUSED: i64 = -32002;
    pub const NOT_ATTACHED: i64 = -32003;
}

/// A request, a notification or a reply, before anybody knows which.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jsonrpc: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }
}

impl Message {
    fn version() -> Option<String> {
        Some("2.0".to_owned())
    }

    pub fn request(id: u64, method: &str, params: &impl Serialize) -> Self {
        Self {
            id: Some(Value::from(id)),
            ..Self::notification(method, params)
        }
    }

    pub fn notification(method: &str, params: &impl Serialize) -> Self {
        Self {
            jsonrpc: Self::version(),
            method: Some(method.to_owned()),
            params: serde_json::to_value(params).ok(),
            ..Self::default()
        }
    }

    pub fn reply(id: Value, outcome: Result<Value, RpcError>) -> Self {
        let (result, error) = match outcome {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            jsonrpc: Self::version(),
            id: Some(id),
            result,
            error,
            ..Self::default()
        }
    }

    /// The parameters as a type; absent ones are an empty object.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, RpcError> {
        let params = self
            .params
            .clone()
            .unwrap_or_else(|| Value::Object(Default::default()));
        serde_json::from_value(params)
            .map_err(|error| RpcError::new(codes::PARAMS, error.to_string()))
    }

    /// The message as a line, with its end.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_protocol_version_may_be_absent_and_unknown_fields_are_ignored() {
        let text = r#"{"id":7,"method":"m","params":{"a":1},"type":"x"}"#;
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!(message.id, Some(json!(7)));
        assert_eq!(message.params::<Value>().unwrap(), json!({ "a": 1 }));
    }

    #[test]
    fn a_line_is_one_line() {
        let message = Message::notification("m", &json!({ "text": "a\nb" }));
        let line = message.line();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Message>(&line).unwrap(), message);
    }
}
