//! How results show a session.

use oubliette_model::{AwaitedRequest, ProjectId, SessionId, Status, Usage, WorkspaceId};
use oubliette_store::{CallerRequest, Session};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Engine, Result};

/// How much of a prompt a list shows.
const MAX_PROMPT_CHARS: u32 = 200;

/// A session in a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Summary {
    pub(crate) session_id: SessionId,
    pub(crate) project_id: ProjectId,
    workspace_id: WorkspaceId,
    parent_id: Option<SessionId>,
    depth: u32,
    agent: String,
    pub(crate) status: Status,
    /// The beginning of its first prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    /// While `status` is `waiting`: what it waits for, and until when.
    waiting_for: Option<AwaitedRequest>,
    turns: u32,
    usage: Usage,
    /// Null if it is unknown: the agent reports none, and no price is configured for its model.
    cost_usd: Option<f64>,
    /// Index of its last event.
    last_index: i64,
    error: Option<String>,
    /// The model that its agent uses; until the agent says so, the one that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change_id: Option<String>,
    /// The only tools it may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools_allowed: Vec<String>,
    /// Tools that it may not use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools_disallowed: Vec<String>,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
}

impl From<Session> for Summary {
    fn from(session: Session) -> Self {
        Self {
            cost_usd: session.total_cost_usd(),
            session_id: session.id,
            project_id: session.project_id,
            workspace_id: session.workspace_id,
            parent_id: session.parent_id,
            depth: session.depth,
            agent: session.agent,
            status: session.status,
            prompt: None,
            waiting_for: session.waiting,
            turns: session.turns,
            usage: session.usage,
            last_index: session.log_end - 1,
            error: session.error,
            model: session.choices.used_model.or(session.choices.model),
            external_id: session.choices.external_id,
            source: session.choices.source,
            change_id: session.choices.change_id,
            tools_allowed: session.choices.tools_allowed,
            tools_disallowed: session.choices.tools_disallowed,
            created_at: session.created_at.to_string(),
            updated_at: session.updated_at.to_string(),
            ended_at: session.ended_at.map(|at| at.to_string()),
        }
    }
}

impl Summary {
    /// Shows sessions with the beginnings of their first prompts.
    pub(super) async fn of_all(engine: &Engine, sessions: Vec<Session>) -> Result<Vec<Self>> {
        let ids: Vec<SessionId> = sessions.iter().map(|session| session.id).collect();
        let mut prompts = engine.store().first_prompts(&ids, MAX_PROMPT_CHARS).await?;
        let summaries = sessions.into_iter().map(|session| Self {
            prompt: prompts.remove(&session.id),
            ..session.into()
        });
        Ok(summaries.collect())
    }

    /// Shows a session with the beginning of its first prompt.
    pub(super) async fn of(engine: &Engine, session: Session) -> Result<Self> {
        let id = session.id;
        let mut prompts = engine
            .store()
            .first_prompts(&[id], MAX_PROMPT_CHARS)
            .await?;
        Ok(Self {
            prompt: prompts.remove(&id),
            ..session.into()
        })
    }
}

/// A call of a caller's tool that waits for the caller's response.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct PendingRequest {
    session_id: SessionId,
    request_id: String,
    tool: String,
    arguments: serde_json::Value,
    expires_at: String,
}

impl From<CallerRequest> for PendingRequest {
    fn from(request: CallerRequest) -> Self {
        Self {
            session_id: request.session_id,
            request_id: request.request_id.to_string(),
            tool: request.tool,
            arguments: request.arguments,
            expires_at: request.deadline.to_string(),
        }
    }
}
