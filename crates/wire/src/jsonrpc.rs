//! JSON-RPC 2.0: the one envelope of every connection that speaks it.
//!
//! [`Message`] is read and written by all sides. [`Request::parse`] reads a peer's request, or returns
//! the error to reply with.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

const VERSION: &str = "2.0";

/// Codes of JSON-RPC errors.
pub mod codes {
    pub const PARSE_ERROR: i64 = -32700;
    pub const INVALID_REQUEST: i64 = -32600;
    pub const METHOD_NOT_FOUND: i64 = -32601;
    pub const INVALID_PARAMS: i64 = -32602;
    pub const FAILED: i64 = -32000;
    pub const UNAUTHENTICATED: i64 = -32001;
    pub const REFUSED: i64 = -32002;
    pub const NOT_ATTACHED: i64 = -32003;
}

/// A request, a notification or a response. `Id` can be `Box<RawValue>`, so that a reply returns
/// an id byte for byte.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message<Id = Value> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jsonrpc: Option<Value>,
    // A field that is null is not an absent one: `{"id":1,"result":null}` is a response.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none",
        bound(deserialize = "Id: Deserialize<'de>")
    )]
    pub id: Option<Id>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Why a request failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    #[serde(default)]
    pub code: i64,
    #[serde(default)]
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

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // Agents put the reason under different keys.
        let detail = self.data.as_ref().and_then(|data| {
            let mut keys = ["details", "message", "error"].into_iter();
            keys.find_map(|key| data.get(key)?.as_str())
        });
        match detail {
            Some(detail) if detail != self.message => write!(f, ": {detail}"),
            _ => Ok(()),
        }
    }
}

impl Message {
    pub fn request(id: impl Into<Value>, method: &str, params: &impl Serialize) -> Self {
        Self {
            id: Some(id.into()),
            ..Self::notification(method, params)
        }
    }

    pub fn notification(method: &str, params: &impl Serialize) -> Self {
        Self {
            jsonrpc: Some(VERSION.into()),
            id: None,
            method: Some(method.to_owned()),
            params: serde_json::to_value(params).ok(),
            result: None,
            error: None,
        }
    }
}

impl<Id> Message<Id> {
    pub fn reply(id: Id, outcome: Result<Value, RpcError>) -> Self {
        let (result, error) = match outcome {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            jsonrpc: Some(VERSION.into()),
            id: Some(id),
            method: None,
            params: None,
            result,
            error,
        }
    }

    /// The outcome of a response; none if the message has neither a result nor an error.
    pub fn into_outcome(self) -> Option<Result<Value, RpcError>> {
        self.error.map(Err).or(self.result.map(Ok))
    }

    /// The parameters as a type; absent ones are an empty object.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, RpcError> {
        let empty = || Value::Object(Map::new());
        typed(self.params.clone().unwrap_or_else(empty))
    }
}

impl<Id: Serialize> Message<Id> {
    /// The message as a line, with its newline.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// A request, or without an id a notification.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub id: Option<Value>,
    pub method: String,
    pub params: Map<String, Value>,
}

/// A line that is not a request: the error, and the id of the reply.
#[derive(Debug, Clone, PartialEq)]
pub struct InvalidRequest {
    pub id: Value,
    pub error: RpcError,
}

impl InvalidRequest {
    fn boxed(id: Value, code: i64, message: &str) -> Box<Self> {
        let error = RpcError::new(code, message);
        Box::new(Self { id, error })
    }
}

impl From<Box<InvalidRequest>> for Message {
    fn from(invalid: Box<InvalidRequest>) -> Self {
        Self::reply(invalid.id, Err(invalid.error))
    }
}

impl Request {
    /// Reads a line. None if it needs no reply: it is blank, a response, or a notification with
    /// invalid parameters.
    pub fn parse(line: &[u8]) -> Result<Option<Self>, Box<InvalidRequest>> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let invalid = |id: &Value, why| {
            Err(InvalidRequest::boxed(
                id.clone(),
                codes::INVALID_REQUEST,
                why,
            ))
        };
        let mut message = match serde_json::from_slice(line) {
            Ok(Value::Object(message)) => message,
            Ok(_) => {
                return invalid(
                    &Value::Null,
                    "a message is one object; batches are not supported",
                );
            }
            Err(_) => {
                let why = "the line is not JSON";
                return Err(InvalidRequest::boxed(Value::Null, codes::PARSE_ERROR, why));
            }
        };
        let id = message.remove("id");
        if !matches!(
            id,
            None | Some(Value::Null | Value::String(_) | Value::Number(_))
        ) {
            return invalid(&Value::Null, "`id` must be a string or a number");
        }
        let reply_to = id.clone().unwrap_or(Value::Null);
        if message
            .remove("jsonrpc")
            .is_some_and(|version| version != VERSION)
        {
            return invalid(&reply_to, "`jsonrpc` must be \"2.0\"");
        }
        let method = match message.remove("method") {
            Some(Value::String(method)) => method,
            None if message.contains_key("result") || message.contains_key("error") => {
                return Ok(None);
            }
            _ => return invalid(&reply_to, "`method` must be a string"),
        };
        let params = match message.remove("params") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) if id.is_none() => return Ok(None),
            Some(_) => {
                let why = "`params` must be an object";
                return Err(InvalidRequest::boxed(reply_to, codes::INVALID_PARAMS, why));
            }
        };
        Ok(Some(Self { id, method, params }))
    }

    /// The parameters as a type.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, RpcError> {
        typed(Value::Object(self.params.clone()))
    }
}

fn typed<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params)
        .map_err(|error| RpcError::new(codes::INVALID_PARAMS, error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn the_protocol_version_may_be_absent_and_unknown_fields_are_ignored() {
        let text = r#"{"id":7,"method":"m","params":{"a":1},"type":"x"}"#;
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!(message.id, Some(json!(7)));
        assert_eq!(message.params::<Value>().unwrap(), json!({ "a": 1 }));
    }

    #[test]
    fn a_message_is_written_as_one_line() {
        let message = Message::notification("m", &json!({ "text": "a\nb" }));
        let line = message.to_line();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Message>(&line).unwrap(), message);
    }

    #[test]
    fn messages_have_their_fields_in_a_fixed_order() {
        let request = Message::request(1, "m", &json!({}));
        let expected = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"params\":{}}\n";
        assert_eq!(String::from_utf8(request.to_line()).unwrap(), expected);
        let error = RpcError::new(codes::FAILED, "no");
        let reply = Message::reply(json!("a"), Err(error));
        let expected =
            "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"error\":{\"code\":-32000,\"message\":\"no\"}}\n";
        assert_eq!(String::from_utf8(reply.to_line()).unwrap(), expected);
    }

    #[test]
    fn a_null_result_is_a_result_and_a_raw_id_is_returned_unchanged() {
        let line = br#"{"id":123456789012345678901234567890,"result":null}"#;
        let message: Message<Box<RawValue>> = serde_json::from_slice(line).unwrap();
        let id = message.id.clone().unwrap();
        assert_eq!(message.into_outcome(), Some(Ok(Value::Null)));
        let reply = Message::reply(id, Ok(json!({}))).to_line();
        let reply = String::from_utf8(reply).unwrap();
        assert!(
            reply.contains("\"id\":123456789012345678901234567890,"),
            "{reply}"
        );
        let neither: Message = serde_json::from_str("{\"id\":1}").unwrap();
        assert_eq!(neither.into_outcome(), None);
    }

    fn invalid(line: &[u8]) -> (Value, i64) {
        let invalid = Request::parse(line).unwrap_err();
        (invalid.id, invalid.error.code)
    }

    #[test]
    fn requests_and_notifications_are_read_with_or_without_a_version() {
        let request = Request::parse(br#"{"id":"a","method":"m","params":{"x":1}}"#);
        let expected = Request {
            id: Some(json!("a")),
            method: "m".to_owned(),
            params: json!({ "x": 1 }).as_object().unwrap().clone(),
        };
        assert_eq!(request, Ok(Some(expected)));
        let id = |line: &[u8]| Request::parse(line).unwrap().unwrap().id;
        assert_eq!(id(br#"{"jsonrpc":"2.0","method":"m"}"#), None);
        assert_eq!(id(br#"{"id":null,"method":"m"}"#), Some(Value::Null));
        for line in [
            &b""[..],
            b"  \r",
            br#"{"id":1,"result":{}}"#,
            br#"{"method":"m","params":[1]}"#,
        ] {
            assert_eq!(Request::parse(line), Ok(None));
        }
    }

    #[test]
    fn an_invalid_request_has_the_code_of_its_error_and_the_id_of_its_reply() {
        let deep = "[".repeat(100_000);
        for line in [
            &b"{"[..],
            b"garbage",
            b"{\"id\":1",
            b"\xff",
            b"\x01\x02",
            deep.as_bytes(),
        ] {
            assert_eq!(invalid(line), (Value::Null, codes::PARSE_ERROR));
        }
        for line in [
            &b"[]"[..],
            b"1",
            br#"[{"id":1,"method":"m"}]"#,
            br#"{"id":[],"method":"m"}"#,
            br#"{"id":true,"method":"m"}"#,
            br#"{"method":7}"#,
        ] {
            assert_eq!(invalid(line), (Value::Null, codes::INVALID_REQUEST));
        }
        for line in [
            &br#"{"id":7}"#[..],
            br#"{"id":7,"method":1}"#,
            br#"{"id":7,"method":"m","jsonrpc":"1.0"}"#,
        ] {
            assert_eq!(invalid(line), (json!(7), codes::INVALID_REQUEST));
        }
        let params = br#"{"id":7,"method":"m","params":[1]}"#;
        assert_eq!(invalid(params), (json!(7), codes::INVALID_PARAMS));
        let reply = Message::from(Request::parse(b"{").unwrap_err());
        assert_eq!((reply.id, reply.result), (Some(Value::Null), None));
    }
}
