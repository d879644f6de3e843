//! `container_start`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::workspaces::WorkspaceChoice;
use crate::{Actor, Call, Engine, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Workspace id.
    ///
    /// Default: `default`.
    workspace_id: Option<WorkspaceId>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    /// `running`.
    status: &'static str,
    /// False if the container was already running.
    started: bool,
    /// The runtime of the container: `sandbox`, `docker` or `apple`.
    runtime: &'static str,
}

#[derive(Debug)]
pub(crate) struct Start;

impl Operation for Start {
    const NAME: &'static str = "container_start";
    const ABOUT: &'static str = "Start it; commands and sessions do that themselves.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let project = engine.project(params.project_id).await?;
        let choice = WorkspaceChoice {
            workspace_id: params.workspace_id,
            create_workspace: false,
            ..WorkspaceChoice::default()
        };
        let workspace = engine
            .workspaces()
            .choose(project.id, &choice, &call)
            .await?
            .id;
        let containers = engine.containers();
        let container = containers
            .ensure_with_progress(&project, &workspace, &call)
            .await?;
        // Its idle time starts now.
        drop(containers.mark_in_use(&container.id));
        Ok(Output {
            project_id: project.id,
            status: "running",
            started: container.started,
            runtime: containers.runtime().await?.capabilities().name,
        })
    }
}
