//! `session_permit`.

use oubliette_model::{
    Access, AwaitedRequestKind, Mode, PermissionDecision, ProjectId, SessionId, TokenId,
    may_answer_about_host,
};
use oubliette_store::DecisionOutcome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::PendingRequest;
use crate::network::allow::check_room;
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

/// Who answered a question about a host, stored with its decision.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HostAnswer {
    pub(super) token_id: TokenId,
    pub(super) address: Option<String>,
}

/// Refuses answers that would let agents reach more than they may.
async fn check_host_answer(
    engine: &Engine,
    actor: &Actor,
    project: ProjectId,
    decision: PermissionDecision,
) -> Result<()> {
    if !may_answer_about_host(actor.scope, actor.is_agent(), decision) {
        return Err(EngineError::refused(if actor.is_agent() {
            "an agent may not allow hosts, whatever its scope; the caller that started its tree can"
        } else {
            "a token of a project allows a host for now only (`allow`); a token that may call `network_allow` can allow it \
             for longer"
        }));
    }
    if decision == PermissionDecision::AllowProject {
        let policy = engine.project(project).await?.settings.network_policy;
        check_room(&policy.unwrap_or_default())?;
    }
    Ok(())
}

#[derive(Debug)]
pub(crate) struct Permit;

impl Operation for Permit {
    const NAME: &'static str = "session_permit";
    const ABOUT: &'static str = "Answer a request for a permission, a budget or a host.\n\n\
         Unanswered ones are denied after a timeout.\n\n\
         Whether the agent may use a tool, whether its tree may spend more than `max_cost_usd`, or whether its container may \
         reach a host (kind `network`): `allow` now, `allow_always` while the session lives, `allow_project` by a rule of the \
         project. The last two need a token that may call `network_allow`.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            restricted: match params.decision {
                _ if params.max_cost_usd.is_some() => Some("max_cost_usd"),
                // It does what `network_allow` does, which the same tokens may call.
                PermissionDecision::AllowProject => Some("allow_project"),
                _ => None,
            },
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
        let decisions = engine.store().decisions(id).await?;
        let asked = decisions
            .iter()
            .find(|decision| decision.request_id == params.request_id);
        let kind = asked.map(|decision| decision.kind);
        let answer = if kind == Some(AwaitedRequestKind::Network) {
            if params.max_cost_usd.is_some() {
                return Err(EngineError::invalid(
                    "`max_cost_usd` answers only requests of the kind `budget`; this one is about a host",
                ));
            }
            check_host_answer(engine, actor, session.project_id, params.decision).await?;
            serde_json::to_string(&HostAnswer {
                token_id: actor.token_id,
                address: actor.address.clone(),
            })
        } else if kind.is_some() && params.decision == PermissionDecision::AllowProject {
            return Err(EngineError::invalid(
                "`allow_project` answers only questions about hosts, of the kind `network`; use `allow`, `allow_always` \
                 or `deny`",
            ));
        } else {
            serde_json::to_string(&BudgetAnswer {
                max_cost_usd: params.max_cost_usd,
            })
        };
        let answer = answer.map_err(EngineError::fault)?;
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
