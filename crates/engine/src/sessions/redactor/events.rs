//! Redaction of whole events: the last look before they are stored.

use oubliette_model::Event;

use super::Redactor;

impl Redactor {
    /// Redacts every text in an event, of whatever kind.
    pub(crate) fn redact_event(&self, event: &mut Event) {
        match event {
            Event::Status { error, .. } | Event::ChildEnded { error, .. } => {
                self.redact_optional(error);
            }
            Event::Prompt { text, attachments } => {
                self.redact_string(text);
                attachments.iter_mut().for_each(|it| self.redact_string(it));
            }
            Event::Message { text } | Event::Delta { text, .. } | Event::Thought { text } => {
                self.redact_string(text);
            }
            Event::Plan { entries: value } | Event::Commands { commands: value } => {
                self.redact_value(value);
            }
            Event::Forked { transcript, .. } => self.redact_string(transcript),
            Event::Mode { mode } => self.redact_string(mode),
            Event::ToolCall {
                tool_call_id,
                title,
                kind,
                input,
            } => {
                for text in [tool_call_id, title, kind] {
                    self.redact_string(text);
                }
                self.redact_value(input);
            }
            Event::ToolResult {
                tool_call_id,
                output,
                ..
            } => {
                self.redact_string(tool_call_id);
                self.redact_string(output);
            }
            Event::PermissionRequest { title, input, .. } => {
                self.redact_string(title);
                self.redact_value(input);
            }
            Event::CallerToolRequest { arguments, .. } => {
                self.redact_value(arguments);
            }
            Event::CallerToolResponse { result, error, .. } => {
                self.redact_value(result);
                self.redact_optional(error);
            }
            Event::Completion { text, error, .. } => {
                self.redact_string(text);
                self.redact_optional(error);
            }
            Event::NetworkDenied { host, reason, .. } => {
                self.redact_string(host);
                self.redact_string(reason);
            }
            Event::Usage { model, .. } => self.redact_optional(model),
            Event::Error { message } | Event::Log { message, .. } => self.redact_string(message),
            Event::PermissionAnswer { .. }
            | Event::CallerToolCancelled { .. }
            | Event::ChildSpawned { .. }
            | Event::Checkpoint { .. }
            | Event::Rewound { .. } => {}
        }
    }

    fn redact_string(&self, text: &mut String) {
        if let Some(redacted) = self.redact(text) {
            *text = redacted;
        }
    }

    pub(crate) fn redact_optional(&self, text: &mut Option<String>) {
        if let Some(text) = text {
            self.redact_string(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use oubliette_model::Secret;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Kinds in which neither an agent nor a caller writes a text.
    const WITHOUT_TEXT: [&str; 5] = [
        "permission_answer",
        "caller_tool_cancelled",
        "child_spawned",
        "checkpoint",
        "rewound",
    ];

    /// An event of each kind with a text in every field that an agent or a caller writes.
    fn events(text: &str, value: &Value) -> Vec<Value> {
        let at = "2026-01-01T00:00:00Z";
        let id = format!("gogol_{}", "0".repeat(32));
        vec![
            json!({ "type": "status", "status": "failed", "error": text }),
            json!({ "type": "prompt", "text": text, "attachments": [text] }),
            json!({ "type": "message", "text": text }),
            json!({ "type": "delta", "text": text }),
            json!({ "type": "thought", "text": text }),
            json!({ "type": "plan", "entries": value }),
            json!({ "type": "commands", "commands": value }),
            json!({ "type": "mode", "mode": text }),
            json!({ "type": "tool_call", "tool_call_id": text, "title": text, "kind": text,
                "input": value }),
            json!({ "type": "tool_result", "tool_call_id": text, "status": "failed",
                "output": text }),
            json!({ "type": "permission_request", "request_id": "1", "kind": "permission",
                "title": text, "input": value, "expires_at": at }),
            json!({ "type": "permission_answer", "request_id": "1", "decision": "allow",
                "by": "caller" }),
            json!({ "type": "caller_tool_request", "request_id": "1", "tool": "t",
                "arguments": value, "expires_at": at }),
            json!({ "type": "caller_tool_response", "request_id": "1", "tool": "t",
                "outcome": "answered", "result": value, "error": text, "duration_ms": 1 }),
            json!({ "type": "caller_tool_cancelled", "request_id": "1", "tool": "t" }),
            json!({ "type": "child_spawned", "child_id": id, "agent": "demo" }),
            json!({ "type": "child_ended", "status": "failed", "error": text, "child_id": id }),
            json!({ "type": "completion", "text": text, "stop_reason": "error", "error": text }),
            json!({ "type": "usage", "input_tokens": 1, "output_tokens": 1, "cost_usd": null,
                "model": text }),
            json!({ "type": "checkpoint", "turn": 1, "checkpoint_id": "1", "files": 1, "added": 1,
                "removed": 1 }),
            json!({ "type": "rewound", "turn": 1, "what": "files" }),
            json!({ "type": "forked", "turn": 1, "transcript": text, "from_session_id": id }),
            json!({ "type": "network_denied", "host": text, "port": 1, "reason": text }),
            json!({ "type": "error", "message": text }),
            json!({ "type": "log", "message": text }),
        ]
    }

    /// All strings of a value, also the names of fields.
    fn texts(value: &Value) -> Vec<&str> {
        match value {
            Value::String(text) => vec![text],
            Value::Array(values) => values.iter().flat_map(texts).collect(),
            Value::Object(fields) => fields
                .iter()
                .flat_map(|(name, value)| [vec![name.as_str()], texts(value)].concat())
                .collect(),
            _ => Vec::new(),
        }
    }

    proptest! {
        /// Any secret, anywhere in a text, in every field of every kind of event.
        #[test]
        fn every_text_of_an_agent_or_caller_in_every_event_is_redacted(
            secret in "[a-zA-Z0-9ü\"\\\\\n -]{6,20}[A-Z]{4}",
            before in "[ a-z\"\\\\]{0,9}",
            after in "[ a-z\"\\\\]{0,9}",
        ) {
            let text = format!("{before}{secret}{after}");
            let value = json!({ "nested": [{ "text": text }], (secret.clone()): 1 });
            let redactor = Redactor::new([Secret::new(&secret)].into_iter());
            let mut kinds = BTreeSet::new();
            for event in events(&text, &value) {
                let kind = event["type"].as_str().unwrap().to_owned();
                let mut event: Event = serde_json::from_value(event).unwrap();
                redactor.redact_event(&mut event);
                let stored = serde_json::to_value(&event).unwrap();
                let shown = texts(&stored);
                prop_assert!(!shown.iter().any(|text| text.contains(&secret)), "{}", stored);
                let is_redacted = shown.iter().any(|text| text.contains("[redacted]"));
                prop_assert_eq!(is_redacted, !WITHOUT_TEXT.contains(&kind.as_str()), "{}", stored);
                kinds.insert(kind);
            }
            // A kind that is added must be here, too.
            prop_assert_eq!(kinds, Event::KINDS.map(str::to_owned).into_iter().collect());
        }
    }
}
