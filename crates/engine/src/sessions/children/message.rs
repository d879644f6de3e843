//! A message of an agent to a session below its own, and the wait for the answer.

use std::time::Duration;

use oubliette_model::{AwaitedRequest, Event, SessionId, Status, StopReason, WorkspaceId};
use oubliette_store::{CallTurn, Logged, Session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use crate::sessions::ask::Ask;
use crate::sessions::deliver::Origin;
use crate::{Call, Engine, EngineError, Result};

const USUAL_WAIT: f64 = 50.0;
/// Some agents give up a tool after three minutes.
const LONGEST_WAIT: f64 = 170.0;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// A session that you started, or that one of those did, to go on with; a new one if absent.
    session_id: Option<SessionId>,
    /// How long to wait for the answer, in seconds (50 if absent, at most 170).
    wait_seconds: Option<f64>,
    /// A name for the call: when it is repeated, it is the same call.
    call_id: Option<Uuid>,
    #[serde(flatten)]
    ask: Ask,
}

/// What came of a message while it was waited for.
#[derive(Debug, Serialize)]
pub(crate) struct Output {
    session_id: SessionId,
    /// `running` while there is no answer yet, then that of the session.
    status: Status,
    workspace_id: WorkspaceId,
    /// The last event of the session so far.
    last_event_index: i64,
    #[serde(flatten)]
    answer: Option<Answer>,
    /// What the session waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<AwaitedRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Answer {
    text: String,
    stop_reason: StopReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Engine {
    pub(super) async fn message_below(
        &self,
        session: &Session,
        params: Params,
        call: &Call,
    ) -> Result<Output> {
        let wait = wait(params.wait_seconds)?;
        let call_id = params.call_id.unwrap_or_else(Uuid::new_v4);
        // What was done before is joined, whatever has changed since.
        let before = self.store().child_call(session.id, call_id).await?;
        if before.is_none() {
            // Much larger than the wait that follows.
            Box::pin(self.ask_below(session, call_id, params, call)).await?;
        }
        tokio::select! {
            answer = self.answer_below(session, call_id, wait) => answer,
            // The one who asked waits no longer; the agent below works on.
            () = call.cancelled() => Err(EngineError::Cancelled),
        }
    }

    async fn ask_below(
        &self,
        session: &Session,
        call_id: Uuid,
        params: Params,
        call: &Call,
    ) -> Result<()> {
        let Params {
            session_id,
            mut ask,
            ..
        } = params;
        if let Some(id) = session_id {
            let below = self.below(session, id).await?;
            let message = ask.to_message(self)?;
            ask.no_context()?;
            let queued = self
                .store()
                .queue_call(session.id, call_id, below.id, &message, call.audit())
                .await?;
            let (below, _) = queued.ok_or_else(|| {
                EngineError::Failed("your own session, or the other one, has ended".to_owned())
            })?;
            self.sessions().watch.tell(below.id, below.root_id);
            self.wake_session(below.id, below.project_id);
            return Ok(());
        }
        let project = self.store().get(session.project_id).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(session.project_id))?;
        // A call that is repeated after a crash finds the workspace that it made.
        ask.name_workspace(call_id);
        let origin = Origin {
            owner: session.owner_id,
            parent: Some(session.clone()),
            call: Some(call_id),
            grant: self.scope_of_agent(session).await?,
        };
        self.deliver(&project, &ask, origin, call).await?;
        Ok(())
    }

    /// Waits for the turn of a message to end, for so long.
    async fn answer_below(
        &self,
        session: &Session,
        call_id: Uuid,
        wait: Duration,
    ) -> Result<Output> {
        let deadline = Instant::now() + wait;
        let mut news = None;
        loop {
            let Some(found) = self.store().child_call(session.id, call_id).await? else {
                return Err(EngineError::Failed(
                    "the session was deleted before it answered".to_owned(),
                ));
            };
            let over = Instant::now() >= deadline;
            match found.turn {
                CallTurn::Answered(logged) => return self.answered(&logged).await,
                CallTurn::Dropped => return self.dropped(found.child).await,
                CallTurn::Queued | CallTurn::Running if over => {
                    return self.unanswered(found.child).await;
                }
                CallTurn::Queued | CallTurn::Running => {}
            }
            // The first look was before anybody told of news.
            let Some(listening) = &mut news else {
                news = Some(self.sessions().watch.session(found.child));
                continue;
            };
            tokio::select! {
                changed = listening.changed() => if changed.is_err() { news = None },
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    async fn child(&self, id: SessionId) -> Result<Session> {
        let session = self.store().session(id).await?;
        session.ok_or_else(|| Self::session_not_found(id))
    }

    async fn answered(&self, logged: &Logged) -> Result<Output> {
        let event = serde_json::from_str(&logged.body).map_err(EngineError::fault)?;
        let Event::Completion {
            text,
            stop_reason,
            error,
        } = event
        else {
            return Err(EngineError::fault("a completion was expected"));
        };
        let session = self.child(logged.session_id).await?;
        let answer = Answer {
            text,
            stop_reason,
            error,
        };
        Ok(Output {
            answer: Some(answer),
            ..output(session)
        })
    }

    async fn dropped(&self, child: SessionId) -> Result<Output> {
        let answer = Answer {
            text: String::new(),
            stop_reason: StopReason::Cancelled,
            error: Some("the session was ended before it came to this message".to_owned()),
        };
        Ok(Output {
            answer: Some(answer),
            ..output(self.child(child).await?)
        })
    }

    async fn unanswered(&self, child: SessionId) -> Result<Output> {
        let session = self.child(child).await?;
        let waiting_for = session.waiting.clone();
        Ok(Output {
            status: Status::Running,
            waiting_for,
            hint: Some(
                "it works on; `session_events` with `session_id`, `since_index` and `wait_seconds` \
                 shows what it does, and its `completion` is the answer",
            ),
            ..output(session)
        })
    }
}

fn output(session: Session) -> Output {
    Output {
        session_id: session.id,
        status: session.status,
        workspace_id: session.workspace_id,
        last_event_index: session.log_end - 1,
        answer: None,
        waiting_for: None,
        hint: None,
    }
}

fn wait(seconds: Option<f64>) -> Result<Duration> {
    let seconds = seconds.unwrap_or(USUAL_WAIT).min(LONGEST_WAIT);
    if seconds.is_nan() || seconds < 0.0 {
        return Err(EngineError::invalid(format!(
            "`wait_seconds` is {seconds}; it must be 0 to {LONGEST_WAIT}"
        )));
    }
    Ok(Duration::from_secs_f64(seconds))
}
