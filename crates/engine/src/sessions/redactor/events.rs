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
    use oubliette_model::Secret;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_text_of_an_agent_or_caller_in_every_event_is_redacted() {
        let secret = "CANARY of an agent";
        let text = format!("it is {secret}");
        let value = json!({ "nested": [{ "text": text }], (secret): 1 });
        let at = "2026-01-01T00:00:00Z";
        let events = [
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
            json!({ "type": "caller_tool_request", "request_id": "1", "tool": "t",
                "arguments": value, "expires_at": at }),
            json!({ "type": "caller_tool_response", "request_id": "1", "tool": "t",
                "outcome": "answered", "result": value, "error": text, "duration_ms": 1 }),
            json!({ "type": "child_ended", "status": "failed", "error": text,
                "child_id": format!("gogol_{}", "0".repeat(32)) }),
            json!({ "type": "completion", "text": text, "stop_reason": "error", "error": text }),
            json!({ "type": "usage", "input_tokens": 1, "output_tokens": 1, "cost_usd": null,
                "model": text }),
            json!({ "type": "forked", "turn": 1, "transcript": text,
                "from_session_id": format!("gogol_{}", "0".repeat(32)) }),
            json!({ "type": "error", "message": text }),
            json!({ "type": "log", "message": text }),
        ];
        let redactor = Redactor::new([Secret::new(secret)].into_iter());
        for event in events {
            let mut event: Event = serde_json::from_value(event).unwrap();
            redactor.redact_event(&mut event);
            let shown = serde_json::to_string(&event).unwrap();
            assert!(!shown.contains(secret), "{shown}");
            assert!(shown.contains("[redacted]"), "{shown}");
        }
    }
}
