//! `session_spawn`.

use oubliette_model::{Access, Mode, ProjectId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::deliver::Delivered;
use super::message_params::MessageParams;
use super::waiting::{WaitTarget, parse_wait};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Wait for the end of the turn (0-50).
    wait_seconds: Option<f64>,
    #[serde(flatten)]
    message: MessageParams,
}

#[derive(Debug)]
pub(crate) struct Spawn;

impl Operation for Spawn {
    const NAME: &'static str = "session_spawn";
    const ABOUT: &'static str = "Give an agent a `prompt`, in the workspace's newest session or a new one; `wait_seconds` returns \
         the answer.\n\n\
         A session continues with the prompt only if it has the settings given here (`agent`, `model`, \
         `autonomy`, `reasoning`, `agent_scope`, `external_id`, `source`). Without `wait_seconds` the \
         call returns at once; `session_message` with `session_id` and `wait_seconds`, without a prompt, \
         goes on waiting.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    const OPEN_WORLD: bool = true;
    type Params = Params;
    type Output = Delivered;

    fn reach(params: &Params) -> Reach {
        Reach {
            depends_on_tree: true,
            ..Reach::project(params.project_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Delivered> {
        let wait = parse_wait(params.wait_seconds)?;
        let project = engine.project(params.project_id).await?;
        let sessions = engine.sessions();
        let origin = sessions.origin(actor).await?;
        let mut message = params.message;
        if wait.is_zero() {
            return sessions.spawn(&project, &message, origin, &call).await;
        }
        let awaited = WaitTarget::Message(message.await_turn());
        let delivered = sessions.spawn(&project, &message, origin, &call).await?;
        sessions
            .wait_after_delivery(actor, delivered, awaited, wait, &call)
            .await
    }
}
