//! `session_permit`.

use oubliette_model::{Access, Mode, PermissionDecision, SessionId};
use oubliette_store::DecisionOutcome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::PendingRequest;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

const MAX_COST_LIMIT_USD: f64 = 1_000_000.0;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    session_id: SessionId,
    /// Of the request.
    ///
    /// From `pending_permissions`, `waiting_for` or the `permission_request` event.
    request_id: String,
    /// The answer.
    decision: PermissionDecision,
    /// New cost limit.
    ///
    /// For a budget request: of the whole tree, in US dollars. If absent, the tree may spend the project's
    /// limit once more. Project tokens cannot set this.
    max_cost_usd: Option<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    session_id: SessionId,
    request_id: String,
    decision: PermissionDecision,
    pending_caller_requests: Vec<PendingRequest>,
}

/// The answer to a budget request, stored with its decision.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct BudgetAnswer {
    pub(super) max_cost_usd: Option<f64>,
}

#[derive(Debug)]
pub(crate) struct Permit;

impl Operation for Permit {
    const NAME: &'static str = "session_permit";
    const ABOUT: &'static str = "Answer a permission or budget request.\n\n\
         Unanswered ones are denied after a timeout.\n\n\
         Whether the agent may use a tool, or whether its tree may spend more than `max_cost_usd`.";
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

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.session_id;
        let session = engine.sessions().get(id).await?;
        if let Some(cost) = params.max_cost_usd
            && !(cost > 0.0 && cost <= MAX_COST_LIMIT_USD)
        {
            return Err(EngineError::invalid(format!(
                "`max_cost_usd` is {cost}; it must be more than 0 and at most {MAX_COST_LIMIT_USD}"
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
            .record_decision(
                id,
                request,
                verdict,
                Some(answer),
                now,
                call.take_audit_entry(),
            )
            .await?;
        match decided {
            DecisionOutcome::Done => {
                engine.sessions().wake(id, session.project_id);
                Ok(Output {
                    session_id: id,
                    request_id: params.request_id,
                    decision: params.decision,
                    pending_caller_requests: engine
                        .callers()
                        .deliver_pending(actor, &session)
                        .await?,
                })
            }
            DecisionOutcome::Late => Err(EngineError::Failed(
                "this request was already answered, or its timeout is over".to_owned(),
            )),
            DecisionOutcome::NoSuchRequest => Err(EngineError::NotFound {
                what: "request",
                id: params.request_id,
                hint: "`waiting_for` of `session_get` shows what the session waits for",
            }),
        }
    }
}
