//! What the store keeps about a session's running agent. Every step commits it, so that an actor of a
//! restarted server can continue.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use oubliette_model::{TurnKind, Usage, WorkspaceId};
use oubliette_runtime::ContainerId;
use oubliette_store::{Project, Session};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::redactor::HeldText;
use crate::containers::ContainerScope;
use crate::gateway::Placeholder;

/// An agent's process and how far its session has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct LiveAgent {
    pub(super) process_id: String,
    pub(super) container: String,
    /// Identifies the run of the container that it was started in.
    pub(super) boot_id: String,
    /// Its home directory in the container; that of the project if absent.
    #[serde(default)]
    pub(super) home: Option<String>,
    /// The placeholder keys that it was started with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) placeholders: Vec<Placeholder>,
    /// The fingerprint of its caller's tools when it was started.
    #[serde(default)]
    pub(super) caller_tools: Option<String>,
    /// Whether it has had a prompt.
    #[serde(default)]
    pub(super) prompted: bool,
    /// Whether the handshake is done. An actor ends a process that another actor left before that.
    pub(super) ready: bool,
    /// Output before this offset is in the log.
    #[serde(rename = "stdout")]
    pub(super) stdout_offset: u64,
    /// The line at that offset is too long; the rest of it is skipped.
    #[serde(default, rename = "skipping")]
    pub(super) skipping_line: bool,
    /// The offset after the last input.
    #[serde(rename = "stdin")]
    pub(super) stdin_offset: u64,
    #[serde(rename = "next_id")]
    pub(super) next_request_id: u64,
    pub(super) turn: Option<Turn>,
    /// Tool calls that have started and not ended.
    #[serde(default, rename = "tools")]
    pub(super) open_tools: BTreeMap<String, OpenTool>,
    /// The tool calls of this turn that ended last: some agents report an end twice.
    #[serde(default, rename = "ended")]
    pub(super) ended_tools: VecDeque<String>,
    /// Text that is still being streamed.
    #[serde(default, rename = "block")]
    pub(super) open_text: Option<OpenText>,
    /// Whether the agent reports its cost; otherwise it is computed from the configured prices.
    #[serde(default)]
    pub(super) reports_cost: bool,
    /// The cost of the agent's own session that it reported last.
    #[serde(default, rename = "cost_seen")]
    pub(super) reported_cost_usd: f64,
    /// The tokens of its process that the agent reported last, if it reports all of them.
    #[serde(default, skip_serializing_if = "has_no_tokens")]
    pub(super) reported_tokens: Usage,
    /// The tokens of the calls of the model in this turn, if the agent reports each.
    #[serde(default, skip_serializing_if = "has_no_tokens")]
    pub(super) call_tokens: Usage,
    /// The used and total context tokens that the log has.
    #[serde(default, rename = "context_seen")]
    pub(super) logged_context: (Option<u64>, Option<u64>),
    /// The used and total context tokens that the agent reported last.
    #[serde(default)]
    pub(super) context: (Option<u64>, Option<u64>),
    /// Whether the next prompt must include the transcript, which the agent does not remember.
    #[serde(default, rename = "forgetful")]
    pub(super) needs_transcript: bool,
    /// Whether prompts may have images.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) takes_images: bool,
    /// Whether the agent has reported that it works, and not yet that it is idle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_working: bool,
    /// Whether the log has that the agent has been silent since its last output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) silence_logged: bool,
    /// The number of notices of the agent in this turn.
    #[serde(default)]
    pub(super) notices: u32,
    /// The last notice of the agent in this turn.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) last_notice: String,
    /// The agent's mode that the log has.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) mode: String,
    /// A hash of the plan that the log has, of an agent that writes it by a tool.
    #[serde(default)]
    pub(super) plan_hash: u64,
    /// A hash of the agent's slash commands that the log has.
    #[serde(default)]
    pub(super) commands_hash: u64,
}

fn has_no_tokens(usage: &Usage) -> bool {
    usage.is_zero()
}

impl LiveAgent {
    /// None if there is no agent, or if a newer server stored it in a format that this one cannot read;
    /// such an agent ends with its container.
    pub(super) fn from_session(session: &Session) -> Option<Self> {
        serde_json::from_str(session.live.as_deref()?).ok()
    }

    pub(super) fn container_id(&self, project: &Project) -> ContainerId {
        ContainerId::new(self.container.as_str()).unwrap_or_else(|| {
            ContainerScope::of_workspace(project, &WorkspaceId::default()).container_id()
        })
    }
}

/// A prompt that the agent has not answered yet, or work that it does without one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    #[serde(rename = "request")]
    pub(super) request_id: u64,
    /// The offset in the agent's input after the prompt.
    #[serde(rename = "request_end")]
    pub(super) request_end_offset: u64,
    /// The end of the log when the turn started.
    #[serde(rename = "start")]
    pub(super) start_index: i64,
    #[serde(default)]
    pub(super) cancelled: Option<CancelReason>,
    #[serde(default, skip_serializing_if = "TurnKind::is_prompt")]
    pub(super) kind: TurnKind,
    /// Whether the agent has reported that the turn failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) failed: bool,
    /// Whether the prompt is a slash command, which may need no model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_command: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) started_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CancelReason {
    #[serde(rename = "wanted")]
    Requested,
    Budget,
    /// The agent has given no sign.
    Stalled,
}

/// A tool call that has not ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenTool {
    pub(super) title: String,
    pub(super) kind: String,
    /// Whether its `tool_call` event is in the log.
    #[serde(rename = "told")]
    pub(super) logged: bool,
    /// Whether the log has only the paths of the files that it is about.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) shows_only_paths: bool,
    /// Its input, until that is in the log.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) input: Value,
    /// The output so far, if the agent streams it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) output: String,
    /// The end of the output so far that may be the start of a secret.
    #[serde(default, skip_serializing_if = "HeldText::is_empty")]
    pub(super) held: HeldText,
    /// Whether `output` is incomplete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) truncated: bool,
}

/// A message or thought that is still being streamed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenText {
    #[serde(rename = "thought")]
    pub(super) is_thought: bool,
    /// The agent's id for it.
    #[serde(default, rename = "message")]
    pub(super) message_id: Option<String>,
    /// No part of it is in the log before this index.
    #[serde(rename = "start")]
    pub(super) start_index: i64,
    /// The end of it that may be the start of a secret.
    #[serde(default, skip_serializing_if = "HeldText::is_empty")]
    pub(super) held: HeldText,
}
