//! Stores new sessions: those of messages, and forks.

use oubliette_model::{Event, SessionId, WorkspaceId};
use oubliette_store::{
    JoinFilter, NewSession, Project, RunBinding, Session, SessionChoices, SessionMessage,
    SessionTreeLimits, SpawnOutcome, TreeLimit,
};
use uuid::Uuid;

use super::Sessions;
use super::deliver::Origin;
use super::tools::{tools_below, tools_from_choices};
use crate::agents;
use crate::{Call, EngineError, Result};

/// A session to store.
#[derive(Debug)]
pub(crate) struct SessionPlan<'a> {
    pub(crate) project: &'a Project,
    pub(crate) origin: &'a Origin,
    pub(crate) workspace: WorkspaceId,
    pub(crate) agent: String,
    /// Limited by [`Sessions::limit_choices`].
    pub(crate) choices: SessionChoices,
    pub(crate) message: Option<SessionMessage>,
    /// Send the message to a session like this instead, if there is one.
    pub(crate) join: Option<JoinFilter>,
    pub(crate) run: Option<RunBinding>,
    /// Events for its log, after the first one.
    pub(crate) events: Vec<Event>,
}

/// A session that is stored.
#[derive(Debug)]
pub(crate) struct StoredSession {
    pub(crate) session: Box<Session>,
    /// Whether it was created now.
    pub(crate) spawned: bool,
    /// Whether a message resumed it.
    pub(crate) resumed: bool,
}

impl Sessions<'_> {
    /// Limits the choices of a new session to what its parent may do itself, and checks that its agent can
    /// be held to them.
    pub(crate) async fn limit_choices(
        self,
        choices: &mut SessionChoices,
        agent: &str,
        origin: &Origin,
        project: &Project,
    ) -> Result<()> {
        choices.granted = origin.max_scope;
        let row = agents::find(self.engine.settings(), agent)?;
        let mut tools = tools_from_choices(choices);
        if let Some(parent) = &origin.parent {
            tools = tools_below(parent, &tools, agent)?;
            let requested = choices.autonomy;
            choices.autonomy = Some(self.child_autonomy(parent, project, requested).await?);
        }
        if let Some(reason) = row.tool_enforcement.unsupported_reason(&tools) {
            return Err(EngineError::invalid(format!(
                "the agent `{agent}` {reason}; omit `tools_allowed` and `tools_disallowed`, or \
                 change them"
            )));
        }
        choices.tools_allowed = tools.allowed;
        choices.tools_disallowed = tools.disallowed;
        Ok(())
    }

    /// Stores a session below its parent, within the limits of its tree, and tells the parent's readers.
    pub(crate) async fn store_new(
        self,
        plan: SessionPlan<'_>,
        call: &Call,
    ) -> Result<StoredSession> {
        let SessionPlan {
            project, origin, ..
        } = plan;
        let parent = origin.parent.as_ref();
        let limits = match parent {
            Some(parent) => self.tree_limits(parent).await?,
            None => self.project_tree_limits(project),
        };
        let id = SessionId::new(Uuid::new_v4());
        let at = match &plan.message {
            Some(message) => message.created_at,
            None => self.engine.now(),
        };
        let new = NewSession {
            session: Session {
                parent_id: parent.map(|parent| parent.id),
                root_id: parent.map_or(id, |parent| parent.root_id),
                depth: parent.map_or(0, |parent| parent.depth + 1),
                owner_id: origin.owner,
                choices: plan.choices,
                ..Session::new(id, project.id, plan.workspace, plan.agent, at)
            },
            message: plan.message,
            join: plan.join,
            call: origin.call,
            run: plan.run,
            events: plan.events,
            limits,
        };
        let audit = call.take_audit_entry_for(project.id);
        let (session, spawned, resumed) =
            match self.engine.store().spawn_session(&new, audit).await? {
                SpawnOutcome::New(session) => (session, true, false),
                SpawnOutcome::Joined { session, resumed } => (session, false, resumed),
                SpawnOutcome::OverLimit(limit) => return Err(over_limit(limit, &limits)),
                SpawnOutcome::Gone => {
                    return Err(EngineError::Failed(
                        "the project, the workspace or the parent session was deleted".to_owned(),
                    ));
                }
            };
        if let Some(parent) = session.parent_id {
            self.subscriptions().notify_log(parent, session.root_id);
        }
        Ok(StoredSession {
            session,
            spawned,
            resumed,
        })
    }

    /// The limits of a session's tree, which the project of its root sets.
    pub(crate) async fn tree_limits(self, session: &Session) -> Result<SessionTreeLimits> {
        let store = self.engine.store();
        let root = store.session(session.root_id).await?;
        let project_id = root.map_or(session.project_id, |root| root.project_id);
        let project = store.project(project_id).await?;
        let project = project.ok_or_else(|| EngineError::project_not_found(session.project_id))?;
        Ok(self.project_tree_limits(&project))
    }

    pub(crate) fn default_agent(self, project: &Project) -> String {
        let own = project.settings.agent.clone();
        own.unwrap_or_else(|| self.engine.settings().sessions.default_agent.clone())
    }

    /// The limits of each tree of sessions in a project.
    pub(crate) fn project_tree_limits(self, project: &Project) -> SessionTreeLimits {
        let settings = self.engine.settings();
        let (own, default) = (&project.settings.limits, &settings.limits);
        SessionTreeLimits {
            depth: own
                .max_recursion_depth
                .unwrap_or(default.max_recursion_depth),
            sessions: own
                .max_agents_per_session
                .unwrap_or(default.max_agents_per_session),
            cost_usd: own.max_cost_usd.unwrap_or(default.max_cost_usd),
            spawns_per_minute: settings.sessions.spawns_per_minute,
        }
    }
}

fn over_limit(limit: TreeLimit, limits: &SessionTreeLimits) -> EngineError {
    let raise = "an administrator can raise it with `project_update`";
    EngineError::Failed(match limit {
        TreeLimit::Depth => format!(
            "a child here would be deeper than `max_recursion_depth` ({}) allows; do the work \
             yourself, or {raise}",
            limits.depth
        ),
        TreeLimit::Sessions => format!(
            "the tree has had its `max_agents_per_session` ({}) sessions; {raise}",
            limits.sessions
        ),
        TreeLimit::Cost => format!(
            "the tree has reached its `max_cost_usd` ({}); {raise}",
            limits.cost_usd
        ),
        TreeLimit::Rate => format!(
            "the tree has started {} sessions in the last minute, the maximum \
             (`sessions.spawns_per_minute` of the server's configuration); wait a little",
            limits.spawns_per_minute
        ),
    })
}
