//! `workspace_delete`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use oubliette_store::StoreError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::containers::ContainerScope;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// Workspace id.
    ///
    /// Default: `default`.
    workspace_id: WorkspaceId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    workspace_id: WorkspaceId,
    deleted: bool,
}

#[derive(Debug)]
pub(crate) struct Delete;

impl Operation for Delete {
    const NAME: &'static str = "workspace_delete";
    const ABOUT: &'static str = "Delete a workspace with its files, permanently.\n\n\
         Also its own container, if it has one. Fails for the default workspace and while a session is \
         active in the workspace.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let Params {
            project_id,
            workspace_id,
        } = params;
        let project = engine.project(project_id).await?;
        if workspace_id.is_default() {
            return Err(EngineError::invalid(
                "the default workspace cannot be deleted; `project_delete` deletes the project",
            ));
        }
        let removed = engine
            .store()
            .remove_workspace(project_id, &workspace_id, call.take_audit_entry())
            .await
            .map_err(|error| match error {
                StoreError::InUse => EngineError::Failed(format!(
                    "a session is active in the workspace `{workspace_id}`; end it with \
                     `session_end` first"
                )),
                other => other.into(),
            })?;
        if !removed {
            return Err(super::not_found(&workspace_id));
        }
        if project.settings.workspace_isolation {
            let container = ContainerScope::of_workspace(&project, &workspace_id).container_id();
            engine.containers().remove(&container).await?;
        }
        engine
            .checkpoints()
            .forget_workspace(project_id, &workspace_id);
        engine
            .files()
            .remove_workspace(project_id, &workspace_id)
            .await?;
        Ok(Output {
            project_id,
            workspace_id,
            deleted: true,
        })
    }
}
