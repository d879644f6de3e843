//! `project_get`.

use oubliette_model::{Access, Mode, ProjectId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::View;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    project: View,
    /// Whether the project's container is `running` or `stopped`.
    container_status: &'static str,
}

#[derive(Debug)]
pub(crate) struct Get;

impl Operation for Get {
    const NAME: &'static str = "project_get";
    const ABOUT: &'static str = "Show a project: its settings and limits, and whether its container runs. Values of \
         environment variables are never shown.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let project = engine.store().get(params.project_id).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(params.project_id))?;
        let running = engine.containers().is_linked(project.id);
        Ok(Output {
            project: View::of(project, engine.settings()),
            container_status: if running { "running" } else { "stopped" },
        })
    }
}
