//! The states of a session and the transitions between them.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::InvalidValue;

/// The state of a session. Doc comments on the variants would turn the JSON schema from a plain list
/// of words into a list of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Status {
    // It has a prompt, but no turn has started.
    Created,
    // A turn is running.
    Running,
    // Its last turn has ended; the next message starts another.
    Idle,
    // It needs a decision or the result of a caller's tool before it goes on.
    Waiting,
    // It was ended while no turn was running.
    Completed,
    // It was ended during a turn.
    Interrupted,
    // Its agent could not start, or died.
    Failed,
}

/// What changes the state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transition {
    /// A prompt was sent to the agent.
    Prompted,
    /// The agent works without a prompt.
    BackgroundStarted,
    /// The session waits for a request to be answered.
    WaitStarted,
    /// The last pending request was answered, and the turn goes on.
    WaitEnded,
    /// The turn finished or was cancelled.
    TurnEnded,
    /// The session was ended by a call.
    Ended,
    /// The agent could not start, or died.
    AgentFailed,
    /// An ended session got a message.
    Resumed,
}

impl Status {
    pub const ALL: [Self; 7] = [
        Self::Created,
        Self::Running,
        Self::Idle,
        Self::Waiting,
        Self::Completed,
        Self::Interrupted,
        Self::Failed,
    ];

    /// The state after a transition; `None` if the transition is not possible in this state.
    pub fn after(self, transition: Transition) -> Option<Self> {
        use Transition as T;
        Some(match (self, transition) {
            (Self::Created | Self::Idle, T::Prompted) => Self::Running,
            (Self::Idle, T::BackgroundStarted) => Self::Running,
            // A session that has reached its cost limit waits without a turn.
            (Self::Created | Self::Running | Self::Idle | Self::Waiting, T::WaitStarted) => {
                Self::Waiting
            }
            (Self::Waiting, T::WaitEnded) => Self::Running,
            (Self::Created | Self::Running | Self::Waiting, T::TurnEnded) => Self::Idle,
            (Self::Created | Self::Idle, T::Ended) => Self::Completed,
            (Self::Running | Self::Waiting, T::Ended) => Self::Interrupted,
            (Self::Created | Self::Running | Self::Idle | Self::Waiting, T::AgentFailed) => {
                Self::Failed
            }
            (Self::Completed | Self::Interrupted | Self::Failed, T::Resumed) => Self::Created,
            _ => return None,
        })
    }

    /// Whether the session does nothing until it gets a message.
    pub fn is_resting(self) -> bool {
        self == Self::Idle || self.is_ended()
    }

    pub fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Interrupted | Self::Failed)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Idle => "idle",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Status {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let known = Self::ALL.into_iter().find(|status| status.as_str() == text);
        known.ok_or_else(|| InvalidValue(format!("{} is not a status", crate::quoted(text))))
    }
}

/// What started a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnKind {
    #[default]
    Prompt,
    /// The agent itself, for example because a command that it had started in the background ended.
    Background,
}

impl TurnKind {
    pub fn is_prompt(&self) -> bool {
        *self == Self::Prompt
    }
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum StopReason {
    EndTurn,
    Cancelled,
    Refused,
    // A limit of the model, of the agent or of the tree.
    Limit,
    Error,
}

/// The kind of request that a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum AwaitedRequestKind {
    Permission,
    CallerTool,
    Budget,
    // Whether a host may be reached.
    Network,
}

/// The request that a session waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct AwaitedRequest {
    pub kind: AwaitedRequestKind,
    pub request_id: String,
    /// When the request times out.
    #[schemars(with = "String")]
    pub until: Timestamp,
}

/// The outcome of a call of a caller's tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallerToolOutcome {
    /// The caller returned a result.
    Answered,
    /// The caller returned an error.
    Failed,
    Timeout,
    /// The caller disconnected.
    Disconnected,
    /// The agent cancelled the call, or ended.
    Cancelled,
}

/// The decision on a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum PermissionDecision {
    Allow,
    AllowAlways,
    // Of a host, for the whole project.
    AllowProject,
    Deny,
}

impl PermissionDecision {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::AllowAlways => "allow_always",
            Self::AllowProject => "allow_project",
            Self::Deny => "deny",
        }
    }
}

/// The numbers of tokens that agents reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub thought_tokens: u64,
    /// Turns whose cost is unknown: the agent reported none, and no price is configured for its model.
    #[serde(skip_serializing_if = "is_zero")]
    pub unpriced_turns: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Usage {
    #[must_use]
    pub fn saturating_add(self, more: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(more.input_tokens),
            output_tokens: self.output_tokens.saturating_add(more.output_tokens),
            cached_tokens: self.cached_tokens.saturating_add(more.cached_tokens),
            thought_tokens: self.thought_tokens.saturating_add(more.thought_tokens),
            unpriced_turns: self.unpriced_turns.saturating_add(more.unpriced_turns),
        }
    }

    pub fn is_zero(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Transition::{
        AgentFailed, BackgroundStarted, Ended, Prompted, Resumed, TurnEnded, WaitEnded, WaitStarted,
    };

    const ALL: [Transition; 8] = [
        Prompted,
        BackgroundStarted,
        WaitStarted,
        WaitEnded,
        TurnEnded,
        Ended,
        AgentFailed,
        Resumed,
    ];

    #[test]
    fn a_status_has_one_spelling() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse::<Status>(), Ok(status));
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
    }

    #[test]
    fn every_state_that_has_not_ended_can_be_ended() {
        for status in Status::ALL {
            assert_eq!(status.after(Ended).is_none(), status.is_ended(), "{status}");
        }
    }

    proptest! {
        /// For any order of transitions: an ended session changes only by a message, a turn runs
        /// only after a prompt, and a session that has not ended can be ended.
        #[test]
        fn any_history_keeps_the_invariants(history in proptest::collection::vec(0..ALL.len(), 0..60)) {
            let mut status = Status::Created;
            let mut in_turn = false;
            for transition in history.into_iter().map(|n| ALL[n]) {
                let Some(next) = status.after(transition) else { continue };
                if status.is_ended() {
                    prop_assert_eq!((transition, next), (Resumed, Status::Created));
                }
                if next == Status::Running {
                    let is_started = matches!(transition, Prompted | BackgroundStarted);
                    prop_assert!(in_turn || is_started || status == Status::Waiting);
                }
                match transition {
                    Prompted | BackgroundStarted => { prop_assert!(!in_turn); in_turn = true; }
                    TurnEnded | Ended | AgentFailed => in_turn = false,
                    WaitStarted | WaitEnded | Resumed => {}
                }
                if transition == Ended {
                    prop_assert!(matches!(next, Status::Completed | Status::Interrupted));
                }
                status = next;
            }
            if !status.is_ended() {
                let ended = status.after(Ended);
                prop_assert!(ended.is_some_and(Status::is_ended));
            }
        }
    }
}
