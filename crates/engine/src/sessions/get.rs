//! `session_get`.

use oubliette_model::{Access, Mode, SessionId, Status};
use oubliette_store::Session;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::{PendingRequest, Summary};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Session id, or the start of it.
    session_id: SessionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    session: Summary,
    /// Number of messages that wait for their turn.
    queued_messages: u32,
    /// The sessions that this one started.
    children: Vec<Child>,
    /// Cost of the session and all sessions below it; null if it is unknown.
    tree_cost_usd: Option<f64>,
    pending_caller_requests: Vec<PendingRequest>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Child {
    session_id: SessionId,
    agent: String,
    status: Status,
    /// Null if it is unknown.
    cost_usd: Option<f64>,
}

#[derive(Debug)]
pub(crate) struct Get;

impl Operation for Get {
    const NAME: &'static str = "session_get";
    const ABOUT: &'static str = "Show status, what it waits for, usage, cost and children.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::session(params.session_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, _: Call) -> Result<Output> {
        let id = params.session_id;
        let session = engine.sessions().get(id).await?;
        let pending = engine.callers().deliver_pending(actor, &session).await?;
        let tree = engine.store().session_tree(id).await?;
        let tree_cost_usd = tree.iter().map(Session::total_cost_usd).sum();
        let children = tree
            .into_iter()
            .filter(|child| child.parent_id == Some(id))
            .map(|child| Child {
                cost_usd: child.total_cost_usd(),
                session_id: child.id,
                agent: child.agent,
                status: child.status,
            });
        Ok(Output {
            session: Summary::of(engine, session).await?,
            queued_messages: engine.store().queued_messages(id).await?,
            children: children.collect(),
            tree_cost_usd,
            pending_caller_requests: pending,
        })
    }
}
