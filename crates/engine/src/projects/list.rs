//! `project_list`.

use oubliette_model::{Access, Mode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::ProjectSummary;
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result, paging};

const LIST: &str = "projects";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// 1-1000 (100).
    limit: Option<u32>,
    /// Last `next_cursor`.
    ///
    /// For the next page.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// Sorted by name.
    projects: Vec<ProjectSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug)]
pub(crate) struct List;

impl Operation for List {
    const NAME: &'static str = "project_list";
    const ABOUT: &'static str = "List the projects that this token can use.\n\n\
         Sorted by name.";
    const ACCESS: Access = Access::Global(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(_: &Params) -> Reach {
        Reach::everywhere()
    }

    async fn run(engine: &Engine, actor: &Actor, params: Params, _: Call) -> Result<Output> {
        let limit = paging::check_limit(params.limit)?;
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?;
        let page = engine
            .store()
            .projects(actor.visible(), after, limit)
            .await?;
        let (projects, next_cursor) = paging::rows_and_cursor(page, LIST);
        Ok(Output {
            projects: projects
                .into_iter()
                .map(|project| ProjectSummary::new(project, engine))
                .collect(),
            next_cursor,
        })
    }
}
