//! Where a message to an agent goes: to a session that is there, or to one that is made for it.

use oubliette_model::{ProjectId, Scope, SessionId, Status, TokenId, WorkspaceId};
use oubliette_store::{Limit, NewSession, Project, Session, Spawned, TreeLimits};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::ask::Ask;
use super::view::PendingRequest;
use crate::workspaces::WorkspaceChoice;
use crate::{Actor, Call, Engine, EngineError, Result};

/// What became of a message.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Delivered {
    pub(crate) session_id: SessionId,
    pub(crate) project_id: ProjectId,
    /// Whether a session was made for it.
    spawned: bool,
    /// Whether it went to a session that had ended.
    resumed: bool,
    workspace_id: WorkspaceId,
    workspace_created: bool,
    status: Status,
    /// Calls of your tools that wait for your answer.
    pending_caller_requests: Vec<PendingRequest>,
    /// What you should know about the tools that you declared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// The last event before it: `session_events` with this as `since_index` shows what comes of it.
    pub(crate) last_event_index: i64,
}

/// Who a new session belongs to, and under which session it stands.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) owner: Option<TokenId>,
    pub(crate) parent: Option<Session>,
    /// The call of the parent that asks for it.
    pub(crate) call: Option<Uuid>,
    /// The widest scope that its agent's key may have.
    pub(crate) grant: Option<Scope>,
}

impl Engine {
    /// Where a session stands that somebody with a token asks for. What an agent asks for is below the
    /// agent's own session, by whatever name it asks.
    pub(crate) async fn origin_of(&self, actor: &Actor) -> Result<Origin> {
        let origin = Origin {
            owner: Some(actor.token_id),
            parent: None,
            call: None,
            grant: Some(actor.scope),
        };
        let Some(own) = actor.session else {
            return Ok(origin);
        };
        let own = self.store().session(own).await?;
        let own = own.ok_or(EngineError::Refused { parameter: None })?;
        Ok(Origin {
            grant: self.scope_of_agent(&own).await?,
            parent: Some(own),
            ..origin
        })
    }

    /// The scope of the key that a session's agent gets: what was chosen for it, or for its project, as
    /// far as that is allowed to whoever made the session.
    pub(crate) async fn scope_of_agent(&self, session: &Session) -> Result<Option<Scope>> {
        let project = self.store().get(session.project_id).await?;
        let own = session.choices.agent_scope;
        let wanted = own.or(project.and_then(|project| project.settings.agent_scope));
        let granted = session.choices.granted;
        Ok(wanted
            .zip(granted)
            .and_then(|(wanted, granted)| wanted.intersection(granted)))
    }

    /// Gives a message to the session that it is for, which is made if need be. Returns when that
    /// is durable; the agent does its part later.
    pub(crate) async fn deliver(
        &self,
        project: &Project,
        ask: &Ask,
        origin: Origin,
        call: &Call,
    ) -> Result<Delivered> {
        // What an agent asks for through its own session, it does not ask for as a caller.
        let by = origin.owner.filter(|_| origin.call.is_none());
        let (message, warnings) = ask.to_declaring(self, by).await?;
        let declares = message.declaration.is_some();
        let parent = origin.parent.as_ref();
        let beside = parent.filter(|parent| parent.project_id == project.id);
        let agent = match (&ask.agent, beside) {
            (Some(agent), _) => agent.clone(),
            (None, Some(parent)) => parent.agent.clone(),
            (None, None) => self.default_agent(project),
        };
        let mut choices = ask.choices(self, &origin, &agent)?;
        if let Some(parent) = parent {
            let level = self.level_below(parent, project, choices.autonomy).await?;
            choices.autonomy = Some(level);
        }
        let workspace = match (&ask.workspace_id, ask.create_workspace, beside) {
            // A child works where its parent does.
            (None, None | Some(false), Some(parent)) => WorkspaceChoice {
                workspace_id: Some(parent.workspace_id.clone()),
                create_workspace: false,
            },
            (id, create, _) => WorkspaceChoice {
                workspace_id: id.clone(),
                create_workspace: create.unwrap_or(false),
            },
        };
        let workspace = self
            .workspaces()
            .choose(project.id, &workspace, call)
            .await?;
        let id = SessionId::new(Uuid::new_v4());
        let session = Session {
            parent_id: parent.map(|parent| parent.id),
            root_id: parent.map_or(id, |parent| parent.root_id),
            depth: parent.map_or(0, |parent| parent.depth + 1),
            owner_id: origin.owner,
            choices,
            ..Session::new(
                id,
                project.id,
                workspace.id.clone(),
                agent,
                message.created_at,
            )
        };
        let limits = match parent {
            Some(parent) => self.limits_of_tree(parent).await?,
            None => self.tree_limits(project),
        };
        let new = NewSession {
            session,
            message: Some(message),
            // Tools hold for a whole session: one that has others would not keep to them.
            join: parent.is_none() && !ask.new_session.unwrap_or(false) && ask.tools()?.is_empty(),
            call: origin.call,
            run: call.run().cloned(),
            limits,
        };
        let spawned = self
            .store()
            .spawn_session(&new, call.audit_of(project.id))
            .await?;
        let (session, spawned, resumed) = match spawned {
            Spawned::New(session) => (session, true, false),
            Spawned::Joined { session, resumed } => (session, false, resumed),
            Spawned::OverLimit(limit) => return Err(over_limit(limit, &limits)),
            Spawned::Gone => {
                return Err(EngineError::Failed(
                    "the project, the workspace or the parent session is gone".to_owned(),
                ));
            }
        };
        self.sessions().watch.tell(session.id, session.root_id);
        if let Some(parent) = session.parent_id {
            self.sessions().watch.tell(parent, session.root_id);
        }
        if by.is_some() && session.owner_id == by {
            self.callers().presence.called(session.id);
        }
        if declares {
            self.tell_declared();
        }
        self.wake_session(session.id, session.project_id);
        let delivered = self.delivered(*session, resumed, warnings).await?;
        Ok(Delivered {
            spawned,
            workspace_created: workspace.created,
            ..delivered
        })
    }

    /// Gives a message to a session by its id.
    pub(crate) async fn deliver_to(
        &self,
        actor: &Actor,
        id: SessionId,
        ask: &Ask,
        call: &Call,
    ) -> Result<Delivered> {
        if !ask.tools()?.is_empty() {
            return Err(EngineError::invalid(
                "`tools_allowed` and `tools_disallowed` hold for a whole session; leave them out, or \
                 begin another with `session_spawn`",
            ));
        }
        // An agent is the caller of what it has begun, and of nothing else.
        let by = match actor.session {
            Some(_) => {
                let session = self.store().session(id).await?;
                let owner = session.and_then(|session| session.owner_id);
                owner.filter(|owner| *owner == actor.token_id && actor.session != Some(id))
            }
            None => Some(actor.token_id),
        };
        let (message, warnings) = ask.to_declaring(self, by).await?;
        let queued = match call.run() {
            Some(run) => {
                let queued = self.store().queue_run(run, id, &message, call.audit());
                queued.await?
            }
            None => {
                let queued = self.store().queue_message(id, &message, call.audit());
                queued.await?
            }
        };
        let (session, resumed) = queued.ok_or_else(|| Self::session_not_found(id))?;
        self.sessions().watch.tell(session.id, session.root_id);
        if message.declaration.is_some() {
            self.tell_declared();
        }
        self.wake_session(session.id, session.project_id);
        self.delivered(session, resumed, warnings).await
    }

    /// What became of a message to a session that was there.
    async fn delivered(
        &self,
        session: Session,
        resumed: bool,
        warnings: Vec<String>,
    ) -> Result<Delivered> {
        Ok(Delivered {
            pending_caller_requests: self.pending_requests(&session).await?,
            warnings,
            session_id: session.id,
            project_id: session.project_id,
            spawned: false,
            resumed,
            workspace_id: session.workspace_id,
            workspace_created: false,
            status: session.status,
            last_event_index: session.log_end - 1,
        })
    }

    /// What the tree of a session may have in all: its root's project decides.
    pub(crate) async fn limits_of_tree(&self, session: &Session) -> Result<TreeLimits> {
        let root = self.store().session(session.root_id).await?;
        let project = root.map_or(session.project_id, |root| root.project_id);
        let project = self.store().get(project).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(session.project_id))?;
        Ok(self.tree_limits(&project))
    }

    pub(crate) fn default_agent(&self, project: &Project) -> String {
        let own = project.settings.agent.clone();
        own.unwrap_or_else(|| self.settings().sessions.default_agent.clone())
    }

    /// What a tree of sessions of this project may have in all.
    pub(crate) fn tree_limits(&self, project: &Project) -> TreeLimits {
        let (own, default) = (&project.settings.limits, &self.settings().limits);
        TreeLimits {
            depth: own
                .max_recursion_depth
                .unwrap_or(default.max_recursion_depth),
            sessions: own
                .max_agents_per_session
                .unwrap_or(default.max_agents_per_session),
            cost_usd: own.max_cost_usd.unwrap_or(default.max_cost_usd),
            spawns_per_minute: self.settings().sessions.spawns_per_minute,
        }
    }
}

fn over_limit(limit: Limit, limits: &TreeLimits) -> EngineError {
    let raise = "an administrator can raise it with `project_update`";
    EngineError::Failed(match limit {
        Limit::Depth => format!(
            "a child here would be deeper than `max_recursion_depth` ({}) allows; do the work \
             yourself, or {raise}",
            limits.depth
        ),
        Limit::Sessions => format!(
            "the tree has had its `max_agents_per_session` ({}) sessions; {raise}",
            limits.sessions
        ),
        Limit::Cost => format!(
            "the tree has reached its `max_cost_usd` ({}); {raise}",
            limits.cost_usd
        ),
        Limit::Rate => format!(
            "the tree has started {} sessions in the last minute, which is all it may \
             (`sessions.spawns_per_minute` of the server's configuration); wait a little",
            limits.spawns_per_minute
        ),
    })
}
