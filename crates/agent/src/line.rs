//! One line of an agent's output.
//!
//! Agents write what they like: a line that is not a message is noise and goes to the log; nothing
//! is ever written back because of it.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Why an agent refused a request.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RpcError {
    #[serde(default)]
    pub code: i64,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub data: Option<Value>,
}

impl std::fmt::Display for RpcError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        // Where agents put the reason differs.
        let detail = self.data.as_ref().and_then(|data| {
            let known = ["details", "message", "error"].into_iter();
            known.filter_map(|key| data.get(key)?.as_str()).next()
        });
        match detail {
            Some(detail) if detail != self.message => write!(f, ": {detail}"),
            _ => Ok(()),
        }
    }
}

/// What a line is.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// The answer to a request of ours.
    Reply {
        id: u64,
        outcome: Result<Value, RpcError>,
    },
    /// A request of the agent's; `id` is its JSON, to be given back as it is.
    Request {
        id: String,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// Something else.
    Noise(String),
    Empty,
}

#[derive(Deserialize)]
struct Raw<'a> {
    // `present`, because a null is something else than nothing: `{"id":1,"result":null}` is a reply.
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default, deserialize_with = "present_value")]
    result: Option<Value>,
    #[serde(default)]
    error: Option<RpcError>,
}

fn present<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

fn present_value<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

const NOISE: usize = 2000;

/// Reads a line without its end.
pub fn read(bytes: &[u8]) -> Line {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Line::Empty;
    }
    let Ok(raw) = serde_json::from_slice::<Raw<'_>>(bytes) else {
        return noise(bytes);
    };
    match (raw.id, raw.method) {
        (Some(id), Some(method)) if id.get() != "null" => Line::Request {
            id: id.get().to_owned(),
            method,
            params: raw.params,
        },
        (_, Some(method)) => Line::Notification {
            method,
            params: raw.params,
        },
        (Some(id), None) => match (id.get().parse(), raw.error, raw.result) {
            (Ok(id), Some(error), _) => Line::Reply {
                id,
                outcome: Err(error),
            },
            (Ok(id), None, Some(result)) => Line::Reply {
                id,
                outcome: Ok(result),
            },
            _ => noise(bytes),
        },
        (None, None) => noise(bytes),
    }
}

fn noise(bytes: &[u8]) -> Line {
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(NOISE)]);
    let mut shown: String = shown.chars().filter(|c| !c.is_control()).collect();
    if bytes.len() > NOISE {
        shown.push('…');
    }
    Line::Noise(shown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_told_apart() {
        let reply = Line::Reply {
            id: 1,
            outcome: Ok(Value::Null),
        };
        assert_eq!(read(br#"{"jsonrpc":"2.0","id":1,"result":null}"#), reply);
        assert!(matches!(
            read(br#"{"id":2,"error":{"code":-1,"message":"no"}}"#),
            Line::Reply {
                id: 2,
                outcome: Err(_)
            }
        ));
        let request = Line::Request {
            id: r#""a-1""#.to_owned(),
            method: "m".to_owned(),
            params: json!({ "x": 1 }),
        };
        assert_eq!(
            read(br#"{"id":"a-1","method":"m","params":{"x":1}}"#),
            request
        );
        assert!(matches!(
            read(br#"{"method":"m"}"#),
            Line::Notification { .. }
        ));
        assert!(matches!(read(b"starting up..."), Line::Noise(_)));
        assert!(matches!(read(b"\xff\xfe{"), Line::Noise(_)));
        assert!(matches!(read(b"[1]"), Line::Noise(_)));
        assert_eq!(read(b"  \r"), Line::Empty);
    }

    #[test]
    fn an_error_says_what_the_agent_said() {
        let line = br#"{"id":2,"error":{"code":-1,"message":"Internal error","data":{"details":"no key"}}}"#;
        let Line::Reply {
            outcome: Err(error),
            ..
        } = read(line)
        else {
            panic!("not an error");
        };
        assert_eq!(error.to_string(), "Internal error: no key");
    }

    proptest! {
        #[test]
        fn any_bytes_are_some_line(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Line::Noise(text) = read(&bytes) {
                prop_assert!(!text.contains('\n'));
            }
        }
    }
}
