//! JSON-RPC messages.

use serde::de::{DeserializeOwned, IgnoredAny};
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

    /// Reads a line that should be a request or a notification; otherwise what to answer.
    pub fn parse(line: &[u8]) -> Result<Self, Box<Self>> {
        let refuse = |id: Option<Value>, code, why: &str| {
            let id = id.filter(is_id).unwrap_or(Value::Null);
            Box::new(Self::reply(id, Err(RpcError::new(code, why))))
        };
        let shapeless = || refuse(None, codes::SHAPE, "that is not a JSON-RPC message");
        let wrong = |error: serde_json::Error| match error.is_data() {
            true => shapeless(),
            false => refuse(None, codes::PARSE, "that is not JSON"),
        };
        if !line.trim_ascii_start().starts_with(b"{") {
            // A batch, a number: JSON perhaps, but no message.
            serde_json::from_slice::<IgnoredAny>(line).map_err(wrong)?;
            return Err(shapeless());
        }
        let message: Self = serde_json::from_slice(line).map_err(wrong)?;
        let is_sound = message.method.is_some()
            && message.id.as_ref().is_none_or(is_id)
            && message
                .jsonrpc
                .as_ref()
                .is_none_or(|version| version == "2.0");
        match is_sound {
            true => Ok(message),
            false => Err(refuse(
                message.id,
                codes::SHAPE,
                "that is not a JSON-RPC request",
            )),
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

fn is_id(id: &Value) -> bool {
    matches!(id, Value::String(_) | Value::Number(_) | Value::Null)
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

    #[test]
    fn what_is_no_request_is_answered_with_the_code_of_its_fault() {
        let code = |line: &str| {
            let answer = Message::parse(line.as_bytes()).unwrap_err();
            (answer.error.unwrap().code, answer.id.unwrap())
        };
        for garbage in ["", "garbage", "{\"id\":1", "[[", "\u{1}\u{2}"] {
            assert_eq!(code(garbage), (codes::PARSE, Value::Null), "{garbage}");
        }
        for shapeless in [
            "[]",
            "7",
            "[\"2.0\",1,\"m\"]",
            "[{\"id\":1,\"method\":\"m\"}]",
            "{\"method\":7}",
        ] {
            assert_eq!(code(shapeless).0, codes::SHAPE, "{shapeless}");
        }
        assert_eq!(code("{\"id\":1}"), (codes::SHAPE, json!(1)));
        assert_eq!(
            code("{\"id\":\"a\",\"result\":{}}"),
            (codes::SHAPE, json!("a"))
        );
        assert_eq!(
            code("{\"id\":{},\"method\":\"m\"}"),
            (codes::SHAPE, Value::Null)
        );
        let old = "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"m\"}";
        assert_eq!(code(old).0, codes::SHAPE);
        assert!(Message::parse(b"{\"method\":\"m\"}").is_ok());
    }
}
