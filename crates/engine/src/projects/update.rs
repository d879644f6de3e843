//! `project_update`.

use oubliette_model::{Access, Mode, ProjectId, ProjectName};
use oubliette_store::{StoreError, Updated};
use schemars::JsonSchema;
use serde::Deserialize;

use super::fields::Fields;
use super::view::View;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

/// How often an update starts again because somebody else was faster.
const TRIES: usize = 20;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
    /// The project's name: 1 to 100 letters, digits, spaces, `.`, `_` or `-`; unique. Changed only
    /// by tokens that can use every project.
    name: Option<ProjectName>,
    #[serde(flatten)]
    fields: Fields,
}

#[derive(Debug)]
pub(crate) struct Update;

impl Operation for Update {
    const NAME: &'static str = "project_update";
    const ABOUT: &'static str = "Change settings of a project; what is not named stays as it is. Its repository and \
         `workspace_isolation` are fixed at its making. Limits, `network`, `agent_scope` and the \
         name cannot be changed with a project token.";
    const ACCESS: Access = Access::Project(Mode::Write);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Changes;
    type Params = Params;
    type Output = View;

    fn reach(params: &Params) -> Reach {
        // A project token that could rename would learn which names are taken.
        let renames = params.name.is_some().then_some("name");
        Reach {
            project: Some(params.project_id),
            restricted: params.fields.restricted().or(renames),
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, call: Call) -> Result<View> {
        let audit = call.take_audit_entry();
        for _ in 0..TRIES {
            let project = engine.store().get(params.project_id).await?;
            let mut project =
                project.ok_or_else(|| EngineError::project_not_found(params.project_id))?;
            params.fields.apply(engine, actor, &mut project.settings)?;
            if let Some(name) = &params.name {
                project.name = name.clone();
            }
            project.updated_at = engine.now();
            match engine.store().update(&project, audit.clone()).await {
                Ok(Updated::Done(project)) => return Ok(View::of(*project, engine.settings())),
                Ok(Updated::Stale) => {}
                Err(StoreError::Duplicate) => {
                    return Err(EngineError::AlreadyExists { what: "project" });
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(EngineError::Failed(
            "others keep changing this project at the same time; try again".to_owned(),
        ))
    }
}
