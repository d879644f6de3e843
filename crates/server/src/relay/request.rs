//! From a line to a request, or to what is wrong with it.

use oubliette_wire::{RpcError, codes};
use serde_json::{Map, Value};

/// A request, or without an id a notification.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) id: Option<Value>,
    pub(super) method: String,
    pub(super) params: Map<String, Value>,
}

/// What a line comes to.
#[derive(Debug, PartialEq)]
pub(super) enum Read {
    Request(Request),
    /// Nobody waits for an answer.
    Nothing,
    /// To whom, and what is wrong.
    Wrong(Value, RpcError),
}

impl Read {
    pub(super) fn of(line: &[u8]) -> Self {
        if line.trim_ascii().is_empty() {
            return Self::Nothing;
        }
        match serde_json::from_slice(line) {
            Ok(Value::Object(message)) => Self::message(message),
            Ok(_) => wrong(
                Value::Null,
                codes::SHAPE,
                "a message is one object; batches are not taken",
            ),
            Err(_) => wrong(Value::Null, codes::PARSE, "the line is not JSON"),
        }
    }

    fn message(mut message: Map<String, Value>) -> Self {
        let id = message.remove("id");
        if !matches!(
            id,
            None | Some(Value::Null | Value::String(_) | Value::Number(_))
        ) {
            return wrong(
                Value::Null,
                codes::SHAPE,
                "`id` must be a string or a number",
            );
        }
        let to = id.clone().unwrap_or(Value::Null);
        match message.remove("jsonrpc") {
            None => {}
            Some(version) if version == "2.0" => {}
            Some(_) => return wrong(to, codes::SHAPE, "`jsonrpc` must be \"2.0\""),
        }
        let method = match message.remove("method") {
            Some(Value::String(method)) => method,
            // An answer to something that was never asked.
            None if message.contains_key("result") || message.contains_key("error") => {
                return Self::Nothing;
            }
            _ => return wrong(to, codes::SHAPE, "`method` must be a string"),
        };
        let params = match message.remove("params") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(params)) => params,
            // Nobody hears what is wrong with a notification.
            Some(_) if id.is_none() => return Self::Nothing,
            Some(_) => return wrong(to, codes::PARAMS, "`params` must be an object"),
        };
        Self::Request(Request { id, method, params })
    }
}

fn wrong(to: Value, code: i64, why: &str) -> Read {
    Read::Wrong(to, RpcError::new(code, why))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn code(line: &[u8]) -> (Value, i64) {
        match Read::of(line) {
            Read::Wrong(id, error) => (id, error.code),
            other => panic!("{other:?}"),
        }
    }

    fn id(line: &[u8]) -> Option<Value> {
        match Read::of(line) {
            Read::Request(request) => request.id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_and_notifications_are_read_with_or_without_a_version() {
        let request = Read::of(br#"{"id":"a","method":"m","params":{"x":1}}"#);
        let params = json!({ "x": 1 }).as_object().unwrap().clone();
        let expected = Request {
            id: Some(json!("a")),
            method: "m".to_owned(),
            params,
        };
        assert_eq!(request, Read::Request(expected));
        assert_eq!(id(br#"{"jsonrpc":"2.0","method":"m"}"#), None);
        // Null is an id that somebody chose.
        assert_eq!(id(br#"{"id":null,"method":"m"}"#), Some(Value::Null));
        for silent in [&b""[..], b"  \r", br#"{"id":1,"result":{}}"#] {
            assert_eq!(Read::of(silent), Read::Nothing);
        }
    }

    #[test]
    fn everything_else_has_its_code() {
        assert_eq!(code(b"{"), (Value::Null, codes::PARSE));
        assert_eq!(code(b"\xff"), (Value::Null, codes::PARSE));
        let deep = "[".repeat(100_000);
        assert_eq!(code(deep.as_bytes()), (Value::Null, codes::PARSE));
        for shape in [
            &b"[]"[..],
            b"1",
            br#"[{"id":1,"method":"m"}]"#,
            br#"{"id":[],"method":"m"}"#,
            br#"{"id":true,"method":"m"}"#,
        ] {
            assert_eq!(code(shape), (Value::Null, codes::SHAPE));
        }
        for shape in [
            &br#"{"id":7}"#[..],
            br#"{"id":7,"method":1}"#,
            br#"{"id":7,"method":"m","jsonrpc":"1.0"}"#,
        ] {
            assert_eq!(code(shape), (json!(7), codes::SHAPE));
        }
        let params = br#"{"id":7,"method":"m","params":[1]}"#;
        assert_eq!(code(params), (json!(7), codes::PARAMS));
    }
}
