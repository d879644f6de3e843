//! What happens in a session, one thing at a time.
//!
//! An event's place in the log, its session and its time are the envelope's; this is the rest.
//! These shapes are read by callers: they only grow.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallerOutcome, SessionId, Status, StopReason, Usage, Verdict, Waiting, WaitingKind};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    Status {
        status: Status,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waiting_for: Option<Waiting>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Prompt {
        text: String,
        /// Names of the files that came with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attachments: Vec<String>,
    },
    /// Text of the agent, whole. What was streamed of it before is its beginning.
    Message {
        text: String,
    },
    /// More text of the agent, as it came.
    Delta {
        text: String,
        #[serde(default, skip_serializing_if = "is_false")]
        thought: bool,
    },
    Thought {
        text: String,
    },
    Plan {
        entries: Value,
    },
    ToolCall {
        tool_call_id: String,
        title: String,
        kind: String,
        #[serde(default, skip_serializing_if = "Value::is_null")]
        input: Value,
    },
    ToolResult {
        tool_call_id: String,
        /// `completed` or `failed`.
        status: String,
        output: String,
        #[serde(default, skip_serializing_if = "is_false")]
        truncated: bool,
    },
    PermissionRequest {
        request_id: String,
        kind: WaitingKind,
        title: String,
        #[serde(default, skip_serializing_if = "Value::is_null")]
        input: Value,
        expires_at: Timestamp,
    },
    PermissionAnswer {
        request_id: String,
        decision: Verdict,
        /// `caller`, `deadline`, or `interrupt`.
        by: String,
    },
    /// The agent calls a tool of the caller's, and waits.
    CallerToolRequest {
        request_id: String,
        tool: String,
        arguments: Value,
        expires_at: Timestamp,
    },
    /// What came of it.
    CallerToolResponse {
        request_id: String,
        tool: String,
        outcome: CallerOutcome,
        #[serde(default, skip_serializing_if = "Value::is_null")]
        result: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        duration_ms: u64,
    },
    /// Nobody waits for it any more.
    CallerToolCancelled {
        request_id: String,
        tool: String,
    },
    ChildSpawned {
        child_id: SessionId,
        agent: String,
    },
    ChildEnded {
        child_id: SessionId,
        status: Status,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Usage {
        /// Of the whole session, so far.
        #[serde(flatten)]
        usage: Usage,
        cost_usd: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context_used: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context_size: Option<u64>,
    },
    Completion {
        text: String,
        stop_reason: StopReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Error {
        message: String,
    },
    Log {
        message: String,
        /// How a session went on: `resume`, `load` or `transcript`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resumed_by: Option<String>,
    },
}

impl Event {
    pub fn status(status: Status) -> Self {
        Self::Status {
            status,
            waiting_for: None,
            error: None,
        }
    }

    pub fn log(message: impl Into<String>) -> Self {
        Self::Log {
            message: message.into(),
            resumed_by: None,
        }
    }

    /// The value of `type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Status { .. } => "status",
            Self::Prompt { .. } => "prompt",
            Self::Message { .. } => "message",
            Self::Delta { .. } => "delta",
            Self::Thought { .. } => "thought",
            Self::Plan { .. } => "plan",
            Self::ToolCall { .. } => "tool_call",
            Self::ToolResult { .. } => "tool_result",
            Self::PermissionRequest { .. } => "permission_request",
            Self::PermissionAnswer { .. } => "permission_answer",
            Self::CallerToolRequest { .. } => "caller_tool_request",
            Self::CallerToolResponse { .. } => "caller_tool_response",
            Self::CallerToolCancelled { .. } => "caller_tool_cancelled",
            Self::ChildSpawned { .. } => "child_spawned",
            Self::ChildEnded { .. } => "child_ended",
            Self::Usage { .. } => "usage",
            Self::Completion { .. } => "completion",
            Self::Error { .. } => "error",
            Self::Log { .. } => "log",
        }
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_the_type_that_readers_see() {
        let events = [
            Event::status(Status::Created),
            Event::log("x"),
            Event::Usage {
                usage: Usage::default(),
                cost_usd: 0.5,
                context_used: None,
                context_size: None,
            },
            Event::Completion {
                text: String::new(),
                stop_reason: StopReason::EndTurn,
                error: None,
            },
        ];
        for event in events {
            let json = serde_json::to_value(&event).unwrap();
            assert_eq!(json["type"], event.kind());
            assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
        }
    }
}
