//! `container_stop`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ContainerScope;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Workspace id.
    ///
    /// Only if each workspace has its own container; default: the containers of all workspaces.
    workspace_id: Option<WorkspaceId>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    /// `stopped`.
    status: &'static str,
    /// False if no container was running.
    stopped: bool,
}

#[derive(Debug)]
pub(crate) struct Stop;

impl Operation for Stop {
    const NAME: &'static str = "container_stop";
    const ABOUT: &'static str = "Stop it with every process; files stay.\n\n\
         The next command or session starts it again.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let project_id = params.project_id;
        let project = engine.project(project_id).await?;
        let containers = match &params.workspace_id {
            Some(workspace) => {
                engine.workspaces().require(project_id, workspace).await?;
                vec![ContainerScope::of_workspace(&project, workspace).container_id()]
            }
            None => engine.containers().of_project(project_id).await?,
        };
        let mut stopped = false;
        for id in containers {
            stopped |= engine.containers().stop(&id).await?;
        }
        Ok(Output {
            project_id,
            status: "stopped",
            stopped,
        })
    }
}
