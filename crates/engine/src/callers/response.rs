//! `caller_tool_response`.

use oubliette_model::{Access, CallerToolOutcome, Mode, SessionId, may_respond_as_caller};
use oubliette_store::{CallerRequestResult, EndRequestOutcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

const MAX_RESPONSE_BYTES: usize = 4 << 20;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    session_id: SessionId,
    /// From `pending_caller_requests`.
    ///
    /// Or from the `caller_tool_request` event.
    request_id: String,
    /// Any JSON, or `{"content": […]}` of MCP.
    #[serde(default)]
    #[schemars(schema_with = "any_json")]
    result: Option<Value>,
    /// Why the tool failed, for the agent.
    error: Option<String>,
}

fn any_json(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "anyOf": [
        { "type": "object" },
        { "type": "array", "items": { "type": "object" } },
        { "type": "string" },
        { "type": "number" },
        { "type": "boolean" },
    ] })
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    session_id: SessionId,
    request_id: String,
    accepted: bool,
}

#[derive(Debug)]
pub(crate) struct Response;

impl Operation for Response {
    const NAME: &'static str = "caller_tool_response";
    const ABOUT: &'static str = "Answer an agent's call of a tool that you declared in `context`: give `result` or `error`.\n\n\
         The agent waits for it. Only the token that created the session can respond; the first response \
         counts.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Standalone;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            depends_on_tree: true,
            ..Reach::session(params.session_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.session_id;
        let session = engine.store().session(id).await?;
        let session = session.ok_or_else(|| EngineError::session_not_found(id))?;
        if !may_respond_as_caller(session.owner_id, id, actor.token_id, actor.session) {
            return Err(EngineError::refused(
                "only the token that created the session, or declared its tools after that one ended, \
                 may respond to calls of them",
            ));
        }
        let ended = match (params.result, params.error) {
            (Some(_), Some(_)) => {
                return Err(EngineError::invalid(
                    "give `result` or `error`, not both: an `error` fails the agent's call",
                ));
            }
            (_, Some(error)) => CallerRequestResult {
                outcome: CallerToolOutcome::Failed,
                answer: Value::from(error),
            },
            (result, None) => CallerRequestResult {
                outcome: CallerToolOutcome::Answered,
                answer: result.unwrap_or(Value::Null),
            },
        };
        let bytes = ended.answer.to_string().len();
        if bytes > MAX_RESPONSE_BYTES {
            return Err(EngineError::invalid(format!(
                "the response has {bytes} bytes; the maximum is {MAX_RESPONSE_BYTES}. Write the data to \
                 a file in the workspace and respond with its path"
            )));
        }
        let request = match Uuid::try_parse(&params.request_id) {
            Ok(request) => engine.store().caller_request(id, request).await?,
            Err(_) => None,
        };
        let settled = match &request {
            Some(request) => {
                let audit = call.take_audit_entry();
                let callers = engine.callers();
                callers
                    .settle_request(request, &session, ended, audit)
                    .await?
            }
            None => EndRequestOutcome::Late,
        };
        if settled != EndRequestOutcome::Done {
            tracing::warn!(session = %id, request = params.request_id, "no such pending request");
            return Err(EngineError::NotFound {
                what: "pending request",
                id: params.request_id,
                hint: "it has a response already, has timed out or belongs to another session; \
                       `pending_caller_requests` of `session_events` lists the pending ones",
            });
        }
        Ok(Output {
            session_id: id,
            request_id: params.request_id,
            accepted: true,
        })
    }
}
