//! `session_spawn`.

use oubliette_model::{Access, Mode, ProjectId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::deliver::Delivered;
use super::message_params::MessageParams;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project's id, from `project_list`.
    project_id: ProjectId,
    #[serde(flatten)]
    message: MessageParams,
}

#[derive(Debug)]
pub(crate) struct Spawn;

impl Operation for Spawn {
    const NAME: &'static str = "session_spawn";
    const ABOUT: &'static str = "Give an agent of a project a `prompt`. The newest session of the workspace continues with \
         it, whatever its agent; if there is none with the settings given here (`agent`, `model`, \
         `autonomy`, `reasoning`, `agent_scope`, `external_id`, `source`), or with `new_session`, a new \
         session starts. Returns at once: use \
         `session_events` with `wait_seconds` to see what the agent does.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = Delivered;

    fn reach(params: &Params) -> Reach {
        Reach {
            depends_on_tree: true,
            ..Reach::project(params.project_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Delivered> {
        let project = engine.project(params.project_id).await?;
        let sessions = engine.sessions();
        let origin = sessions.origin(actor).await?;
        sessions
            .spawn(&project, &params.message, origin, &call)
            .await
    }
}
