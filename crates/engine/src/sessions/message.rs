//! `session_message`.

use oubliette_model::{Access, Mode, ProjectId, SessionId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::ask::Ask;
use super::deliver::Delivered;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The session the message is for; enough by itself.
    session_id: Option<SessionId>,
    /// Without `session_id`: the project, whose newest session in the workspace gets the message.
    project_id: Option<ProjectId>,
    #[serde(flatten)]
    ask: Ask,
}

#[derive(Debug)]
pub(crate) struct Message;

impl Operation for Message {
    const NAME: &'static str = "session_message";
    const ABOUT: &'static str = "Send a message to a session. While a turn runs it waits its turn; a session that has ended \
         goes on with it. Does not wait for the agent: `session_events` with `wait_seconds` does.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = Delivered;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: params.project_id,
            session: params.session_id,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Delivered> {
        if let Some(id) = params.session_id {
            return engine.deliver_to(actor, id, &params.ask, &call).await;
        }
        let Some(project_id) = params.project_id else {
            return Err(EngineError::invalid(
                "give `session_id`, or `project_id` for the newest session of its workspace",
            ));
        };
        let project = engine.store().get(project_id).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(project_id))?;
        let origin = engine.origin_of(actor).await?;
        engine.deliver(&project, &params.ask, origin, &call).await
    }
}
