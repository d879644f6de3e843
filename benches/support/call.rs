//! A JSON-RPC call that is written once and sent many times, and the reply it must get.

use serde_json::Value;

use crate::Connection;
use crate::connection::position;

/// Ids are of one length, so that they can be replaced in place.
const FIRST_ID: u64 = 1_000_000_000;

/// Each sending has an id of its own; everything else stays the same, in the request and in the
/// reply.
#[derive(Debug, Clone)]
pub struct Call {
    id: u64,
    request: Numbered,
    expected: Option<Numbered>,
    check: fn(&Value) -> bool,
}

impl Call {
    /// `head` is the request line and the headers but for the body's; `check` says whether the
    /// first reply is what was asked for. The others must be equal to it.
    pub fn new(head: &str, method: &str, params: &Value, check: fn(&Value) -> bool) -> Self {
        let body = serde_json::json!({
            "jsonrpc": "2.0", "id": FIRST_ID, "method": method, "params": params,
        });
        let body = body.to_string();
        let request = format!(
            "{head}host: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        Self {
            id: FIRST_ID,
            request: Numbered::new(request.into_bytes(), FIRST_ID),
            expected: None,
            check,
        }
    }

    /// Sends the call and checks its reply; how long the reply was.
    pub fn run(&mut self, connection: &mut Connection) -> usize {
        self.id += 1;
        self.request.number(self.id);
        let reply = connection.send(&self.request.bytes);
        let message = reply.message();
        if reply.status != 200 {
            panic!("{}: {}", reply.status, String::from_utf8_lossy(reply.body));
        }
        let expected = self.expected.get_or_insert_with(|| {
            let value: Value = serde_json::from_slice(message).unwrap_or_default();
            let text = String::from_utf8_lossy(message);
            assert!((self.check)(&value), "not the expected result: {text}");
            Numbered::new(message.to_vec(), self.id)
        });
        expected.number(self.id);
        if expected.bytes != message {
            let text = String::from_utf8_lossy(reply.body);
            panic!("another result than before: {text}");
        }
        reply.body.len()
    }

    /// The last reply.
    pub fn reply(&self) -> Value {
        let expected = self.expected.as_ref().expect("nothing was sent");
        serde_json::from_slice(&expected.bytes).unwrap()
    }
}

/// Bytes with an id in them.
#[derive(Debug, Clone)]
struct Numbered {
    bytes: Vec<u8>,
    at: usize,
}

impl Numbered {
    fn new(bytes: Vec<u8>, id: u64) -> Self {
        let field = format!("\"id\":{id}");
        let at = position(&bytes, field.as_bytes()).expect("no id in the message");
        Self {
            at: at + "\"id\":".len(),
            bytes,
        }
    }

    fn number(&mut self, id: u64) {
        let mut rest = id;
        for digit in self.bytes[self.at..self.at + 10].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}
