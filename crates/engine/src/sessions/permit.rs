//! `session_permit`.

use oubliette_model::{Access, Mode, PermissionDecision, SessionId};
use oubliette_store::Decided;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::BudgetAnswer;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session, as `session_list` shows it.
    session_id: SessionId,
    /// The request, from its `permission_request` event or from `waiting_for`.
    request_id: String,
    /// `allow`, `allow_always` or `deny`.
    decision: PermissionDecision,
    /// For a request about money: what the whole tree may cost from now on. Without it, as much again.
    /// Not by project tokens.
    max_cost_usd: Option<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    session_id: SessionId,
    request_id: String,
    decision: PermissionDecision,
}

#[derive(Debug)]
pub(crate) struct Permit;

impl Operation for Permit {
    const NAME: &'static str = "session_permit";
    const ABOUT: &'static str = "Answer a question that an agent waits for: whether it may use a tool, or whether its tree \
         may spend more than `max_cost_usd`. What nobody answers in time is a no.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            restricted: params.max_cost_usd.is_some().then_some("max_cost_usd"),
            decides: true,
            ..Reach::session(params.session_id)
        }
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.session_id;
        let session = engine.store().session(id).await?;
        let session = session.ok_or_else(|| Engine::session_not_found(id))?;
        if let Some(cost) = params.max_cost_usd
            && !(cost > 0.0 && cost <= 1_000_000.0)
        {
            return Err(EngineError::invalid(format!(
                "`max_cost_usd` is {cost}; it must be more than 0 and at most 1000000"
            )));
        }
        let answer = BudgetAnswer {
            max_cost_usd: params.max_cost_usd,
        };
        let answer = serde_json::to_string(&answer).map_err(EngineError::fault)?;
        let (request, verdict) = (params.request_id.as_str(), params.decision);
        let now = engine.now();
        let decided = engine
            .store()
            .decide(id, request, verdict, Some(answer), now, call.audit())
            .await?;
        match decided {
            Decided::Done => {
                engine.wake_session(id, session.project_id);
                Ok(Output {
                    session_id: id,
                    request_id: params.request_id,
                    decision: params.decision,
                })
            }
            Decided::Late => Err(EngineError::Failed(
                "somebody else has answered this request, or its time is over".to_owned(),
            )),
            Decided::NoSuchRequest => Err(EngineError::NotFound {
                what: "request",
                id: params.request_id,
                hint: "`session_get` shows in `waiting_for` what the session waits for now",
            }),
        }
    }
}
