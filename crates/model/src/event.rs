//! The events of a session.
//!
//! The envelope around an event has its position in the log, its session and its time. Callers read
//! these types: fields may be added, but not changed or removed.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AwaitedRequest, AwaitedRequestKind, CallerToolOutcome, PermissionDecision, SessionId, Status,
    StopReason, TurnKind, Usage,
};

/// What changed between two checkpoints. Null if it is not known, or too much to count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Changed {
    pub files: Option<u64>,
    /// Lines.
    pub added: Option<u64>,
    pub removed: Option<u64>,
}

/// What of a session is set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RewoundPart {
    Files,
    Conversation,
    Both,
}

impl RewoundPart {
    pub fn has_files(self) -> bool {
        self != Self::Conversation
    }

    pub fn has_conversation(self) -> bool {
        self != Self::Files
    }
}

/// One entry of the log of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    Status {
        status: Status,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waiting_for: Option<AwaitedRequest>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// The kind of turn that has started.
        #[serde(default, skip_serializing_if = "TurnKind::is_prompt")]
        kind: TurnKind,
    },
    Prompt {
        text: String,
        /// The names of the attached files.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attachments: Vec<String>,
    },
    /// A complete text of the agent, including what was streamed before as `Delta`.
    Message {
        text: String,
    },
    /// A streamed part of a text of the agent.
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
        kind: AwaitedRequestKind,
        title: String,
        #[serde(default, skip_serializing_if = "Value::is_null")]
        input: Value,
        expires_at: Timestamp,
    },
    PermissionAnswer {
        request_id: String,
        decision: PermissionDecision,
        /// `caller`, `deadline`, `interrupt`, `rule` (of the project, which allows the host now), or `withdrawn`: nothing
        /// waits for the answer any more.
        by: String,
    },
    /// The agent calls a tool of the caller and waits for the result.
    CallerToolRequest {
        request_id: String,
        tool: String,
        arguments: Value,
        expires_at: Timestamp,
    },
    /// The outcome of a call of a caller's tool.
    CallerToolResponse {
        request_id: String,
        tool: String,
        outcome: CallerToolOutcome,
        #[serde(default, skip_serializing_if = "Value::is_null")]
        result: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        duration_ms: u64,
    },
    /// The agent no longer waits for the result of a caller's tool.
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
        /// The total of the session so far.
        #[serde(flatten)]
        usage: Usage,
        /// Null if it is unknown.
        cost_usd: Option<f64>,
        /// The model that the agent uses, as far as it says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context_used: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context_size: Option<u64>,
        /// Whether something that was added is an estimate: an answer was cut, or did not say how many tokens it took.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_estimate: bool,
    },
    Completion {
        text: String,
        stop_reason: StopReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        #[serde(default, skip_serializing_if = "TurnKind::is_prompt")]
        kind: TurnKind,
        /// What the turn changed in its workspace; absent if that is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        changed: Option<Changed>,
    },
    /// The workspace after a turn is kept, and what changed since the start of the turn.
    Checkpoint {
        turn: u32,
        checkpoint_id: String,
        #[serde(flatten)]
        changed: Changed,
    },
    /// The session was set back to where it was after a turn.
    Rewound {
        turn: u32,
        what: RewoundPart,
        /// The checkpoint of the files as they were before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checkpoint_id: Option<String>,
    },
    /// The session continues another one from a turn on.
    Forked {
        from_session_id: SessionId,
        turn: u32,
        /// What was said until then.
        transcript: String,
    },
    /// The slash commands that the agent has now.
    Commands {
        commands: Value,
    },
    /// The agent's own mode, which has changed.
    Mode {
        mode: String,
    },
    /// A connection that the network policy does not allow.
    NetworkDenied {
        host: String,
        /// Absent if the name was only looked up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// The rule that decided.
        reason: String,
    },
    Error {
        message: String,
    },
    Log {
        message: String,
        /// How the session was resumed: `resume`, `load` or `transcript`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resumed_by: Option<String>,
    },
}

impl Event {
    /// Every value of `type`.
    pub const KINDS: [&str; 25] = [
        "status",
        "prompt",
        "message",
        "delta",
        "thought",
        "plan",
        "tool_call",
        "tool_result",
        "permission_request",
        "permission_answer",
        "caller_tool_request",
        "caller_tool_response",
        "caller_tool_cancelled",
        "child_spawned",
        "child_ended",
        "usage",
        "completion",
        "checkpoint",
        "rewound",
        "forked",
        "commands",
        "mode",
        "network_denied",
        "error",
        "log",
    ];

    pub fn status(status: Status) -> Self {
        Self::Status {
            status,
            waiting_for: None,
            error: None,
            kind: TurnKind::Prompt,
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
            Self::Checkpoint { .. } => "checkpoint",
            Self::Rewound { .. } => "rewound",
            Self::Forked { .. } => "forked",
            Self::Commands { .. } => "commands",
            Self::Mode { .. } => "mode",
            Self::NetworkDenied { .. } => "network_denied",
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
    fn the_kind_is_the_serialized_type() {
        let events = [
            Event::status(Status::Created),
            Event::log("x"),
            Event::Usage {
                usage: Usage::default(),
                cost_usd: Some(0.5),
                model: None,
                context_used: None,
                context_size: None,
                is_estimate: false,
            },
            Event::Completion {
                text: String::new(),
                stop_reason: StopReason::EndTurn,
                error: None,
                kind: TurnKind::Background,
                changed: None,
            },
            Event::Checkpoint {
                turn: 1,
                checkpoint_id: "a".to_owned(),
                changed: Changed {
                    files: Some(1),
                    ..Changed::default()
                },
            },
            Event::Rewound {
                turn: 0,
                what: RewoundPart::Both,
                checkpoint_id: None,
            },
            Event::Mode {
                mode: "plan".to_owned(),
            },
        ];
        for event in events {
            let json = serde_json::to_value(&event).unwrap();
            assert_eq!(json["type"], event.kind());
            assert!(Event::KINDS.contains(&event.kind()));
            assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
        }
    }
}
