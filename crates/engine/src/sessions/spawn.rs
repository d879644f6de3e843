//! `session_spawn`.

use oubliette_model::{Access, Mode, ProjectId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::ask::Ask;
use super::deliver::Delivered;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
    #[serde(flatten)]
    ask: Ask,
}

#[derive(Debug)]
pub(crate) struct Spawn;

impl Operation for Spawn {
    const NAME: &'static str = "session_spawn";
    const ABOUT: &'static str = "Have an agent work in a project: give it a `prompt`. The workspace's newest session goes \
         on with it, or a new one begins (always, with `new_session`). Returns at once; \
         `session_events` with `wait_seconds` shows what the agent does.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = Delivered;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<Delivered> {
        let project = engine.store().get(params.project_id).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(params.project_id))?;
        let origin = engine.origin_of(actor).await?;
        engine.deliver(&project, &params.ask, origin, &call).await
    }
}
