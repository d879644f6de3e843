//! `schedule_list`.

use oubliette_model::{Access, Mode, ProjectId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::Summary;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result, paging};

const LIST: &str = "schedules";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    ///
    /// Only schedules of this project; if absent, of all that the token can use.
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
    /// Newest first.
    schedules: Vec<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug)]
pub(crate) struct List;

impl Operation for List {
    const NAME: &'static str = "schedule_list";
    const ABOUT: &'static str = "List schedules, newest first.\n\n\
         Of one project, or of every project that the token can use, with their next run times.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach {
            project: params.project_id,
            ..Reach::default()
        }
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, _: Call) -> Result<Output> {
        let limit = paging::check_limit(params.limit)?;
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?;
        let visible = engine.visible(actor, params.project_id).await?;
        let page = engine.store().schedules(visible, after, limit).await?;
        let (schedules, next_cursor) = paging::rows_and_cursor(page, LIST);
        let view = |schedule| Summary::new(schedule, actor);
        Ok(Output {
            schedules: schedules.into_iter().map(view).collect(),
            next_cursor,
        })
    }
}
