//! `workspace_create`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WorkspaceChoice;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Id of the new workspace.
    ///
    /// A new UUID if omitted.
    workspace_id: Option<WorkspaceId>,
    /// Workspace to clone.
    ///
    /// A git repository is cloned at its HEAD to the branch `oubliette/ID`; otherwise the new workspace is
    /// empty.
    from: Option<WorkspaceId>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    /// The path of the workspace in the container.
    path: String,
}

#[derive(Debug)]
pub(crate) struct Create;

impl Operation for Create {
    const NAME: &'static str = "workspace_create";
    const ABOUT: &'static str = "Clone a workspace, for work in parallel.\n\n\
         The default one, or `from`.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Adds;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let project_id = params.project_id;
        engine.project(project_id).await?;
        let workspaces = engine.workspaces();
        if let Some(from) = &params.from {
            workspaces.open_existing(project_id, from, &call).await?;
        }
        let choice = WorkspaceChoice {
            workspace_id: params.workspace_id,
            create_workspace: true,
            from: params.from,
        };
        let chosen = workspaces.choose(project_id, &choice, &call).await?;
        if !chosen.created {
            return Err(EngineError::workspace_exists(&chosen.id));
        }
        Ok(Output {
            project_id,
            path: super::path_in_container(&chosen.id),
            workspace_id: chosen.id,
        })
    }
}
