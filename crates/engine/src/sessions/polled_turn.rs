//! Turns whose callers ask for their state now and then instead of waiting in a call: MCP tasks.
//!
//! Nothing about them is in memory. The id names a message in the store, so that the state can be asked for
//! on another connection and after a restart.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use oubliette_model::{SessionId, StopReason, quoted};
use oubliette_store::{CallTurn, CalledTurn, CallerRequest, Session};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::Sessions;
use super::deliver::Delivery;
use super::interrupt::Interrupt;
use super::waiting::{EndedTurn, PendingPermission, Waited};
use crate::operations::Operation;
use crate::{Actor, Call, EngineError, Result};

/// How long a call waits for its turn before its caller has to ask for it.
pub(super) const DETACH_AFTER: Duration = Duration::from_millis(250);
/// How many of the requests that an agent waits for the description of a turn names.
const MAX_DESCRIBED_REQUESTS: usize = 5;

/// The turn of a message that a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnId {
    session: SessionId,
    message: Uuid,
}

impl TurnId {
    pub(super) fn new(session: SessionId, message: Uuid) -> Self {
        Self { session, message }
    }

    /// Parses the text that [`fmt::Display`] makes, and no other.
    ///
    /// # Errors
    /// The same as for the id of a turn that does not exist.
    pub fn parse(text: &str) -> Result<Self> {
        let parse = || {
            let (session, message) = text.split_once('.')?;
            let id = Self {
                session: session.parse().ok()?,
                message: Uuid::try_parse(message).ok()?,
            };
            (id.to_string() == text).then_some(id)
        };
        parse().ok_or_else(Self::not_found)
    }

    pub(super) fn session(self) -> SessionId {
        self.session
    }

    pub(super) fn message(self) -> Uuid {
        self.message
    }

    /// Without the id: it is the caller's text, which may be long.
    pub(super) fn not_found() -> EngineError {
        EngineError::invalid(
            "no such task: its id is wrong, its `ttlMs` is over, or its session was deleted",
        )
    }
}

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.message.simple())
    }
}

/// A turn that was asked for.
#[derive(Debug)]
pub struct PolledTurn {
    pub state: TurnState,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// For how long after its creation it can be asked for.
    pub retention: Duration,
}

#[derive(Debug)]
pub enum TurnState {
    /// It runs or is queued; the text says what the agent waits for.
    Working(String),
    /// What the call would have returned if it had waited.
    Ended(Value),
    /// It was stopped, or its message removed from the queue.
    Cancelled(String),
    /// The log no longer has it.
    Lost(EngineError),
}

impl Sessions<'_> {
    /// Ends a call before its turn: the caller can ask for the turn from now on.
    pub(super) async fn detach(self, turn: TurnId, delivery: &Delivery, call: &Call) -> Result<()> {
        let delivery = serde_json::to_string(delivery).map_err(EngineError::fault)?;
        let store = self.engine.store();
        store
            .record_delivery(turn.session, turn.message, &delivery)
            .await?;
        call.set_detached_turn(turn);
        Ok(())
    }

    /// The state of a turn that a call no longer waits for. The permission is that of following the session.
    ///
    /// # Errors
    /// A turn of a session that the actor may not follow gives the same error as one that does not exist.
    pub async fn poll_turn(self, actor: &Actor, turn: TurnId) -> Result<PolledTurn> {
        let (session, delivery, call) = self.find_detached(actor, turn).await?;
        self.engine.callers().record_call(actor.token_id, &session);
        let is_trimmed = call
            .prompted
            .is_some_and(|index| index < session.trimmed_before);
        let updated_at = match &call.turn {
            CallTurn::Answered(completion) => completion.at,
            _ => session.updated_at.max(call.created_at),
        };
        let state = if is_trimmed {
            TurnState::Lost(EngineError::Failed(
                "the log of the session no longer has this turn; `session_events` shows the newest"
                    .to_owned(),
            ))
        } else {
            match EndedTurn::of_message(&session, &call.turn)? {
                None => TurnState::Working(self.describe(&session, &call.turn).await?),
                Some(ended) if ended.stop_reason == Some(StopReason::Cancelled) => {
                    TurnState::Cancelled(describe_cancelled(&session, &ended))
                }
                Some(ended) => {
                    let waited = Waited {
                        // Read again: the status is never older than the end of the turn.
                        session: self.get(turn.session).await?,
                        ended: Some(ended),
                        has_news: true,
                    };
                    let delivered = self.report_delivery(actor, delivery, waited).await?;
                    TurnState::Ended(serde_json::to_value(delivered).map_err(EngineError::fault)?)
                }
            }
        };
        let retention = self.engine.turn_retention();
        Ok(PolledTurn {
            state,
            created_at: call.created_at,
            updated_at,
            retention: retention.try_into().unwrap_or_default(),
        })
    }

    /// Fails if a turn cannot be asked for, as [`Sessions::poll_turn`] does.
    ///
    /// # Errors
    /// The same.
    pub async fn check_turn(self, actor: &Actor, turn: TurnId) -> Result<()> {
        self.find_detached(actor, turn).await.map(drop)
    }

    /// Stops a turn, as a call of `session_interrupt`. One that has ended stays as it is.
    ///
    /// # Errors
    /// Those of [`Sessions::poll_turn`], and of the call.
    pub async fn cancel_turn(self, actor: &Actor, turn: TurnId, call: Call) -> Result<()> {
        self.check_turn(actor, turn).await?;
        let session = Value::from(turn.session.to_string());
        let params = Map::from_iter([("session_id".to_owned(), session)]);
        let name = <Interrupt as Operation>::NAME;
        let call = call.for_turn(turn);
        let stopped = self.engine.call(actor, name, params, call).await;
        stopped.map(drop).map_err(hide_session)
    }

    async fn find_detached(
        self,
        actor: &Actor,
        turn: TurnId,
    ) -> Result<(Session, Delivery, CalledTurn)> {
        let permitted = self.engine.permit_following(actor, turn.session).await;
        let session = permitted.map_err(hide_session)?;
        let store = self.engine.store();
        let found = store.called_turn(turn.session, turn.message).await?;
        let call = found.ok_or_else(TurnId::not_found)?;
        // A call that was not ended before its turn has returned what there is to know.
        let delivery = call.delivery.as_deref().ok_or_else(TurnId::not_found)?;
        let delivery = serde_json::from_str(delivery).map_err(EngineError::fault)?;
        Ok((session, delivery, call))
    }

    /// What a turn that has not ended waits for, for a person or a model.
    async fn describe(self, session: &Session, turn: &CallTurn) -> Result<String> {
        let id = session.id;
        let permissions = self.pending_permissions(id).await?;
        let calls = self.engine.store().pending_requests(id).await?;
        if permissions.is_empty() && calls.is_empty() {
            return Ok(match turn {
                CallTurn::Queued => format!(
                    "The message is queued in the session `{id}`; `session_events` shows what happens there."
                ),
                _ => format!(
                    "The agent works in the session `{id}`; `session_events` shows what it does."
                ),
            });
        }
        let asked = permissions.iter().map(describe_permission);
        let called = calls.iter().map(describe_call);
        let count = permissions.len() + calls.len();
        let mut sentences: Vec<String> = asked.chain(called).take(MAX_DESCRIBED_REQUESTS).collect();
        if count > sentences.len() {
            sentences.push(format!("{} more.", count - sentences.len()));
        }
        if !permissions.is_empty() {
            sentences.push(format!(
                "Answer with `session_permit`: `session_id` `{id}`, and `request_id`."
            ));
        }
        if !calls.is_empty() {
            sentences.push(format!(
                "`session_get` of `{id}` shows calls of tools with their arguments; answer with \
                 `caller_tool_response`."
            ));
        }
        Ok(sentences.join(" "))
    }
}

/// The error of a turn whose session the actor may not see, or that does not exist.
fn hide_session(error: EngineError) -> EngineError {
    match error {
        EngineError::NotFound { .. } => TurnId::not_found(),
        other => other,
    }
}

fn describe_permission(request: &PendingPermission) -> String {
    let (title, id) = (without_backticks(&request.title), &request.request_id);
    let until = &request.expires_at;
    format!(
        "The agent asks for permission: {} (`request_id` `{id}`, until {until}).",
        quoted(&title)
    )
}

fn describe_call(request: &CallerRequest) -> String {
    let tool = without_backticks(&request.tool);
    format!(
        "The agent calls the tool {} (`request_id` `{}`, until {}).",
        quoted(&tool),
        request.request_id,
        request.deadline
    )
}

/// Names in backticks are replaced by those that a client knows.
fn without_backticks(text: &str) -> String {
    text.replace('`', "'")
}

fn describe_cancelled(session: &Session, ended: &EndedTurn) -> String {
    let why = ended.error.as_deref().unwrap_or("the turn was stopped");
    format!(
        "{}; `session_events` of the session `{}` shows what the agent did.",
        without_backticks(why),
        session.id
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_one_spelling_of_an_id_is_parsed() {
        let id = TurnId::new(SessionId::new(Uuid::from_u128(7)), Uuid::from_u128(0xab));
        let text = id.to_string();
        assert_eq!(TurnId::parse(&text).unwrap(), id);
        let hyphenated = Uuid::from_u128(0xab).to_string();
        for other in [
            String::new(),
            ".".to_owned(),
            text.to_uppercase(),
            text.replace("ab", "AB"),
            format!("{text} "),
            format!("{text}.{text}"),
            format!("{}.{hyphenated}", id.session),
            id.session.to_string(),
            "gogol_7.1".to_owned(),
            "x".repeat(1 << 20),
        ] {
            let error = TurnId::parse(&other).unwrap_err();
            assert!(error.to_string().contains("no such task"), "{error}");
        }
    }
}
