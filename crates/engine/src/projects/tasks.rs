//! `project_tasks`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use oubliette_openspec::{ApplyError, ApplyInstructions, apply_instructions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::openspec::{ActiveSession, ONE_CHANGE_LIMITS};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// `name` from `project_changes`.
    change_id: String,
    /// Workspace id.
    ///
    /// Default: `default`.
    workspace_id: Option<WorkspaceId>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    instructions: ApplyInstructions,
    /// Sessions of the project with this `change_id` that have not ended.
    active_sessions: Vec<ActiveSession>,
}

#[derive(Debug)]
pub(crate) struct Tasks;

impl Operation for Tasks {
    const NAME: &'static str = "project_tasks";
    const ABOUT: &'static str = "Show the tasks, state and files of an OpenSpec change.\n\n\
         The state is `ready`, `blocked` or `all_done`. Also the sessions that work on it.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Standalone;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let change = params.change_id.clone();
        let result = engine
            .projects()
            .read_openspec(
                params.project_id,
                params.workspace_id,
                ONE_CHANGE_LIMITS,
                move |tree| apply_instructions(tree, &change),
            )
            .await?;
        let instructions = match result.unwrap_or(Err(ApplyError::NotFound)) {
            Ok(instructions) => instructions,
            Err(ApplyError::Unreadable(sentence)) => return Err(EngineError::Failed(sentence)),
            Err(ApplyError::NotFound) => {
                return Err(EngineError::NotFound {
                    what: "change",
                    id: params.change_id,
                    hint: "`project_changes` lists the changes",
                });
            }
        };
        let mut sessions = engine
            .projects()
            .active_sessions(params.project_id, Some(&params.change_id))
            .await?;
        Ok(Output {
            instructions,
            active_sessions: sessions.remove(&params.change_id).unwrap_or_default(),
        })
    }
}
