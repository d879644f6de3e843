//! `workspace_list`.

use oubliette_model::{Access, Mode, ProjectId, WorkspaceId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result, paging};

const LIST: &str = "workspaces";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    project_id: ProjectId,
    /// 1-1000 (100).
    limit: Option<u32>,
    /// Last `next_cursor`.
    ///
    /// For the next page.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    workspaces: Vec<ListedWorkspace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ListedWorkspace {
    workspace_id: WorkspaceId,
    project_id: ProjectId,
    default: bool,
    /// The path of the workspace in the container.
    path: String,
    created_at: String,
}

#[derive(Debug)]
pub(crate) struct List;

impl Operation for List {
    const NAME: &'static str = "workspace_list";
    const ABOUT: &'static str = "List the workspaces of a project.";
    const ACCESS: Access = Access::Project(Mode::Read);
    const FACE: Face = Face::Action;
    const EFFECT: Effect = Effect::Reads;
    type Params = Params;
    type Output = Output;

    fn reach(params: &Params) -> Reach {
        Reach::project(params.project_id)
    }

    async fn run(engine: &Engine, _: &Actor, params: Params, _: Call) -> Result<Output> {
        let project_id = params.project_id;
        let limit = paging::check_limit(params.limit)?;
        let after = paging::decode_cursor(params.cursor.as_deref(), LIST)?;
        engine.project(project_id).await?;
        let page = engine.store().workspaces(project_id, after, limit).await?;
        let (workspaces, next_cursor) = paging::rows_and_cursor(page, LIST);
        let listed_workspace = |workspace: oubliette_store::Workspace| ListedWorkspace {
            project_id,
            default: workspace.id.is_default(),
            path: super::path_in_container(&workspace.id),
            created_at: workspace.created_at.to_string(),
            workspace_id: workspace.id,
        };
        Ok(Output {
            workspaces: workspaces.into_iter().map(listed_workspace).collect(),
            next_cursor,
        })
    }
}
