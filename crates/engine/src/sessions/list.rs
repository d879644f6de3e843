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
    /// The project's id; all projects that the token can use if absent.
    project_id: Option<ProjectId>,
    /// Only sessions in this workspace.
    workspace_id: Option<WorkspaceId>,
    /// Only sessions with this status.
    status: Option<Status>,
    /// `true`: only sessions that have not ended; `false`: only those that have.
    active: Option<bool>,
    /// Only the children of this session.
    parent_id: Option<SessionId>,
    /// Only sessions with this `external_id`.
    external_id: Option<String>,
    /// Only sessions that work on this OpenSpec change.
    change_id: Option<String>,
    /// Only sessions of this agent.
    agent: Option<String>,
    /// Maximum number of sessions to return (1 to 1000; 100 if absent).
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
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
    const ABOUT: &'static str = "List the sessions of one project, or of every project that the token can use, newest first.";
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
            sessions: sessions.into_iter().map(Summary::from).collect(),
            next_cursor,
        })
    }
}
