//! An agent's message to a child session, and the wait for the response.

use std::time::Duration;

use oubliette_model::{AwaitedRequest, Event, SessionId, Status, StopReason, WorkspaceId};
use oubliette_store::{CallTurn, Session, StoredEvent};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use crate::sessions::Sessions;
use crate::sessions::deliver::{Origin, Sender};
use crate::sessions::message_params::MessageParams;
use crate::{Call, EngineError, Result};

const DEFAULT_WAIT_SECONDS: f64 = 50.0;
/// Some agents cancel a tool call after three minutes.
const MAX_WAIT_SECONDS: f64 = 170.0;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// A session that you started, or one below it, to continue; a new one is started if absent.
    session_id: Option<SessionId>,
    /// How many seconds to wait for the response (0 to 170; 50 if absent).
    wait_seconds: Option<f64>,
    /// Identifies the call: repeating it with the same id does not send the message again.
    call_id: Option<Uuid>,
    #[serde(flatten)]
    message: MessageParams,
}

#[derive(Debug, Serialize)]
pub(super) struct Output {
    session_id: SessionId,
    /// `running` while there is no response yet, then that of the session.
    status: Status,
    workspace_id: WorkspaceId,
    /// The index of the session's last event.
    last_event_index: i64,
    #[serde(flatten)]
    response: Option<TurnResponse>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<AwaitedRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
}

/// How the turn of the message ended.
#[derive(Debug, Serialize)]
struct TurnResponse {
    text: String,
    stop_reason: StopReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Sessions<'_> {
    pub(super) async fn message_child(
        self,
        session: &Session,
        params: Params,
        call: &Call,
    ) -> Result<Output> {
        let wait = parse_wait(params.wait_seconds)?;
        let call_id = params.call_id.unwrap_or_else(Uuid::new_v4);
        let store = self.engine.store();
        let repeated = store.called_turn(session.id, call_id).await?.is_some();
        if !repeated {
            // Boxed: its future is much larger than that of the wait.
            Box::pin(self.deliver_to_child(session, call_id, params, call)).await?;
        }
        tokio::select! {
            output = self.wait_for_child(session, call_id, wait) => output,
            // Only the wait is cancelled; the child goes on.
            () = call.cancelled() => Err(EngineError::Cancelled),
        }
    }

    async fn deliver_to_child(
        self,
        session: &Session,
        call_id: Uuid,
        params: Params,
        call: &Call,
    ) -> Result<()> {
        self.engine.tokens().require_owner(session.id).await?;
        let mut message_params = params.message;
        if let Some(id) = params.session_id {
            let child = self.descendant(session, id).await?;
            let sender = Sender {
                scope: self.agent_scope(session).await?,
                caller: None,
                call: Some((session.id, call_id)),
            };
            self.queue(&child, &message_params, &sender, call).await?;
            return Ok(());
        }
        let project = self.engine.project(session.project_id).await?;
        // The same name again if the call is repeated after a crash, so that it makes one workspace.
        message_params.name_workspace(call_id);
        let origin = Origin {
            owner: session.owner_id,
            parent: Some(session.clone()),
            call: Some(call_id),
            max_scope: self.agent_scope(session).await?,
        };
        self.spawn(&project, &message_params, origin, call).await?;
        Ok(())
    }

    /// Waits until the turn of the message has ended.
    async fn wait_for_child(
        self,
        session: &Session,
        call_id: Uuid,
        wait: Duration,
    ) -> Result<Output> {
        let deadline = Instant::now() + wait;
        let mut subscription = None;
        loop {
            let found = self.engine.store().called_turn(session.id, call_id).await?;
            let Some(found) = found else {
                return Err(EngineError::Failed(
                    "the session was deleted before it responded".to_owned(),
                ));
            };
            let response = match found.turn {
                CallTurn::Answered(logged) => Some(parse_completion(&logged)?),
                CallTurn::Dropped => Some(TurnResponse {
                    text: String::new(),
                    stop_reason: StopReason::Cancelled,
                    error: Some("the session was ended before this message's turn".to_owned()),
                }),
                CallTurn::Queued | CallTurn::Running => None,
            };
            if response.is_some() || Instant::now() >= deadline {
                return Ok(output(self.get(found.child).await?, response));
            }
            let Some(subscription) = &mut subscription else {
                // Read again, because the child may have changed before this.
                subscription = Some(self.subscriptions().log(found.child));
                continue;
            };
            tokio::select! {
                () = subscription.changed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }
}

fn parse_completion(logged: &StoredEvent) -> Result<TurnResponse> {
    match serde_json::from_str(&logged.body).map_err(EngineError::fault)? {
        Event::Completion {
            text,
            stop_reason,
            error,
            ..
        } => Ok(TurnResponse {
            text,
            stop_reason,
            error,
        }),
        _ => Err(EngineError::fault("a completion was expected")),
    }
}

fn output(session: Session, response: Option<TurnResponse>) -> Output {
    let running = response.is_none();
    Output {
        session_id: session.id,
        status: if running {
            Status::Running
        } else {
            session.status
        },
        workspace_id: session.workspace_id,
        last_event_index: session.log_end - 1,
        response,
        waiting_for: session.waiting.filter(|_| running),
        hint: running.then_some(
            "the child is still working; follow it with `session_events` (`session_id`, \
             `since_index`, `wait_seconds`): its `completion` event is the response",
        ),
    }
}

fn parse_wait(seconds: Option<f64>) -> Result<Duration> {
    let seconds = seconds
        .unwrap_or(DEFAULT_WAIT_SECONDS)
        .min(MAX_WAIT_SECONDS);
    if seconds.is_nan() || seconds < 0.0 {
        return Err(EngineError::invalid(format!(
            "`wait_seconds` is {seconds}; it must be 0 to {MAX_WAIT_SECONDS}"
        )));
    }
    Ok(Duration::from_secs_f64(seconds))
}
