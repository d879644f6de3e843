//! `project_tasks`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::changes::AtWork;
use crate::openspec::{self, Apply, NoTasks};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, EngineError, Result};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// The project, as `project_list` shows it.
    project_id: ProjectId,
    /// The change, as `project_changes` names it.
    change_id: String,
    /// The workspace whose files are read; the default one if absent.
    workspace_id: Option<WorkspaceId>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    #[serde(flatten)]
    apply: Apply,
    /// Sessions of the project that work on the change: those with this `change_id` that have not
    /// ended.
    active_sessions: Vec<AtWork>,
}

#[derive(Debug)]
pub(crate) struct Tasks;

impl Operation for Tasks {
    const NAME: &'static str = "project_tasks";
    const ABOUT: &'static str = "Show an OpenSpec change of a project: its tasks and which are done, whether work on it can \
         go on (`ready`, `blocked`, `all_done`), the files to read first, and the sessions that work \
         on it.";
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
        let applied = engine
            .look_at_openspec(
                params.project_id,
                params.workspace_id,
                openspec::OF_ONE,
                move |tree| openspec::apply(tree, &change),
            )
            .await?;
        let apply = match applied.unwrap_or(Err(NoTasks::NotFound)) {
            Ok(apply) => apply,
            Err(NoTasks::Damaged(sentence)) => return Err(EngineError::Failed(sentence)),
            Err(NoTasks::NotFound) => {
                return Err(EngineError::NotFound {
                    what: "change",
                    id: params.change_id,
                    hint: "`project_changes` shows those there are",
                });
            }
        };
        let change = Some(params.change_id.as_str());
        let mut at_work = engine.at_work(params.project_id, change).await?;
        Ok(Output {
            apply,
            active_sessions: at_work.remove(&params.change_id).unwrap_or_default(),
        })
    }
}
