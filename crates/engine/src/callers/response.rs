//! `caller_tool_response`.

use oubliette_model::{Access, CallerToolOutcome, Mode, SessionId};
use oubliette_store::{Ended, Settled};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

const LONGEST: usize = 4 << 20;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session whose agent called your tool.
    session_id: SessionId,
    /// The request, from its `caller_tool_request` event or from `pending_caller_requests`.
    request_id: String,
    /// What your tool returned: any JSON, or MCP content as `{"content": [...]}`.
    #[serde(default)]
    #[schemars(schema_with = "anything")]
    result: Option<Value>,
    /// Instead, what went wrong, in words for the agent.
    error: Option<String>,
}

fn anything(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({})
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
    const ABOUT: &'static str = "Answer a `caller_tool_request`: the agent of your session has called a tool that you declared \
         in `context`, and waits. Give `result` or `error`. Only the token that made the session can; \
         the first answer counts.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Standalone;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::session(params.session_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.session_id;
        let session = engine.store().session(id).await?;
        let session = session.ok_or_else(|| Engine::session_not_found(id))?;
        // An agent does not answer itself, whichever key it has come by.
        if session.owner_id != Some(actor.token_id) || actor.session == Some(id) {
            return Err(EngineError::Refused { parameter: None });
        }
        let ended = match (params.result, params.error) {
            (Some(_), Some(_)) => {
                return Err(EngineError::invalid(
                    "give `result` or `error`, not both: an `error` fails the agent's call",
                ));
            }
            (_, Some(error)) => Ended {
                outcome: CallerToolOutcome::Failed,
                answer: Value::from(error),
            },
            (result, None) => Ended {
                outcome: CallerToolOutcome::Answered,
                answer: result.unwrap_or(Value::Null),
            },
        };
        let bytes = ended.answer.to_string().len();
        if bytes > LONGEST {
            return Err(EngineError::invalid(format!(
                "the answer has {bytes} bytes; at most {LONGEST} are taken. Write what is longer into \
                 the workspace, and say where"
            )));
        }
        let request = Uuid::try_parse(&params.request_id).ok();
        let asked = match request {
            Some(request) => engine.store().caller_request(id, request).await?,
            None => None,
        };
        let settled = match &asked {
            Some(asked) => {
                engine
                    .settle_request(asked, &session, ended, call.audit())
                    .await?
            }
            None => Settled::Late,
        };
        if settled != Settled::Done {
            tracing::warn!(session = %id, request = params.request_id, "an answer to nothing");
            return Err(EngineError::NotFound {
                what: "pending request",
                id: params.request_id,
                hint: "it was answered already, its time is over, or it is of another session; \
                       `session_events` shows in `pending_caller_requests` what waits now",
            });
        }
        Ok(Output {
            session_id: id,
            request_id: params.request_id,
            accepted: true,
        })
    }
}
