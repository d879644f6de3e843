//! A call of a caller's tool, from the agent's request to its end.

use std::time::Instant;

use jiff::SignedDuration;
use oubliette_model::{CallerToolOutcome, Event, Mode, owns_session, quoted};
use oubliette_store::{
    AddRequestOutcome, AuditEntry, AuditOutcome, CallerRequest, CallerRequestResult,
    EndRequestOutcome, Session,
};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::Callers;
use super::presence::Connected;
use crate::operations::{FinishedCall, catch_panic};
use crate::sessions::view::PendingRequest;
use crate::{Actor, Call, EngineError, OnDisconnect, Result};

/// Of one call, as JSON.
const MAX_ARGUMENTS_BYTES: usize = 4 << 20;

/// Why a call of a caller's tool has no result.
#[derive(Debug, Clone)]
pub enum CallerError {
    /// The caller did not respond with a result: the outcome, and the sentence for the agent.
    Ended(CallerToolOutcome, String),
    /// The request could not be made.
    Engine(EngineError),
}

impl<E: Into<EngineError>> From<E> for CallerError {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

impl Callers<'_> {
    /// Calls a tool of a session's caller for its agent, and waits until the call ends. The agent's
    /// client chooses `call_id`: a repeated call with the same id joins the first.
    pub async fn call_tool(
        self,
        session: &Session,
        address: String,
        tool: &str,
        arguments: Map<String, Value>,
        call_id: Uuid,
        call: Call,
    ) -> Result<Value, CallerError> {
        let entry = AuditEntry {
            at: self.engine.now(),
            token_id: session.owner_id,
            operation: "caller_tool".to_owned(),
            project_id: Some(session.project_id),
            outcome: AuditOutcome::Ok,
            address: Some(address),
        };
        let started = Instant::now();
        let request = self.request_and_wait(session, tool, arguments, call_id, &call);
        let result = catch_panic(async { Ok(request.await) })
            .await
            .map_err(CallerError::Engine)
            .flatten();
        let finished = FinishedCall {
            operation: "caller_tool",
            mode: Mode::Read,
            entry,
            started,
        };
        let recorded = match &result {
            Ok(_) => Ok(Value::Null),
            Err(CallerError::Ended(_, why)) => Err(EngineError::Failed(why.clone())),
            Err(CallerError::Engine(error)) => Err(error.clone()),
        };
        self.engine.record_call(finished, &recorded, &call).await;
        result
    }

    async fn request_and_wait(
        self,
        session: &Session,
        tool: &str,
        arguments: Map<String, Value>,
        call_id: Uuid,
        call: &Call,
    ) -> Result<Value, CallerError> {
        // Subscribed before the store is read, so that no change is missed.
        let mut end = self.engine.sessions().subscriptions().call_outcome(call_id);
        let store = self.engine.store();
        let request = match store.caller_request_by_call(session.id, call_id).await? {
            Some(earlier) => earlier,
            None => {
                self.create_request(session, tool, arguments, call_id)
                    .await?
            }
        };
        if let Some(ended) = request.result {
            return into_result(ended);
        }
        tokio::select! {
            ended = end.wait() => return into_result(CallerRequestResult::clone(&ended)),
            () = call.cancelled() => {
                self.cancel_request(&request, session).await?;
            }
        }
        // It may have ended in another way just before.
        let stored = store.caller_request_by_call(session.id, call_id).await?;
        match stored.and_then(|request| request.result) {
            Some(ended) => into_result(ended),
            None => Err(EngineError::Failed("the session was deleted".to_owned()).into()),
        }
    }

    async fn create_request(
        self,
        session: &Session,
        tool: &str,
        arguments: Map<String, Value>,
        call_id: Uuid,
    ) -> Result<CallerRequest, CallerError> {
        let compiled = self.compiled_tools(session.id).await?;
        let position = compiled.as_ref().and_then(|compiled| {
            let mut tools = compiled.tools.iter();
            tools.position(|compiled| compiled.tool.name == tool)
        });
        let (Some(compiled), Some(position)) = (compiled, position) else {
            let why = format!(
                "the caller of this session has declared no tool {}",
                quoted(tool)
            );
            return Err(EngineError::invalid(why).into());
        };
        let caller_id = compiled.declared.caller_id.clone();
        let redactor = self.engine.sessions().redactor(session).await?;
        let mut arguments = Value::Object(arguments);
        redactor.redact_value(&mut arguments);
        let bytes = arguments.to_string().len();
        if bytes > MAX_ARGUMENTS_BYTES {
            return Err(EngineError::invalid(format!(
                "the arguments have {bytes} bytes; the maximum is {MAX_ARGUMENTS_BYTES}. Write the \
                 data to a file in the workspace and pass its path"
            ))
            .into());
        }
        let declared = &compiled.tools[position];
        let valid = if declared.validates_fast(bytes) {
            declared.validate(&arguments)
        } else {
            let compiled = compiled.clone();
            let validate = move || (compiled.tools[position].validate(&arguments), arguments);
            let (valid, validated) = tokio::task::spawn_blocking(validate)
                .await
                .map_err(EngineError::fault)?;
            arguments = validated;
            valid
        };
        valid.map_err(EngineError::invalid)?;
        let settings = &self.engine.settings().caller_tools;
        let connected = self.state().presence.connected(session.id, settings);
        if connected == Connected::No && settings.on_disconnect == OnDisconnect::Fail {
            let why = disconnected(&caller_id);
            return Err(CallerError::Ended(CallerToolOutcome::Disconnected, why));
        }
        let declared_timeout = declared.tool.timeout_seconds;
        let seconds = declared_timeout.unwrap_or(settings.timeout_seconds as f64);
        let now = self.engine.now();
        let request = CallerRequest {
            session_id: session.id,
            request_id: Uuid::new_v4(),
            call_id,
            tool: declared.tool.name.clone(),
            arguments,
            asked_at: now,
            deadline: now + SignedDuration::from_millis((seconds * 1000.0) as i64),
            event_index: 0,
            delivered: false,
            result: None,
        };
        let events = self.subscribe_request(&request);
        match self.engine.store().add_caller_request(&request).await? {
            AddRequestOutcome::Added(stored) => {
                let subscriptions = self.engine.sessions().subscriptions();
                subscriptions.notify_log(session.id, session.root_id);
                let stored = Some((events, *stored));
                self.watch_request(&request, session.clone(), caller_id, stored);
                Ok(request)
            }
            AddRequestOutcome::Existing(earlier) => Ok(*earlier),
            AddRequestOutcome::TooManyPending => Err(EngineError::Failed(
                "too many calls of this session wait for its caller; wait until some have ended"
                    .to_owned(),
            )
            .into()),
            AddRequestOutcome::SessionGone => {
                Err(EngineError::Failed("the session has ended".to_owned()).into())
            }
        }
    }

    /// Ends a request that is pending; [`Settled::Late`] if it has ended already.
    pub(super) async fn settle_request(
        self,
        request: &CallerRequest,
        session: &Session,
        ended: CallerRequestResult,
        audit: Option<AuditEntry>,
    ) -> Result<EndRequestOutcome> {
        let now = self.engine.now();
        let (request_id, tool) = (request.request_id.to_string(), request.tool.clone());
        let duration = now.duration_since(request.asked_at).as_millis();
        let event = match ended.outcome {
            CallerToolOutcome::Cancelled => Event::CallerToolCancelled { request_id, tool },
            outcome => {
                let (result, error) = match (outcome, &ended.answer) {
                    (CallerToolOutcome::Answered, result) => (result.clone(), None),
                    (_, Value::String(error)) => (Value::Null, Some(error.clone())),
                    (_, other) => (Value::Null, Some(other.to_string())),
                };
                Event::CallerToolResponse {
                    request_id,
                    tool,
                    outcome,
                    result,
                    error,
                    duration_ms: u64::try_from(duration).unwrap_or_default(),
                }
            }
        };
        let (id, request_id) = (request.session_id, request.request_id);
        let settled = self
            .engine
            .store()
            .end_caller_request(id, request_id, &ended, event, now, audit)
            .await?;
        self.state().presence.remove_delivered(id, request_id);
        if settled == EndRequestOutcome::Done {
            let subscriptions = self.engine.sessions().subscriptions();
            subscriptions.notify_call_outcome(request.call_id, ended);
            subscriptions.notify_log(id, session.root_id);
        }
        Ok(settled)
    }

    pub(super) async fn cancel_request(
        self,
        request: &CallerRequest,
        session: &Session,
    ) -> Result<()> {
        let ended = CallerRequestResult {
            outcome: CallerToolOutcome::Cancelled,
            answer: Value::from("the call was cancelled"),
        };
        self.settle_request(request, session, ended, None).await?;
        Ok(())
    }

    /// The requests of a session that wait for a response, as results show them.
    pub(crate) async fn pending_requests(self, session: &Session) -> Result<Vec<PendingRequest>> {
        let pending = self.engine.store().pending_requests(session.id).await?;
        Ok(pending.into_iter().map(PendingRequest::from).collect())
    }

    /// The pending requests of a session, for a result that goes to an actor.
    pub(crate) async fn deliver_pending(
        self,
        actor: &Actor,
        session: &Session,
    ) -> Result<Vec<PendingRequest>> {
        let pending = self.pending_requests(session).await?;
        if !pending.is_empty() {
            self.mark_delivered(actor, session).await?;
        }
        Ok(pending)
    }

    /// Records that the pending requests of a session are in a result, if the session's caller gets
    /// it. The caller then counts as connected until their deadlines.
    pub(crate) async fn mark_delivered(self, actor: &Actor, session: &Session) -> Result<()> {
        if !owns_session(session.owner_id, actor.token_id) {
            return Ok(());
        }
        let store = self.engine.store();
        let pending = store.pending_requests(session.id).await?;
        let mut delivered = Vec::new();
        for request in pending.iter().filter(|request| !request.delivered) {
            let left = self.time_left(request.deadline);
            let presence = &self.state().presence;
            presence.record_delivered(session.id, request.request_id, left);
            delivered.push(request.request_id);
        }
        if !delivered.is_empty() {
            store.mark_delivered(session.id, &delivered).await?;
        }
        Ok(())
    }
}

pub(super) fn disconnected(caller_id: &str) -> String {
    format!("caller \"{caller_id}\" is disconnected")
}

fn into_result(ended: CallerRequestResult) -> Result<Value, CallerError> {
    if ended.outcome == CallerToolOutcome::Answered {
        return Ok(ended.answer);
    }
    let why = match ended.answer {
        Value::String(why) => why,
        other => other.to_string(),
    };
    Err(CallerError::Ended(ended.outcome, why))
}
