//! Lines for an agent's input.

use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, CancelNotification, ContentBlock, PromptRequest, ResourceLink,
};
use serde::Serialize;
use serde_json::{Value, json};

/// A file in the workspace that goes with a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Attached {
    pub name: String,
    /// As the agent sees it.
    pub path: String,
}

/// `session/prompt`.
pub fn prompt(id: u64, session: &str, text: &[&str], attached: &[Attached]) -> Vec<u8> {
    let texts = text.iter().map(|text| ContentBlock::from(*text));
    let links = attached.iter().map(|file| {
        let uri = format!("file://{}", file.path);
        ContentBlock::ResourceLink(ResourceLink::new(file.name.clone(), uri))
    });
    let request = PromptRequest::new(session.to_owned(), texts.chain(links).collect());
    request_line(id, AGENT_METHOD_NAMES.session_prompt, &request)
}

/// `session/cancel`.
pub fn cancel(session: &str) -> Vec<u8> {
    let params = value(&CancelNotification::new(session.to_owned()));
    line(&json!({
        "jsonrpc": "2.0", "method": AGENT_METHOD_NAMES.session_cancel, "params": params,
    }))
}

/// The answer to a request that nobody here can do.
pub fn refuse(id: &str, method: &str) -> Vec<u8> {
    let error = json!({ "code": -32601, "message": format!("there is no method {method}") });
    reply(id, "error", &error)
}

pub(crate) fn request_line(id: u64, method: &str, params: &impl Serialize) -> Vec<u8> {
    line(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": value(params) }))
}

/// `id` is JSON as the agent wrote it.
pub(crate) fn reply(id: &str, key: &str, body: &Value) -> Vec<u8> {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{key}\":{body}}}\n").into_bytes()
}

fn value(params: &impl Serialize) -> Value {
    serde_json::to_value(params).unwrap_or_default()
}

fn line(message: &Value) -> Vec<u8> {
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_one_line_whatever_it_says() {
        let attached = [Attached {
            name: "a.txt".to_owned(),
            path: "/workspace/a.txt".to_owned(),
        }];
        let line = prompt(7, "s", &["a\nb\u{0}\u{1b}[31m"], &attached);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["method"], "session/prompt");
        assert_eq!(value["params"]["prompt"][0]["text"], "a\nb\u{0}\u{1b}[31m");
        assert_eq!(
            value["params"]["prompt"][1]["uri"],
            "file:///workspace/a.txt"
        );
    }

    #[test]
    fn an_answer_gives_the_id_back_as_it_was() {
        let line = refuse(r#""x-1""#, "fs/read_text_file");
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(
            (&value["id"], &value["error"]["code"]),
            (&json!("x-1"), &json!(-32601))
        );
    }
}
