//! Delivers messages to agents: to an existing session, or to a new one.

use std::time::Duration;

use oubliette_model::{
    ProjectId, Scope, SessionId, Status, TokenId, WorkspaceId, may_respond_as_caller, narrow,
};
use oubliette_store::{JoinFilter, Project, Session, SessionFilter, VisibleProjects};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Sessions;
use super::create::{SessionPlan, StoredSession};
use super::message_params::MessageParams;
use super::polled_turn::{DETACH_AFTER, TurnId};
use super::view::PendingRequest;
use super::waiting::{TurnOutcome, WaitTarget, Waited};
use crate::containers::{CommandResult, DiskUse};
use crate::workspaces::WorkspaceChoice;
use crate::{Actor, Call, EngineError, Result, agents};

/// The result of delivering a message.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Delivered {
    pub(crate) session_id: SessionId,
    pub(crate) project_id: ProjectId,
    /// Whether a session was created for it.
    spawned: bool,
    /// Whether it resumed a session that had ended.
    resumed: bool,
    workspace_id: WorkspaceId,
    workspace_created: bool,
    status: Status,
    /// Calls of your tools that wait for your response.
    pending_caller_requests: Vec<PendingRequest>,
    /// Warnings about the tools that you declared, or about a credential that the agent needs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Index of the last event before the message. Pass it to `session_events` as `since_index` to read
    /// what follows.
    pub(crate) last_event_index: i64,
    /// With `wait_seconds`: how the turn ended, or what the agent waits for.
    #[serde(flatten)]
    outcome: Option<TurnOutcome>,
}

/// The part of a [`Delivered`] that only the call that delivered the message knows; stored for callers that ask
/// for the turn later.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Delivery {
    spawned: bool,
    resumed: bool,
    workspace_created: bool,
    warnings: Vec<String>,
    last_event_index: i64,
}

impl Delivery {
    fn of(delivered: &Delivered) -> Self {
        Self {
            spawned: delivered.spawned,
            resumed: delivered.resumed,
            workspace_created: delivered.workspace_created,
            warnings: delivered.warnings.clone(),
            last_event_index: delivered.last_event_index,
        }
    }
}

/// Who a new session belongs to, and which session is its parent.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) owner: Option<TokenId>,
    pub(crate) parent: Option<Session>,
    /// The call with which the parent's agent requested it.
    pub(crate) call: Option<Uuid>,
    /// The widest scope that its agent's key may have.
    pub(crate) max_scope: Option<Scope>,
}

/// Who sends a message to an existing session.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) scope: Option<Scope>,
    /// The token that can offer tools with the message.
    pub(super) caller: Option<TokenId>,
    /// The session whose agent sends it, with the id of its call.
    pub(super) call: Option<(SessionId, Uuid)>,
}

impl Sessions<'_> {
    /// The origin of a session that an actor requests. A session that an agent requests with its API key
    /// is a child of the agent's own session.
    pub(crate) async fn origin(self, actor: &Actor) -> Result<Origin> {
        let origin = Origin {
            owner: Some(actor.token_id),
            parent: None,
            call: None,
            max_scope: Some(actor.scope),
        };
        let Some(own) = actor.session else {
            return Ok(origin);
        };
        let own = self.engine.store().session(own).await?;
        let parent =
            own.ok_or_else(|| EngineError::refused("the session of this agent no longer exists"))?;
        let of_parent = self.agent_scope(&parent).await?;
        Ok(Origin {
            max_scope: narrow(actor.scope, [of_parent]),
            parent: Some(parent),
            ..origin
        })
    }

    /// Delivers a message to the newest session of a workspace or to a new session. Returns when that is
    /// durable, without waiting for the agent.
    pub(crate) async fn spawn(
        self,
        project: &Project,
        params: &MessageParams,
        origin: Origin,
        call: &Call,
    ) -> Result<Delivered> {
        let engine = self.engine;
        engine
            .containers()
            .require_disk_space(project, DiskUse::Message)
            .await?;
        // An agent that starts a child through its own session is not a caller that can offer tools.
        let caller = origin.owner.filter(|_| origin.call.is_none());
        let (mut message, mut warnings) = params.to_message_with_tools(engine, caller).await?;
        message.sender_scope = origin.max_scope;
        let declares_tools = message.declaration.is_some();
        let parent = origin.parent.as_ref();
        let parent_here = parent.filter(|parent| parent.project_id == project.id);
        let agent = match (&params.agent, parent_here) {
            (Some(agent), _) => agent.clone(),
            (None, Some(parent)) => parent.agent.clone(),
            (None, None) => self.default_agent(project),
        };
        let mut choices = params.choices(engine, &origin, &agent)?;
        self.limit_choices(&mut choices, &agent, &origin, project)
            .await?;
        let create_workspace = params.create_workspace.unwrap_or(false);
        let parent_workspace = parent_here
            .filter(|_| !create_workspace)
            .map(|parent| parent.workspace_id.clone());
        let choice = WorkspaceChoice {
            workspace_id: params.workspace_id.clone().or(parent_workspace),
            create_workspace,
            ..WorkspaceChoice::default()
        };
        let workspace = engine
            .workspaces()
            .choose(project.id, &choice, call)
            .await?;
        let stored = async {
            // Tools are set for a whole session, so a message that sets them needs a new one.
            let may_join = parent.is_none()
                && !params.new_session.unwrap_or(false)
                && params.tools()?.is_empty();
            let may_be_another = may_join && params.agent.is_none();
            self.require_agent(project, &workspace.id, &agent, may_be_another, call)
                .await?;
            let sender = origin.max_scope.filter(|_| may_join);
            let plan = SessionPlan {
                project,
                origin: &origin,
                workspace: workspace.id.clone(),
                agent,
                choices,
                message: Some(message),
                join: sender.map(|sender| JoinFilter {
                    settings: params.requested_settings(engine, project),
                    sender,
                }),
                run: call.schedule_run().cloned(),
                events: Vec::new(),
            };
            self.store_new(plan, call).await
        };
        let stored = stored.await;
        // A repeated call finds the session that it started before, in another workspace.
        let is_used = matches!(&stored, Ok(stored) if stored.session.workspace_id == workspace.id);
        // No caller chose the id of the workspace, and none gets it.
        if !is_used && workspace.created && choice.workspace_id.is_none() {
            let workspaces = engine.workspaces();
            workspaces.undo_creation(project.id, &workspace.id).await;
        }
        let StoredSession {
            session,
            spawned,
            resumed,
        } = stored?;
        if let Some(caller) = caller {
            engine.callers().record_call(caller, &session);
        }
        self.announce_message(&session, declares_tools);
        if spawned {
            warnings.extend(self.credential_hint(project, &session));
        }
        let delivered = self.delivered(*session, resumed, warnings).await;
        Ok(Delivered {
            spawned,
            workspace_created: workspace.created && is_used,
            ..delivered
        })
    }

    /// What a new session lacks if its agent needs a credential and has none.
    fn credential_hint(self, project: &Project, session: &Session) -> Option<String> {
        let settings = self.engine.settings();
        let agent = agents::find(settings, &session.agent).ok()?;
        let default_agent = &settings.sessions.default_agent;
        let models = project.settings.models_by_agent(default_agent);
        let model = session.chosen_model(&models).map(String::as_str);
        let credentials = self.engine.credentials();
        credentials.missing_hint(project, &agent, model)
    }

    /// Fails if an agent is neither installed nor in the container of a workspace. With `may_be_another`, a
    /// session of the workspace may get the message, whatever its agent.
    async fn require_agent(
        self,
        project: &Project,
        workspace: &WorkspaceId,
        agent: &str,
        may_be_another: bool,
        call: &Call,
    ) -> Result<()> {
        let settings = self.engine.settings();
        let row = agents::find(settings, agent)?;
        let (Some(_), Some(program)) = (row.package, row.argv.first()) else {
            return Ok(());
        };
        if agents::is_installed(settings, &row) {
            return Ok(());
        }
        if may_be_another {
            let filter = SessionFilter {
                workspace_id: Some(workspace.clone()),
                ..SessionFilter::default()
            };
            let visible = VisibleProjects::Only(project.id);
            let sessions = self.engine.store().sessions(visible, &filter, None, 1);
            if !sessions.await?.rows.is_empty() {
                return Ok(());
            }
        }
        let containers = self.engine.containers();
        let started = containers.ensure_with_progress(project, workspace, call);
        // The session's log says why a container does not start.
        let Ok(container) = started.await else {
            return Ok(());
        };
        let search = ["/bin/sh", "-c", "command -v \"$0\"", program].map(str::to_owned);
        let found = containers
            .run_command(&container.id, container.link, search.to_vec(), Vec::new())
            .await;
        if !matches!(found, Ok(CommandResult::Failed(_))) {
            return Ok(());
        }
        let installed: Vec<String> = agents::all(settings)
            .into_iter()
            .filter(|row| row.package.is_none() || agents::is_installed(settings, row))
            .map(|row| row.name)
            .collect();
        Err(EngineError::Failed(format!(
            "the agent `{agent}` is not installed; run `oubliette agent install {agent}` on the server, or \
             use one that is: `{}`",
            installed.join("`, `")
        )))
    }

    /// Delivers a message to a session by its id.
    pub(crate) async fn deliver(
        self,
        actor: &Actor,
        id: SessionId,
        params: &MessageParams,
        call: &Call,
    ) -> Result<Delivered> {
        let session = self.get(id).await?;
        if let Some(own) = actor.session {
            self.check_below(own, &session).await?;
        }
        // An agent is the caller only of the sessions that it started.
        let caller = match actor.session {
            Some(own) => may_respond_as_caller(session.owner_id, id, actor.token_id, Some(own))
                .then_some(actor.token_id),
            None => Some(actor.token_id),
        };
        let sender = Sender {
            scope: Some(actor.scope),
            caller,
            call: None,
        };
        let (session, resumed, warnings) = self.queue(&session, params, &sender, call).await?;
        Ok(self.delivered(session, resumed, warnings).await)
    }

    /// Queues a message for an existing session, if the sender may send it and the project has room.
    /// Returns the session, whether the message resumed it, and warnings about declared tools.
    pub(super) async fn queue(
        self,
        session: &Session,
        params: &MessageParams,
        sender: &Sender,
        call: &Call,
    ) -> Result<(Session, bool, Vec<String>)> {
        self.check_sender(sender.scope, session).await?;
        self.require_disk_space(session).await?;
        self.check_session_settings(params, session).await?;
        let (mut message, warnings) = params
            .to_message_with_tools(self.engine, sender.caller)
            .await?;
        message.sender_scope = sender.scope;
        let (store, audit) = (self.engine.store(), call.take_audit_entry());
        let id = session.id;
        let queued = match (sender.call, call.schedule_run()) {
            (Some((parent, call_id)), _) => {
                let queued = store.queue_call(parent, call_id, id, &message, audit);
                queued.await?.ok_or_else(|| {
                    EngineError::Failed("your own session, or the other one, has ended".to_owned())
                })
            }
            (None, Some(run)) => {
                let queued = store.queue_run(run, id, &message, audit).await?;
                queued.ok_or_else(|| EngineError::session_not_found(id))
            }
            (None, None) => {
                let queued = store.queue_message(id, &message, audit).await?;
                queued.ok_or_else(|| EngineError::session_not_found(id))
            }
        };
        let (session, resumed) = queued?;
        self.announce_message(&session, message.declaration.is_some());
        Ok((session, resumed, warnings))
    }

    /// Fails if the project of a session is over its disk limit.
    async fn require_disk_space(self, session: &Session) -> Result<()> {
        let containers = self.engine.containers();
        if !containers.is_any_over_disk_limit() {
            return Ok(());
        }
        let project = self.engine.project(session.project_id).await?;
        containers
            .require_disk_space(&project, DiskUse::Message)
            .await
    }

    /// Checks that a message to an existing session asks for nothing that the session does not have.
    async fn check_session_settings(self, params: &MessageParams, session: &Session) -> Result<()> {
        if !params.tools()?.is_empty() {
            return Err(EngineError::invalid(
                "`tools_allowed` and `tools_disallowed` are set for a whole session; omit them, or \
                 start a new session with `session_spawn`",
            ));
        }
        let project = self.engine.project(session.project_id).await?;
        let requested = params.requested_settings(self.engine, &project);
        let is_elsewhere = params
            .workspace_id
            .as_ref()
            .is_some_and(|workspace| *workspace != session.workspace_id);
        let differing = if params.new_session == Some(true) {
            Some("new_session")
        } else if params.create_workspace == Some(true) {
            Some("create_workspace")
        } else if is_elsewhere {
            Some("workspace_id")
        } else {
            requested.differing_parameter(session)
        };
        match differing {
            Some(name) => Err(EngineError::invalid(format!(
                "`{name}` cannot be changed for the existing session {}; omit it, or omit \
                 `session_id` for a session that has it",
                session.id
            ))),
            None => Ok(()),
        }
    }

    /// Wakes everything that waits for a message that was just stored.
    fn announce_message(self, session: &Session, declares_tools: bool) {
        let subscriptions = self.subscriptions();
        subscriptions.notify_log(session.id, session.root_id);
        if declares_tools {
            self.engine.callers().notify_declared();
        }
        self.wake(session.id, session.project_id);
    }

    /// The result for a message to an existing session.
    async fn delivered(self, session: Session, resumed: bool, warnings: Vec<String>) -> Delivered {
        // The message is stored, so an error now would make its sender repeat it.
        let pending = self.engine.callers().pending_requests(&session).await;
        let pending_caller_requests = pending.unwrap_or_else(|error| {
            tracing::warn!(session = %session.id, %error, "could not read the pending requests of a caller");
            Vec::new()
        });
        Delivered {
            pending_caller_requests,
            warnings,
            session_id: session.id,
            project_id: session.project_id,
            spawned: false,
            resumed,
            workspace_id: session.workspace_id,
            workspace_created: false,
            status: session.status,
            last_event_index: session.log_end - 1,
            outcome: None,
        }
    }

    /// Waits for the turn of a message that was delivered.
    pub(super) async fn wait_after_delivery(
        self,
        actor: &Actor,
        delivered: Delivered,
        awaited: WaitTarget,
        wait: Duration,
        call: &Call,
    ) -> Result<Delivered> {
        let id = delivered.session_id;
        let detachable = match awaited {
            WaitTarget::Message(message) if call.may_detach() => Some(TurnId::new(id, message)),
            _ => None,
        };
        let wait = detachable.map_or(wait, |_| wait.min(DETACH_AFTER));
        let waited = self.wait_for_turn(actor, id, awaited, wait, call).await?;
        if let Some(turn) = detachable.filter(|_| !waited.has_news) {
            self.detach(turn, &Delivery::of(&delivered), call).await?;
            return Ok(delivered);
        }
        self.report_delivery(actor, Delivery::of(&delivered), waited)
            .await
    }

    /// The result of a call that waited for the turn of its message.
    pub(super) async fn report_delivery(
        self,
        actor: &Actor,
        delivery: Delivery,
        waited: Waited,
    ) -> Result<Delivered> {
        let (session, outcome, pending_caller_requests) = self.report(actor, waited).await?;
        Ok(Delivered {
            session_id: session.id,
            project_id: session.project_id,
            spawned: delivery.spawned,
            resumed: delivery.resumed,
            workspace_id: session.workspace_id,
            workspace_created: delivery.workspace_created,
            status: session.status,
            pending_caller_requests,
            warnings: delivery.warnings,
            last_event_index: delivery.last_event_index,
            outcome: Some(outcome),
        })
    }

    /// Waits for what runs or is queued in a session, without a message.
    pub(super) async fn wait_on(
        self,
        actor: &Actor,
        id: SessionId,
        wait: Duration,
        call: &Call,
    ) -> Result<Delivered> {
        let session = self.get(id).await?;
        if let Some(own) = actor.session {
            self.check_below(own, &session).await?;
        }
        let delivered = self.delivered(session, false, Vec::new()).await;
        let awaited = WaitTarget::Session;
        self.wait_after_delivery(actor, delivered, awaited, wait, call)
            .await
    }
}
