//! A JSON-RPC call that is serialized once and sent many times, and the reply that it must get.

use serde_json::Value;

use crate::Connection;
use crate::connection::position;

/// All ids have the same length, so that they can be replaced in place.
const FIRST_ID: u64 = 1_000_000_000;

/// Only the id differs between two requests, and between their replies.
#[derive(Debug, Clone)]
pub struct Call {
    id: u64,
    request: MessageTemplate,
    expected: Option<MessageTemplate>,
    check: fn(&Value) -> bool,
}

impl Call {
    /// `head` has the request line and all headers except those of the body. `check` validates the first
    /// reply; all others must equal it.
    pub fn new(head: &str, method: &str, params: &Value, check: fn(&Value) -> bool) -> Self {
        let body = serde_json::json!({
            "jsonrpc": "2.0", "id": FIRST_ID, "method": method, "params": params,
        })
        .to_string();
        let request = format!(
            "{head}host: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        Self {
            id: FIRST_ID,
            request: MessageTemplate::new(request.into_bytes(), FIRST_ID),
            expected: None,
            check,
        }
    }

    /// Sends the call and checks its reply. Returns the length of the reply's body.
    pub fn run(&mut self, connection: &mut Connection) -> usize {
        self.id += 1;
        self.request.set_id(self.id);
        let reply = connection.send(&self.request.bytes);
        let message = reply.message();
        if reply.status != 200 {
            panic!("{}: {}", reply.status, String::from_utf8_lossy(reply.body));
        }
        let expected = self.expected.get_or_insert_with(|| {
            let value: Value = serde_json::from_slice(message).unwrap_or_default();
            let text = String::from_utf8_lossy(message);
            assert!((self.check)(&value), "unexpected result: {text}");
            MessageTemplate::new(message.to_vec(), self.id)
        });
        expected.set_id(self.id);
        if expected.bytes != message {
            let text = String::from_utf8_lossy(reply.body);
            panic!("the result differs from the first one: {text}");
        }
        reply.body.len()
    }

    /// The last reply.
    pub fn reply(&self) -> Value {
        let expected = self.expected.as_ref().expect("nothing was sent");
        serde_json::from_slice(&expected.bytes).unwrap()
    }
}

/// A message whose id can be replaced.
#[derive(Debug, Clone)]
struct MessageTemplate {
    bytes: Vec<u8>,
    at: usize,
}

impl MessageTemplate {
    fn new(bytes: Vec<u8>, id: u64) -> Self {
        let field = format!("\"id\":{id}");
        let at = position(&bytes, field.as_bytes()).expect("no id in the message");
        Self {
            at: at + "\"id\":".len(),
            bytes,
        }
    }

    fn set_id(&mut self, id: u64) {
        let mut rest = id;
        for digit in self.bytes[self.at..self.at + 10].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}
