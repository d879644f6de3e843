//! `container_start`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::workspaces::WorkspaceChoice;
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
    /// The workspace whose container to start, where each has its own; the default one if absent.
    workspace_id: Option<WorkspaceId>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    /// `running`.
    status: &'static str,
    /// False if it ran already.
    started: bool,
    /// What made it: `sandbox`, `docker` or `apple`.
    runtime: &'static str,
}

#[derive(Debug)]
pub(crate) struct Start;

impl Operation for Start {
    const NAME: &'static str = "container_start";
    const ABOUT: &'static str = "Start the container of a project. There is seldom a need to: whatever needs the container \
         starts it.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let project = engine.store().get(params.project_id).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(params.project_id))?;
        let choice = WorkspaceChoice {
            workspace_id: params.workspace_id,
            create_workspace: false,
        };
        let workspace = engine
            .workspaces()
            .choose(project.id, &choice, &call)
            .await?
            .id;
        let (id, _, started) = engine.ensure_container(&project, &workspace).await?;
        drop(engine.containers().using(&id));
        let runtime = engine.containers().runtime().await?.capabilities().name;
        Ok(Output {
            project_id: project.id,
            status: "running",
            started,
            runtime,
        })
    }
}
