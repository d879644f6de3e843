//! Parses a line of the relay into a request.

use oubliette_wire::{RpcError, codes};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A request, or without an id a notification.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) id: Option<Value>,
    pub(super) method: String,
    pub(super) params: Map<String, Value>,
    /// The length of its line.
    pub(super) line_bytes: usize,
}

#[derive(Debug, PartialEq)]
pub(super) enum ParsedLine {
    Request(Request),
    /// Needs no response: an empty line, a response, an invalid notification.
    Ignored,
    /// The id to reply to, and the error.
    Invalid(Value, RpcError),
}

pub(super) fn parse_line(line: &[u8]) -> ParsedLine {
    if line.trim_ascii().is_empty() {
        return ParsedLine::Ignored;
    }
    match serde_json::from_slice(line) {
        Ok(Value::Object(message)) => parse_message(message, line.len()),
        Ok(_) => invalid(
            Value::Null,
            codes::INVALID_REQUEST,
            "a message must be one object; batches are not supported",
        ),
        Err(_) => invalid(Value::Null, codes::PARSE_ERROR, "the line is not valid JSON"),
    }
}

fn parse_message(mut message: Map<String, Value>, line_bytes: usize) -> ParsedLine {
    let id = message.remove("id");
    if !matches!(
        id,
        None | Some(Value::Null | Value::String(_) | Value::Number(_))
    ) {
        let reason = "`id` must be a string or a number";
        return invalid(Value::Null, codes::INVALID_REQUEST, reason);
    }
    let reply_id = id.clone().unwrap_or(Value::Null);
    if message
        .remove("jsonrpc")
        .is_some_and(|version| version != "2.0")
    {
        return invalid(reply_id, codes::INVALID_REQUEST, "`jsonrpc` must be \"2.0\"");
    }
    let method = match message.remove("method") {
        Some(Value::String(method)) => method,
        // The server sends no requests to clients, so it waits for no responses.
        None if message.contains_key("result") || message.contains_key("error") => {
            return ParsedLine::Ignored;
        }
        _ => return invalid(reply_id, codes::INVALID_REQUEST, "`method` must be a string"),
    };
    let params = match message.remove("params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) if id.is_none() => return ParsedLine::Ignored,
        Some(_) => return invalid(reply_id, codes::INVALID_PARAMS, "`params` must be an object"),
    };
    ParsedLine::Request(Request {
        id,
        method,
        params,
        line_bytes,
    })
}

fn invalid(reply_id: Value, code: i64, reason: &str) -> ParsedLine {
    ParsedLine::Invalid(reply_id, RpcError::new(code, reason))
}

pub(super) fn parse_params<T: DeserializeOwned>(params: Map<String, Value>) -> Result<T, RpcError> {
    serde_json::from_value(Value::Object(params))
        .map_err(|error| RpcError::new(codes::INVALID_PARAMS, error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse_invalid(line: &[u8]) -> (Value, i64) {
        match parse_line(line) {
            ParsedLine::Invalid(id, error) => (id, error.code),
            other => panic!("{other:?}"),
        }
    }

    fn parse_id(line: &[u8]) -> Option<Value> {
        match parse_line(line) {
            ParsedLine::Request(request) => request.id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_and_notifications_are_parsed_with_or_without_a_version() {
        let line = br#"{"id":"a","method":"m","params":{"x":1}}"#;
        let expected = Request {
            id: Some(json!("a")),
            method: "m".to_owned(),
            params: json!({ "x": 1 }).as_object().unwrap().clone(),
            line_bytes: line.len(),
        };
        assert_eq!(parse_line(line), ParsedLine::Request(expected));
        assert_eq!(parse_id(br#"{"jsonrpc":"2.0","method":"m"}"#), None);
        // An id of null still is an id.
        assert_eq!(parse_id(br#"{"id":null,"method":"m"}"#), Some(Value::Null));
        for ignored in [&b""[..], b"  \r", br#"{"id":1,"result":{}}"#] {
            assert_eq!(parse_line(ignored), ParsedLine::Ignored);
        }
    }

    #[test]
    fn invalid_lines_get_the_error_code_of_what_is_wrong() {
        assert_eq!(parse_invalid(b"{"), (Value::Null, codes::PARSE_ERROR));
        assert_eq!(parse_invalid(b"\xff"), (Value::Null, codes::PARSE_ERROR));
        let deep = "[".repeat(100_000);
        assert_eq!(parse_invalid(deep.as_bytes()), (Value::Null, codes::PARSE_ERROR));
        for line in [
            &b"[]"[..],
            b"1",
            br#"[{"id":1,"method":"m"}]"#,
            br#"{"id":[],"method":"m"}"#,
            br#"{"id":true,"method":"m"}"#,
        ] {
            assert_eq!(parse_invalid(line), (Value::Null, codes::INVALID_REQUEST));
        }
        for line in [
            &br#"{"id":7}"#[..],
            br#"{"id":7,"method":1}"#,
            br#"{"id":7,"method":"m","jsonrpc":"1.0"}"#,
        ] {
            assert_eq!(parse_invalid(line), (json!(7), codes::INVALID_REQUEST));
        }
        let params = br#"{"id":7,"method":"m","params":[1]}"#;
        assert_eq!(parse_invalid(params), (json!(7), codes::INVALID_PARAMS));
    }
}
