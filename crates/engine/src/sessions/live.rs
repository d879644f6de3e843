//! Where the owner of a session is with its agent: committed in every step, so that whoever owns it
//! next goes on from there.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An agent's process and how far it has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Live {
    pub(super) process_id: String,
    pub(super) container: String,
    /// The life of the container in which it was started.
    pub(super) boot_id: String,
    /// Whether it takes prompts. One that does not is ended by the next owner.
    pub(super) ready: bool,
    /// Everything before this place of its output is in the log.
    pub(super) stdout: u64,
    /// The line at that place is longer than any we take; its rest is skipped.
    #[serde(default)]
    pub(super) skipping: bool,
    /// The end of what it was given.
    pub(super) stdin: u64,
    /// The next id for a request.
    pub(super) next_id: u64,
    pub(super) turn: Option<Turn>,
    /// Tools that have begun and not ended.
    #[serde(default)]
    pub(super) tools: BTreeMap<String, OpenTool>,
    /// The last tools of this turn that have ended: some agents end one twice.
    #[serde(default)]
    pub(super) ended: VecDeque<String>,
    /// Text that has begun and not ended.
    #[serde(default)]
    pub(super) block: Option<Block>,
    /// Whether it says what it costs; otherwise the configuration does.
    #[serde(default)]
    pub(super) reports_cost: bool,
    /// What the agent's own session has cost, as it said last.
    #[serde(default)]
    pub(super) cost_seen: f64,
    /// How full its context was and can be, as the log has it.
    #[serde(default)]
    pub(super) context_seen: (Option<u64>, Option<u64>),
    /// Whether the agent must be told what was before.
    #[serde(default)]
    pub(super) forgetful: bool,
}

/// A prompt that has no answer yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    /// The id of the prompt's request.
    pub(super) request: u64,
    /// The place in the agent's input after it.
    pub(super) request_end: u64,
    /// The end of the log when it began.
    pub(super) start: i64,
    #[serde(default)]
    pub(super) cancelled: Option<Cancelled>,
}

/// Why a turn was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Cancelled {
    Wanted,
    Budget,
}

/// A tool that has not ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenTool {
    pub(super) title: String,
    pub(super) kind: String,
    /// Whether the log has it.
    pub(super) told: bool,
    /// What it was given, until the log has that.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) input: Value,
    /// What it has said so far, where the agent streams that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) output: String,
    /// Whether that is not all of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) truncated: bool,
}

/// Text in the making.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Block {
    pub(super) thought: bool,
    /// The agent's name for it.
    #[serde(default)]
    pub(super) message: Option<String>,
    /// No part of it is in the log before this index.
    pub(super) start: i64,
}
