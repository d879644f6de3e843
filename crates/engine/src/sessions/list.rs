//! `session_list`.

use oubliette_model::{
    Access, AwaitedRequestKind, Mode, ProjectId, SessionId, Status, WorkspaceId,
};
use oubliette_store::SessionFilter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::view::{PendingRequest, Summary};
use crate::operations::{Effect, Face, Operation, Reach};
use crate::{Actor, Call, Engine, Result, paging};

const CURSOR_LIST: &str = "sessions";

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Params {
    /// Project name or id.
    ///
    /// All projects that the token can use if absent.
    project_id: Option<ProjectId>,
    /// Workspace id.
    workspace_id: Option<WorkspaceId>,
    /// Only with this status.
    status: Option<Status>,
    /// Not ended (true) or ended.
    active: Option<bool>,
    /// Only its children.
    parent_id: Option<SessionId>,
    /// Your own name for the session.
    #[schemars(extend("x-unlisted" = true))]
    external_id: Option<String>,
    /// OpenSpec change.
    change_id: Option<String>,
    /// Agent name.
    agent: Option<String>,
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
    sessions: Vec<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Of the sessions in this page that wait for a caller's tool.
    pending_caller_requests: Vec<PendingRequest>,
}

#[derive(Debug)]
pub(crate) struct List;

impl Operation for List {
    const NAME: &'static str = "session_list";
    const ABOUT: &'static str = "List sessions, newest first.\n\n\
         Of one project, or of every project that the token can use.";
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
        let after = paging::decode_cursor(params.cursor.as_deref(), CURSOR_LIST)?;
        let visible = engine.visible(actor, params.project_id).await?;
        let filter = SessionFilter {
            workspace_id: params.workspace_id,
            status: params.status,
            active: params.active,
            parent_id: params.parent_id,
            external_id: params.external_id,
            change_id: params.change_id,
            agent: params.agent,
        };
        let page = engine
            .store()
            .sessions(visible, &filter, after, limit)
            .await?;
        let (sessions, next_cursor) = paging::rows_and_cursor(page, CURSOR_LIST);
        let mut pending_caller_requests = Vec::new();
        for session in &sessions {
            let waiting = session.waiting.as_ref();
            if waiting.is_some_and(|waiting| waiting.kind == AwaitedRequestKind::CallerTool) {
                let pending = engine.callers().deliver_pending(actor, session).await?;
                pending_caller_requests.extend(pending);
            }
        }
        Ok(Output {
            pending_caller_requests,
            sessions: Summary::of_all(engine, sessions).await?,
            next_cursor,
        })
    }
}
