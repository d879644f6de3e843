//! `project_delete`.

use oubliette_model::{Access, Mode, ProjectId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    deleted: bool,
    /// Tokens that were bound to the project and ended with it.
    tokens_revoked: usize,
}

#[derive(Debug)]
pub(crate) struct Delete;

impl Operation for Delete {
    const NAME: &'static str = "project_delete";
    const ABOUT: &'static str = "Delete a project with its container, all its files and workspaces and the tokens bound to \
         it, for good.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Destroys;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, call: Call) -> Result<Output> {
        let id = params.project_id;
        let tokens_revoked = engine
            .store()
            .condemn(id, call.take_audit_entry())
            .await?
            .ok_or_else(|| EngineError::project_not_found(id))?;
        engine.tokens().notify_ended();
        engine.sessions().abort_project(id);
        engine.schedules().notify_changed();
        // From here the project is gone for everybody; if the server dies, the next start goes on.
        if let Err(error) = engine.delete_project_data(id).await {
            engine.delete_project_in_background(id);
            return Err(unfinished(&error));
        }
        Ok(Output {
            project_id: id,
            deleted: true,
            tokens_revoked,
        })
    }
}

fn unfinished(error: &EngineError) -> EngineError {
    EngineError::Failed(format!(
        "the project is deleted, but its container and files could not be removed yet: {error}; \
         the server tries again until they are gone"
    ))
}
