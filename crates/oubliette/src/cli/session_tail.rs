//! What a session does now, from the end of its log: the request that it waits for, the tool that runs, or its
//! last words.

use serde_json::{Map, Value};

use super::client::{CallError, Client};
use super::event_log::EventLog;
use super::transcript::{describe_call, first_line};
use crate::terminal::printable;

/// How many of the last events are looked at.
const TAIL_EVENTS: i64 = 100;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tail {
    /// The event of the request that it waits for.
    pub(super) request: Option<Value>,
    /// The title of the tool that runs.
    tool: Option<String>,
    last_words: Option<String>,
}

impl Tail {
    /// Reads the end of the log of a session, whose row is that of `session_list` or `session_get`.
    pub(super) async fn read(client: &Client, row: &Map<String, Value>) -> Result<Self, CallError> {
        let last = row.get("last_index").and_then(Value::as_i64).unwrap_or(-1);
        let Some(session) = row.get("session_id").and_then(Value::as_str) else {
            return Ok(Self::default());
        };
        let mut log = EventLog::new(client, session, (last - TAIL_EVENTS).max(-1));
        let page = log.read(0.0).await?;
        let waiting = row.get("waiting_for");
        let request = waiting.and_then(|waiting| waiting["request_id"].as_str());
        Ok(Self::of(page.events.iter(), request))
    }

    fn of<'a>(events: impl Iterator<Item = &'a Value>, request_id: Option<&str>) -> Self {
        let mut tail = Self::default();
        let mut streamed = String::new();
        let mut tools: Vec<(&Value, String)> = Vec::new();
        for event in events {
            match event["type"].as_str().unwrap_or_default() {
                "delta" if event["thought"] != true => {
                    streamed.push_str(event["text"].as_str().unwrap_or_default());
                }
                "message" => {
                    event["text"]
                        .as_str()
                        .unwrap_or_default()
                        .clone_into(&mut streamed);
                    tail.last_words = last_line(&streamed);
                    streamed.clear();
                }
                "prompt" | "completion" => {
                    streamed.clear();
                    tools.clear();
                }
                "tool_call" => tools.push((&event["tool_call_id"], describe_call(event))),
                "tool_result" => tools.retain(|(id, _)| **id != event["tool_call_id"]),
                "permission_request" | "caller_tool_request"
                    if event["request_id"].as_str() == request_id =>
                {
                    tail.request = Some(event.clone());
                }
                _ => {}
            }
        }
        if let Some(words) = last_line(&streamed) {
            tail.last_words = Some(words);
        }
        tail.tool = tools.pop().map(|(_, title)| title);
        tail
    }

    /// One line: what it waits for or does.
    pub(super) fn describe(&self) -> String {
        let line = match (&self.request, &self.tool, &self.last_words) {
            (Some(request), ..) => format!("? {}", describe_awaited(request)),
            (None, Some(tool), _) => format!("▸ {}", first_line(tool)),
            (None, None, Some(words)) => words.clone(),
            (None, None, None) => String::new(),
        };
        printable(&line)
    }
}

/// What a request asks for, in one line.
pub(super) fn describe_awaited(request: &Value) -> String {
    let line = match request["type"].as_str() {
        Some("caller_tool_request") => {
            let tool = request["tool"].as_str().unwrap_or_default();
            format!("the result of {tool} {}", request["arguments"])
        }
        _ => describe_call(request),
    };
    printable(first_line(&line))
}

fn last_line(text: &str) -> Option<String> {
    let mut lines = text.lines().rev();
    let line = lines.find(|line| !line.trim().is_empty())?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tail_is_the_request_or_the_tool_or_the_last_words() {
        let mut events = vec![
            json!({ "type": "message", "text": "I begin.\n\n" }),
            json!({ "type": "tool_call", "tool_call_id": "1", "title": "bash", "input": { "command": "ls" } }),
            json!({ "type": "permission_request", "request_id": "r", "title": "bash",
                "input": { "command": "rm -rf build" } }),
        ];
        let described = |events: &[Value], request| Tail::of(events.iter(), request).describe();
        assert_eq!(described(&events, Some("r")), "? bash: rm -rf build");
        assert_eq!(described(&events, None), "▸ bash: ls");
        events.push(json!({ "type": "tool_result", "tool_call_id": "1" }));
        assert_eq!(described(&events, None), "I begin.");
        events.push(json!({ "type": "delta", "text": "Now\u{1b}[2J I" }));
        events.push(json!({ "type": "delta", "text": " go on" }));
        assert_eq!(described(&events, None), "Now [2J I go on");
    }
}
