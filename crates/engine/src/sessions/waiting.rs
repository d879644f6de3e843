//! Waits for the end of a turn: for callers that have nothing else to do meanwhile.
//!
//! A wait ends early when the agent needs an answer that its caller has not been told about: the agent
//! would wait for the caller, and the caller for the agent.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use oubliette_model::{
    AwaitedRequest, AwaitedRequestKind, Changed, Event, SessionId, Status, StopReason,
};
use oubliette_store::{CallTurn, PendingDecision, Session, StoredEvent};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::view::PendingRequest;
use super::{Sessions, TurnId};
use crate::{Actor, Call, EngineError, Result};

pub(super) const MAX_WAIT_SECONDS: f64 = 50.0;
/// Past this number of sessions it is forgotten which requests were reported.
const MAX_REPORTED_SESSIONS: usize = 1024;
/// Among this many of the newest requests, answered ones included, the pending ones are looked for.
const MAX_SEARCHED_REQUESTS: u32 = 32;

/// The requests of sessions that a wait has returned. A wait that goes on does not end for them again.
#[derive(Debug, Default)]
pub(super) struct ReportedRequests(Mutex<HashMap<SessionId, HashSet<String>>>);

impl ReportedRequests {
    fn contains(&self, session: SessionId, request: &str) -> bool {
        let reported = self.0.lock();
        reported
            .get(&session)
            .is_some_and(|requests| requests.contains(request))
    }

    fn replace(&self, session: SessionId, pending: &[PendingDecision]) {
        let mut reported = self.0.lock();
        if pending.is_empty() {
            reported.remove(&session);
            return;
        }
        if reported.len() >= MAX_REPORTED_SESSIONS {
            reported.clear();
        }
        let ids = pending.iter().map(|request| request.request_id.clone());
        reported.insert(session, ids.collect());
    }
}

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) enum WaitTarget {
    /// The turn of a message.
    Message(Uuid),
    /// All turns that run or are queued.
    Session,
}

/// What came of a wait.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct TurnOutcome {
    /// Whether the turn has ended.
    pub(super) completed: bool,
    /// Everything that the agent wrote in the turn; null until it has ended.
    text: Option<String>,
    stop_reason: Option<StopReason>,
    error: Option<String>,
    /// Of the session so far; null if it is unknown.
    cost_usd: Option<f64>,
    /// How many files and lines the turn changed; null if it is not known.
    changed: Option<Changed>,
    /// What the session waits for, and until when.
    waiting_for: Option<AwaitedRequest>,
    /// Questions of the agent; answer them with `session_permit`.
    pending_permissions: Vec<PendingPermission>,
}

/// An unanswered permission or budget request.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct PendingPermission {
    pub(super) request_id: String,
    kind: AwaitedRequestKind,
    pub(super) title: String,
    /// The command, the files or the change that it is about.
    input: Value,
    pub(super) expires_at: String,
}

/// How a turn ended.
#[derive(Debug, Default)]
pub(super) struct EndedTurn {
    text: String,
    pub(super) stop_reason: Option<StopReason>,
    pub(super) error: Option<String>,
    changed: Option<Changed>,
}

/// What a wait found.
#[derive(Debug)]
pub(super) struct Waited {
    pub(super) session: Session,
    /// None if the turn has not ended.
    pub(super) ended: Option<EndedTurn>,
    /// Whether the turn has ended, or the agent needs an answer that its caller has not been told about.
    pub(super) has_news: bool,
}

impl EndedTurn {
    /// How the turn of a message ended, if it did.
    pub(super) fn of_message(session: &Session, turn: &CallTurn) -> Result<Option<Self>> {
        Ok(match turn {
            CallTurn::Answered(completion) => Some(Self::parse(completion)?),
            CallTurn::Queued | CallTurn::Running if session.status.is_ended() => Some(Self {
                stop_reason: Some(StopReason::Error),
                error: session.error.clone(),
                ..Self::default()
            }),
            CallTurn::Queued | CallTurn::Running => None,
            CallTurn::Dropped => Some(Self {
                stop_reason: Some(StopReason::Cancelled),
                error: Some("the message was dropped before its turn".to_owned()),
                ..Self::default()
            }),
        })
    }

    fn parse(completion: &StoredEvent) -> Result<Self> {
        match serde_json::from_str(&completion.body).map_err(EngineError::fault)? {
            Event::Completion {
                text,
                stop_reason,
                error,
                changed,
                ..
            } => Ok(Self {
                text,
                stop_reason: Some(stop_reason),
                error,
                changed,
            }),
            _ => Err(EngineError::fault("a completion was expected")),
        }
    }
}

pub(super) fn parse_wait(seconds: Option<f64>) -> Result<Duration> {
    let seconds = seconds.unwrap_or(0.0);
    if !(0.0..=MAX_WAIT_SECONDS).contains(&seconds) {
        return Err(EngineError::invalid(format!(
            "`wait_seconds` is {seconds}; it must be 0 to {MAX_WAIT_SECONDS}"
        )));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Whether no turn runs or is queued.
pub(super) fn is_settled(session: &Session, queued: u32) -> bool {
    session.status.is_ended() || (session.status == Status::Idle && queued == 0)
}

impl Sessions<'_> {
    /// Waits for a turn, or until the agent needs an answer. The caller counts as connected meanwhile.
    pub(super) async fn wait_for_turn(
        self,
        actor: &Actor,
        id: SessionId,
        awaited: WaitTarget,
        wait: Duration,
        call: &Call,
    ) -> Result<Waited> {
        let _listening = self.engine.callers().listen(actor, id).await;
        tokio::select! {
            waited = self.wait_until_news(id, awaited, wait) => waited,
            // Only the wait is cancelled; the agent goes on.
            () = call.cancelled() => Err(EngineError::Cancelled),
            // A wait ends with the token that permits it.
            () = self.engine.tokens().wait_until_ended(actor.token_id) => {
                Err(EngineError::refused_ended_token())
            }
        }
    }

    /// What a caller gets of a wait, which from now on knows what the agent needs.
    pub(super) async fn report(
        self,
        actor: &Actor,
        waited: Waited,
    ) -> Result<(Session, TurnOutcome, Vec<PendingRequest>)> {
        let Waited { session, ended, .. } = waited;
        let id = session.id;
        let decisions = self.pending_decisions(id).await?;
        self.state().reported_requests.replace(id, &decisions);
        let requests = self
            .engine
            .callers()
            .deliver_pending(actor, &session)
            .await?;
        let completed = ended.is_some();
        let (text, stop_reason, error, changed) = match ended {
            Some(turn) => (Some(turn.text), turn.stop_reason, turn.error, turn.changed),
            None => (None, None, None, None),
        };
        let outcome = TurnOutcome {
            completed,
            text,
            stop_reason,
            error,
            cost_usd: session.total_cost_usd(),
            changed,
            waiting_for: session.waiting.clone(),
            pending_permissions: self.describe_decisions(id, decisions).await?,
        };
        Ok((session, outcome, requests))
    }

    /// Waits until nothing runs or is queued in a session, or the agent needs an answer.
    pub(super) async fn wait_until_settled(self, id: SessionId, wait: Duration) -> Result<()> {
        self.wait_until_news(id, WaitTarget::Session, wait).await?;
        Ok(())
    }

    /// Waits until the turn of a message has ended, whatever the agent needs meanwhile.
    pub(super) async fn wait_until_turn_ends(self, turn: TurnId, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut subscription = self.subscriptions().log(turn.session());
        loop {
            subscription.mark_unchanged();
            let session = self.get(turn.session()).await?;
            let awaited = WaitTarget::Message(turn.message());
            if self.ended_turn(&session, awaited).await?.is_some() {
                return Ok(());
            }
            tokio::select! {
                () = subscription.changed() => {}
                () = tokio::time::sleep_until(deadline) => return Ok(()),
                () = self.engine.draining() => return Ok(()),
            }
        }
    }

    async fn wait_until_news(
        self,
        id: SessionId,
        awaited: WaitTarget,
        wait: Duration,
    ) -> Result<Waited> {
        let deadline = Instant::now() + wait;
        // Before the first read, so that no change is missed between a read and a wait.
        let mut subscription = self.subscriptions().log(id);
        let mut may_wait = true;
        loop {
            let session = self.get(id).await?;
            let ended = self.ended_turn(&session, awaited).await?;
            may_wait = may_wait && Instant::now() < deadline;
            let has_news = ended.is_some() || self.has_new_requests(id).await?;
            if has_news || !may_wait {
                // Read again: the status is never older than the end of the turn.
                let session = self.get(id).await?;
                return Ok(Waited {
                    session,
                    ended,
                    has_news,
                });
            }
            tokio::select! {
                () = subscription.changed() => {}
                () = tokio::time::sleep_until(deadline) => {}
                () = self.engine.draining() => may_wait = false,
            }
        }
    }

    async fn ended_turn(self, session: &Session, awaited: WaitTarget) -> Result<Option<EndedTurn>> {
        let store = self.engine.store();
        let id = session.id;
        match awaited {
            WaitTarget::Message(wait_id) => {
                let found = store.called_turn(id, wait_id).await?;
                let call = found.ok_or_else(|| {
                    let why = "the session was deleted before the turn ended";
                    EngineError::Failed(why.to_owned())
                })?;
                EndedTurn::of_message(session, &call.turn)
            }
            WaitTarget::Session => {
                let queued = store.queued_messages(id).await?;
                if !is_settled(session, queued) {
                    return Ok(None);
                }
                let newest = store.newest_events(id, "completion", 1).await?;
                match newest.first() {
                    Some(completion) => EndedTurn::parse(completion).map(Some),
                    None => Ok(Some(EndedTurn {
                        error: session.error.clone(),
                        ..EndedTurn::default()
                    })),
                }
            }
        }
    }

    /// Whether the agent waits for an answer, and its caller has not been told.
    async fn has_new_requests(self, id: SessionId) -> Result<bool> {
        let calls = self.engine.store().pending_requests(id).await?;
        if calls.iter().any(|request| !request.delivered) {
            return Ok(true);
        }
        let decisions = self.pending_decisions(id).await?;
        let reported = &self.state().reported_requests;
        let mut ids = decisions.iter().map(|request| &request.request_id);
        Ok(ids.any(|request| !reported.contains(id, request)))
    }

    /// The agent's questions that have no answer.
    pub(super) async fn pending_permissions(self, id: SessionId) -> Result<Vec<PendingPermission>> {
        let decisions = self.pending_decisions(id).await?;
        self.describe_decisions(id, decisions).await
    }

    async fn pending_decisions(self, id: SessionId) -> Result<Vec<PendingDecision>> {
        let mut decisions = self.engine.store().decisions(id).await?;
        decisions.retain(|decision| decision.verdict.is_none());
        Ok(decisions)
    }

    async fn describe_decisions(
        self,
        id: SessionId,
        decisions: Vec<PendingDecision>,
    ) -> Result<Vec<PendingPermission>> {
        if decisions.is_empty() {
            return Ok(Vec::new());
        }
        let store = self.engine.store();
        let newest = store.newest_events(id, "permission_request", MAX_SEARCHED_REQUESTS);
        let asked: Vec<Value> = newest
            .await?
            .iter()
            .filter_map(|event| serde_json::from_str(&event.body).ok())
            .collect();
        let describe = |decision: PendingDecision| {
            let event = asked
                .iter()
                .find(|event| event["request_id"] == *decision.request_id);
            PendingPermission {
                kind: decision.kind,
                title: event
                    .and_then(|event| event["title"].as_str())
                    .unwrap_or_default()
                    .to_owned(),
                input: event.map_or(Value::Null, |event| event["input"].clone()),
                expires_at: decision.deadline.to_string(),
                request_id: decision.request_id,
            }
        };
        Ok(decisions.into_iter().map(describe).collect())
    }
}
