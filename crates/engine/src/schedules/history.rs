//! `schedule_history`.

use oubliette_model::{Access, Mode, ProjectId, ScheduleId};
use oubliette_store::{RunFilter, VisibleProjects};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::RunView;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result, paging};

const LIST: &str = "runs";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Schedule name or id.
    schedule_id: ScheduleId,
    /// Project name or id.
    ///
    /// Only runs in this project; if absent, in all that the token can use.
    project_id: Option<ProjectId>,
    /// 1-1000 (100).
    limit: Option<u32>,
    /// Last `next_cursor`.
    ///
    /// For the next page.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    schedule_id: ScheduleId,
    /// Newest first.
    runs: Vec<RunView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug)]
pub(crate) struct History;

impl Operation for History {
    const NAME: &'static str = "schedule_history";
    const ABOUT: &'static str = "List runs, newest first: status, session, text, cost.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: params.project_id,
            ..Reach::schedule(params.schedule_id)
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, _: Call) -> Result<Output> {
        let limit = paging::check_limit(params.limit)?;
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?;
        let own = match actor.visible() {
            VisibleProjects::All => None,
            VisibleProjects::Only(project) => Some(project),
        };
        let filter = RunFilter {
            project_id: params.project_id.or(own),
        };
        let id = params.schedule_id;
        let page = engine
            .store()
            .schedule_runs(id, &filter, after, limit)
            .await?;
        let (runs, next_cursor) = paging::rows_and_cursor(page, LIST);
        Ok(Output {
            schedule_id: id,
            runs: runs.into_iter().map(RunView::from).collect(),
            next_cursor,
        })
    }
}
