//! A call of a caller's tool, from the agent's question to whatever ends it.

use std::time::Instant;

use jiff::SignedDuration;
use oubliette_model::{CallerToolOutcome, Event, Mode, quoted};
use oubliette_store::{Asked, AuditEntry, CallerRequest, Ended, Outcome, Session, Settled};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::presence::There;
use crate::operations::{Called, unpanicked};
use crate::sessions::view::PendingRequest;
use crate::{Actor, Call, Engine, EngineError, OnDisconnect, Result};

/// Bytes of the arguments of one call, as JSON.
const LONGEST: usize = 4 << 20;

/// Why a call of a caller's tool came to nothing.
#[derive(Debug, Clone)]
pub enum CallerError {
    /// It was asked, or would have been: what became of it, and the sentence for the agent.
    Ended(CallerToolOutcome, String),
    /// It could not be asked.
    Engine(EngineError),
}

impl<E: Into<EngineError>> From<E> for CallerError {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

impl Engine {
    /// Calls a tool of a session's caller for its agent, and waits for what becomes of it. `call_id` is the
    /// agent's client's own name for the call: repeated, it joins the first.
    pub async fn call_caller(
        &self,
        session: &Session,
        address: String,
        tool: &str,
        arguments: Map<String, Value>,
        call_id: Uuid,
        call: Call,
    ) -> Result<Value, CallerError> {
        let entry = AuditEntry {
            at: self.now(),
            token_id: session.owner_id,
            operation: "caller_tool".to_owned(),
            project_id: Some(session.project_id),
            outcome: Outcome::Ok,
            address: Some(address),
        };
        let started = Instant::now();
        let asking = async {
            Ok(self
                .ask_and_wait(session, tool, arguments, call_id, &call)
                .await)
        };
        let result = unpanicked(asking).await.map_err(CallerError::Engine);
        let result = result.and_then(|result| result);
        let called = Called {
            operation: "caller_tool",
            mode: Mode::Read,
            entry,
            started,
        };
        let accounted = match &result {
            Ok(_) => Ok(Value::Null),
            Err(CallerError::Ended(_, why)) => Err(EngineError::Failed(why.clone())),
            Err(CallerError::Engine(error)) => Err(error.clone()),
        };
        self.account(called, &accounted, &call).await;
        result
    }

    async fn ask_and_wait(
        &self,
        session: &Session,
        tool: &str,
        arguments: Map<String, Value>,
        call_id: Uuid,
        call: &Call,
    ) -> Result<Value, CallerError> {
        // Before the look: what changes after it is heard.
        let mut end = self.sessions().watch.call(call_id);
        let before = self.store().caller_call(session.id, call_id).await?;
        let asked = match before {
            Some(before) => before,
            None => self.ask_caller(session, tool, arguments, call_id).await?,
        };
        if let Some(ended) = asked.ended {
            return ended_as(ended);
        }
        tokio::select! {
            ended = end.reached() => return ended_as(Ended::clone(&ended)),
            () = call.cancelled() => {
                self.cancel_request(&asked, session).await?;
            }
        }
        // Cancelled, unless somebody was faster.
        let now = self.store().caller_call(session.id, call_id).await?;
        match now.and_then(|now| now.ended) {
            Some(ended) => ended_as(ended),
            None => Err(EngineError::Failed("the session is gone".to_owned()).into()),
        }
    }

    async fn ask_caller(
        &self,
        session: &Session,
        tool: &str,
        arguments: Map<String, Value>,
        call_id: Uuid,
    ) -> Result<CallerRequest, CallerError> {
        let known = self.declared_tools(session.id).await?;
        let place = known.as_ref().and_then(|known| {
            let mut tools = known.tools.iter();
            tools.position(|ready| ready.tool.name == tool)
        });
        let (Some(known), Some(place)) = (known, place) else {
            let why = format!(
                "the caller of this session has declared no tool {}",
                quoted(tool)
            );
            return Err(EngineError::invalid(why).into());
        };
        let caller_id = known.as_declared.caller_id.clone();
        let hidden = self.redaction(session).await?;
        let mut arguments = hidden.value(Value::Object(arguments));
        let bytes = arguments.to_string().len();
        if bytes > LONGEST {
            return Err(EngineError::invalid(format!(
                "the arguments have {bytes} bytes; at most {LONGEST} are taken. Write what is longer \
                 into the workspace, and say where"
            ))
            .into());
        }
        let declared = &known.tools[place];
        let fits = match declared.is_quick(bytes) {
            true => declared.validate(&arguments),
            false => {
                let known = known.clone();
                let check = move || (known.tools[place].validate(&arguments), arguments);
                let checked = tokio::task::spawn_blocking(check).await;
                let (fits, checked) = checked.map_err(EngineError::fault)?;
                arguments = checked;
                fits
            }
        };
        fits.map_err(EngineError::invalid)?;
        let settings = &self.settings().caller_tools;
        let there = self.callers().presence.of(session.id, settings);
        if there == There::No && settings.on_disconnect == OnDisconnect::Fail {
            let why = disconnected(&caller_id);
            return Err(CallerError::Ended(CallerToolOutcome::Disconnected, why));
        }
        let seconds = declared.tool.timeout_seconds;
        let seconds = seconds.unwrap_or(settings.timeout_seconds as f64);
        let now = self.now();
        let asked = CallerRequest {
            session_id: session.id,
            request_id: Uuid::new_v4(),
            call_id,
            tool: declared.tool.name.clone(),
            arguments,
            asked_at: now,
            deadline: now + SignedDuration::from_millis((seconds * 1000.0) as i64),
            event_index: 0,
            handed: false,
            ended: None,
        };
        let ears = self.ears_for(&asked);
        match self.store().ask_caller(&asked).await? {
            Asked::New(now) => {
                self.sessions().watch.tell(session.id, session.root_id);
                self.mind(&asked, session.clone(), caller_id, Some((ears, *now)));
                Ok(asked)
            }
            Asked::Before(before) => Ok(*before),
            Asked::TooMany => Err(EngineError::Failed(
                "too many calls of this session wait for its caller; wait for some of them"
                    .to_owned(),
            )
            .into()),
            Asked::Gone => Err(EngineError::Failed("the session has ended".to_owned()).into()),
        }
    }

    /// Ends a call that is pending; false if somebody was faster.
    pub(super) async fn settle_request(
        &self,
        asked: &CallerRequest,
        session: &Session,
        ended: Ended,
        audit: Option<AuditEntry>,
    ) -> Result<Settled> {
        let now = self.now();
        let (request_id, tool) = (asked.request_id.to_string(), asked.tool.clone());
        let taken = now.duration_since(asked.asked_at).as_millis();
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
                    duration_ms: u64::try_from(taken).unwrap_or_default(),
                }
            }
        };
        let (id, request) = (asked.session_id, asked.request_id);
        let settled = self
            .store()
            .settle_request(id, request, &ended, event, now, audit)
            .await?;
        self.callers().presence.settled(id, request);
        if settled == Settled::Done {
            self.sessions().watch.tell_call(asked.call_id, ended);
            self.sessions().watch.tell(id, session.root_id);
        }
        Ok(settled)
    }

    pub(super) async fn cancel_request(
        &self,
        asked: &CallerRequest,
        session: &Session,
    ) -> Result<()> {
        let ended = Ended {
            outcome: CallerToolOutcome::Cancelled,
            answer: Value::from("the call was cancelled"),
        };
        self.settle_request(asked, session, ended, None).await?;
        Ok(())
    }

    /// The calls of a session that wait for an answer, as results show them.
    pub(crate) async fn pending_requests(&self, session: &Session) -> Result<Vec<PendingRequest>> {
        let pending = self.store().pending_requests(session.id).await?;
        Ok(pending.into_iter().map(PendingRequest::from).collect())
    }

    /// The same for the session's caller: what it was given, it is taken to be working on.
    pub(crate) async fn hand_out(&self, actor: &Actor, session: &Session) -> Result<()> {
        if session.owner_id != Some(actor.token_id) {
            return Ok(());
        }
        let pending = self.store().pending_requests(session.id).await?;
        let mut fresh = Vec::new();
        for asked in pending.iter().filter(|asked| !asked.handed) {
            let left = self.left(asked.deadline);
            let presence = &self.callers().presence;
            presence.handed(session.id, asked.request_id, left);
            fresh.push(asked.request_id);
        }
        if !fresh.is_empty() {
            self.store().hand_out(session.id, &fresh).await?;
        }
        Ok(())
    }
}

pub(super) fn disconnected(caller_id: &str) -> String {
    format!("caller \"{caller_id}\" is disconnected")
}

fn ended_as(ended: Ended) -> Result<Value, CallerError> {
    if ended.outcome == CallerToolOutcome::Answered {
        return Ok(ended.answer);
    }
    let why = match ended.answer {
        Value::String(why) => why,
        other => other.to_string(),
    };
    Err(CallerError::Ended(ended.outcome, why))
}
