//! `project_delete`.

use oubliette_model::{Access, Mode, ProjectId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    project_id: ProjectId,
    deleted: bool,
    /// How many tokens were bound to the project and are revoked.
    tokens_revoked: usize,
}

#[derive(Debug)]
pub(crate) struct Delete;

impl Operation for Delete {
    const NAME: &'static str = "project_delete";
    const ABOUT: &'static str =
        "Delete a project with its container, files and tokens, permanently.";
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
            .mark_project_deleting(id, call.take_audit_entry())
            .await?
            .ok_or_else(|| EngineError::project_not_found(id))?;
        engine.tokens().notify_ended();
        engine.sessions().abort_project(id);
        engine.schedules().notify_changed();
        // The project is hidden now; if the server dies here, the next start goes on.
        if let Err(error) = engine.projects().purge(id).await {
            engine.projects().purge_in_background(id);
            return Err(not_purged_yet(&error));
        }
        Ok(Output {
            project_id: id,
            deleted: true,
            tokens_revoked,
        })
    }
}

fn not_purged_yet(error: &EngineError) -> EngineError {
    EngineError::Failed(format!(
        "the project is deleted, but its container and files could not be removed yet: {error}; \
         the server retries until they are removed"
    ))
}
