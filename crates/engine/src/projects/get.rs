//! `project_get`.

use oubliette_model::{Access, Mode, ProjectId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::view::View;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
}

#[derive(Debug)]
pub(crate) struct Get;

impl Operation for Get {
    const NAME: &'static str = "project_get";
    const ABOUT: &'static str =
        "Show a project: its settings and limits. Values of environment variables are never shown.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = View;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<View> {
        let project = engine.store().get(params.project_id).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(params.project_id))?;
        Ok(View::of(project, engine.settings()))
    }
}
