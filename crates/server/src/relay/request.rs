//! Parses a line of the relay into a request.

use oubliette_wire::{RpcError, codes};
use serde_json::{Map, Value};

/// A request, or without an id a notification.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    pub(super) id: Option<Value>,
    pub(super) method: String,
    pub(super) params: Map<String, Value>,
}

/// A line that is not a request: the error, and the id of the reply.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InvalidRequest {
    pub(super) id: Value,
    pub(super) error: RpcError,
}

impl InvalidRequest {
    fn new(id: Value, code: i64, reason: &str) -> Self {
        let error = RpcError::new(code, reason);
        Self { id, error }
    }
}

impl Request {
    /// Parses a line. None if it needs no reply: an empty line, a response, or a notification with
    /// invalid parameters.
    pub(super) fn parse(line: &[u8]) -> Result<Option<Self>, Box<InvalidRequest>> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let invalid = |id, code, reason| Err(Box::new(InvalidRequest::new(id, code, reason)));
        let mut message = match serde_json::from_slice(line) {
            Ok(Value::Object(message)) => message,
            Ok(_) => {
                let reason = "a message must be one object; batches are not supported";
                return invalid(Value::Null, codes::SHAPE, reason);
            }
            Err(_) => return invalid(Value::Null, codes::PARSE, "the line is not valid JSON"),
        };
        let id = message.remove("id");
        if !matches!(
            id,
            None | Some(Value::Null | Value::String(_) | Value::Number(_))
        ) {
            let reason = "`id` must be a string or a number";
            return invalid(Value::Null, codes::SHAPE, reason);
        }
        let reply_id = id.clone().unwrap_or(Value::Null);
        if message
            .remove("jsonrpc")
            .is_some_and(|version| version != "2.0")
        {
            return invalid(reply_id, codes::SHAPE, "`jsonrpc` must be \"2.0\"");
        }
        let method = match message.remove("method") {
            Some(Value::String(method)) => method,
            None if message.contains_key("result") || message.contains_key("error") => {
                return Ok(None);
            }
            _ => return invalid(reply_id, codes::SHAPE, "`method` must be a string"),
        };
        let params = match message.remove("params") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) if id.is_none() => return Ok(None),
            Some(_) => return invalid(reply_id, codes::PARAMS, "`params` must be an object"),
        };
        Ok(Some(Self { id, method, params }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse_invalid(line: &[u8]) -> (Value, i64) {
        let invalid = Request::parse(line).unwrap_err();
        (invalid.id, invalid.error.code)
    }

    fn parse_id(line: &[u8]) -> Option<Value> {
        Request::parse(line).unwrap().unwrap().id
    }

    #[test]
    fn requests_and_notifications_are_parsed_with_or_without_a_version() {
        let line = br#"{"id":"a","method":"m","params":{"x":1}}"#;
        let expected = Request {
            id: Some(json!("a")),
            method: "m".to_owned(),
            params: json!({ "x": 1 }).as_object().unwrap().clone(),
        };
        assert_eq!(Request::parse(line), Ok(Some(expected)));
        assert_eq!(parse_id(br#"{"jsonrpc":"2.0","method":"m"}"#), None);
        // An id of null still is an id.
        assert_eq!(parse_id(br#"{"id":null,"method":"m"}"#), Some(Value::Null));
        for ignored in [&b""[..], b"  \r", br#"{"id":1,"result":{}}"#] {
            assert_eq!(Request::parse(ignored), Ok(None));
        }
    }

    #[test]
    fn invalid_lines_get_the_error_code_of_what_is_wrong() {
        assert_eq!(parse_invalid(b"{"), (Value::Null, codes::PARSE));
        assert_eq!(parse_invalid(b"\xff"), (Value::Null, codes::PARSE));
        let deep = "[".repeat(100_000);
        assert_eq!(parse_invalid(deep.as_bytes()), (Value::Null, codes::PARSE));
        for line in [
            &b"[]"[..],
            b"1",
            br#"[{"id":1,"method":"m"}]"#,
            br#"{"id":[],"method":"m"}"#,
            br#"{"id":true,"method":"m"}"#,
        ] {
            assert_eq!(parse_invalid(line), (Value::Null, codes::SHAPE));
        }
        for line in [
            &br#"{"id":7}"#[..],
            br#"{"id":7,"method":1}"#,
            br#"{"id":7,"method":"m","jsonrpc":"1.0"}"#,
        ] {
            assert_eq!(parse_invalid(line), (json!(7), codes::SHAPE));
        }
        let params = br#"{"id":7,"method":"m","params":[1]}"#;
        assert_eq!(parse_invalid(params), (json!(7), codes::PARAMS));
    }
}
