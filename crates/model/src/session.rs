//! The life of a session: its states, and the only ways from one to the next.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Invalid;

/// Where a session is in its life. Its schema is a plain list of words: the comments on the words
/// are not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Status {
    // It has something to do and no turn has begun.
    Created,
    // A turn runs.
    Running,
    // Its last turn has ended; the next message begins another.
    Idle,
    // Somebody has to decide something before it goes on.
    Waiting,
    // It was ended while no turn ran.
    Completed,
    // It was ended in the middle of a turn.
    Interrupted,
    // Its agent could not start, or died.
    Failed,
}

/// What can happen to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Happening {
    /// A prompt went to the agent.
    Prompted,
    /// A decision is needed.
    Asked,
    /// The last open decision was taken, and the turn goes on.
    Settled,
    /// The turn is over, by itself or because it was cancelled.
    TurnEnded,
    /// Somebody ended the session.
    Ended,
    /// The agent could not start, or died.
    Died,
    /// A message came for a session that had ended.
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

    /// The state after something happened; none if it cannot happen in this one.
    pub fn after(self, happening: Happening) -> Option<Self> {
        use Happening as H;
        Some(match (self, happening) {
            (Self::Created | Self::Idle, H::Prompted) => Self::Running,
            // A session that may not spend more waits without a turn.
            (Self::Created | Self::Running | Self::Idle | Self::Waiting, H::Asked) => Self::Waiting,
            (Self::Waiting, H::Settled) => Self::Running,
            (Self::Created | Self::Running | Self::Waiting, H::TurnEnded) => Self::Idle,
            (Self::Created | Self::Idle, H::Ended) => Self::Completed,
            (Self::Running | Self::Waiting, H::Ended) => Self::Interrupted,
            (Self::Created | Self::Running | Self::Idle | Self::Waiting, H::Died) => Self::Failed,
            (Self::Completed | Self::Interrupted | Self::Failed, H::Resumed) => Self::Created,
            _ => return None,
        })
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
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let known = Self::ALL.into_iter().find(|status| status.as_str() == text);
        known.ok_or_else(|| Invalid(format!("{} is not a status", crate::quoted(text))))
    }
}

/// Why a turn was over.
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

/// What a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum WaitingKind {
    Permission,
    CallerTool,
    Budget,
}

/// What a session waits for, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Waiting {
    pub kind: WaitingKind,
    pub request_id: String,
    /// When the wait ends by itself, safely.
    #[schemars(with = "String")]
    pub until: Timestamp,
}

/// What came of a call of a caller's tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallerOutcome {
    /// The caller answered with a result.
    Answered,
    /// The caller answered with an error.
    Failed,
    Timeout,
    /// The caller went away.
    Disconnected,
    /// The agent gave it up, or ended.
    Cancelled,
}

/// How somebody decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Verdict {
    Allow,
    AllowAlways,
    Deny,
}

/// Tokens that agents reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub thought_tokens: u64,
}

impl Usage {
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(more.input_tokens),
            output_tokens: self.output_tokens.saturating_add(more.output_tokens),
            cached_tokens: self.cached_tokens.saturating_add(more.cached_tokens),
            thought_tokens: self.thought_tokens.saturating_add(more.thought_tokens),
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
    use Happening::{Asked, Died, Ended, Prompted, Resumed, Settled, TurnEnded};

    const ALL: [Happening; 7] = [Prompted, Asked, Settled, TurnEnded, Ended, Died, Resumed];

    #[test]
    fn a_status_has_one_spelling() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse::<Status>(), Ok(status));
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
    }

    #[test]
    fn every_state_can_be_ended_or_has() {
        for status in Status::ALL {
            assert_eq!(status.after(Ended).is_none(), status.is_ended(), "{status}");
        }
    }

    proptest! {
        /// Whatever happens in whatever order: only the legal happenings move a session, an ended
        /// one moves only by a message, a turn runs only after a prompt, and a session that is
        /// given a prompt and left alone comes to rest.
        #[test]
        fn any_history_keeps_the_promises(history in proptest::collection::vec(0..ALL.len(), 0..60)) {
            let mut status = Status::Created;
            let mut in_turn = false;
            for happening in history.into_iter().map(|n| ALL[n]) {
                let Some(next) = status.after(happening) else { continue };
                if status.is_ended() {
                    prop_assert_eq!((happening, next), (Resumed, Status::Created));
                }
                if next == Status::Running {
                    prop_assert!(in_turn || happening == Prompted || status == Status::Waiting);
                }
                match happening {
                    Prompted => { prop_assert!(!in_turn); in_turn = true; }
                    TurnEnded | Ended | Died => in_turn = false,
                    Asked | Settled | Resumed => {}
                }
                if happening == Ended {
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
