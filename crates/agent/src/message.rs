//! One line of an agent's output.
//!
//! An agent can write anything: a line that is not a message goes to the log, and nothing is ever
//! written back because of it.

use oubliette_wire::{Message, RpcError};
use serde_json::Value;
use serde_json::value::RawValue;

/// How many bytes of a line that is not a message are logged.
const MAX_LOGGED_BYTES: usize = 2000;

/// A line of an agent's output.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentMessage {
    /// The response to a request of the server.
    Response {
        id: u64,
        outcome: Result<Value, RpcError>,
    },
    /// A request of the agent; `id` is its JSON text, which the response returns unchanged.
    Request {
        id: String,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// Something else, in a form that can be logged.
    Invalid(String),
    Blank,
}

impl AgentMessage {
    /// Reads a line without its newline.
    pub fn parse(line: &[u8]) -> Self {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Self::Blank;
        }
        let Ok(mut message) = serde_json::from_slice::<Message<Box<RawValue>>>(line) else {
            return Self::Invalid(loggable(line));
        };
        let id = message.id.take().filter(|id| id.get() != "null");
        if let Some(method) = message.method {
            let params = message.params.unwrap_or_default();
            return match id {
                Some(id) => Self::Request {
                    id: id.get().to_owned(),
                    method,
                    params,
                },
                None => Self::Notification { method, params },
            };
        }
        let id = id.and_then(|id| id.get().parse().ok());
        match (id, message.into_outcome()) {
            (Some(id), Some(outcome)) => Self::Response { id, outcome },
            _ => Self::Invalid(loggable(line)),
        }
    }
}

fn loggable(line: &[u8]) -> String {
    let start = String::from_utf8_lossy(&line[..line.len().min(MAX_LOGGED_BYTES)]);
    let mut text: String = start.chars().filter(|c| !c.is_control()).collect();
    if line.len() > MAX_LOGGED_BYTES {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_line_is_recognised() {
        let parse = AgentMessage::parse;
        let response = AgentMessage::Response {
            id: 1,
            outcome: Ok(Value::Null),
        };
        assert_eq!(
            parse(br#"{"jsonrpc":"2.0","id":1,"result":null}"#),
            response
        );
        assert!(matches!(
            parse(br#"{"id":2,"error":{"code":-1,"message":"no"}}"#),
            AgentMessage::Response {
                id: 2,
                outcome: Err(_)
            }
        ));
        let request = AgentMessage::Request {
            id: r#""a-1""#.to_owned(),
            method: "m".to_owned(),
            params: json!({ "x": 1 }),
        };
        assert_eq!(
            parse(br#"{"id":"a-1","method":"m","params":{"x":1}}"#),
            request
        );
        for line in [&br#"{"method":"m"}"#[..], br#"{"id":null,"method":"m"}"#] {
            assert!(matches!(parse(line), AgentMessage::Notification { .. }));
        }
        for line in [
            &b"starting up..."[..],
            b"\xff\xfe{",
            b"[1]",
            br#"{"id":1}"#,
            br#"{"id":"x","result":1}"#,
            br#"{"result":1}"#,
        ] {
            assert!(matches!(parse(line), AgentMessage::Invalid(_)));
        }
        assert_eq!(parse(b"  \r"), AgentMessage::Blank);
    }

    #[test]
    fn an_error_contains_the_agents_details() {
        let line = br#"{"id":2,"error":{"code":-1,"message":"Internal error","data":{"details":"no key"}}}"#;
        let AgentMessage::Response {
            outcome: Err(error),
            ..
        } = AgentMessage::parse(line)
        else {
            panic!("not an error");
        };
        assert_eq!(error.to_string(), "Internal error: no key");
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let AgentMessage::Invalid(text) = AgentMessage::parse(&bytes) {
                prop_assert!(!text.contains('\n'));
            }
        }
    }
}
