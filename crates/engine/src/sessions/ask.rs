//! What a message to an agent is made of: the same for `session_spawn` and `session_message`.

use std::path::{Component, Path};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oubliette_model::{Level, ProjectId, Scope, SessionId, Status, TokenId, WorkspaceId, quoted};
use oubliette_store::{
    Attachment, Choices, Limit, Message, NewSession, Project, Session, Spawned, TreeLimits,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::view::PendingRequest;
use crate::callers::declare::Context;
use crate::workspaces::Choice;
use crate::{Actor, Call, Engine, EngineError, Result, agents};

const LONGEST_PROMPT: usize = 1 << 20;
const MOST_ATTACHMENTS: usize = 100;
/// Of the short texts by which callers find things again. A change's directory has a longer name at
/// most.
pub(super) const LONGEST_NAME: usize = 255;

/// What both operations take.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Ask {
    /// What the agent is to do.
    pub(super) prompt: Option<String>,
    /// The same as `prompt`.
    message: Option<String>,
    /// The workspace to work in; the default one if absent.
    workspace_id: Option<WorkspaceId>,
    /// Whether a workspace that does not exist is made; without `workspace_id`, a new one.
    create_workspace: Option<bool>,
    /// Whether a new session is made although the workspace has one.
    new_session: Option<bool>,
    /// A name of the caller's own for the session, to find it by.
    external_id: Option<String>,
    /// Where the request comes from, for the caller's own use.
    source: Option<String>,
    /// The agent; the project's if absent. `project_options` lists them.
    agent: Option<String>,
    /// The model the agent uses; the project's if absent.
    model: Option<String>,
    /// What the agent may do without asking; the project's if absent.
    autonomy: Option<Level>,
    /// The same as `autonomy`.
    autonomy_level: Option<Level>,
    /// How hard the agent thinks; the project's if absent.
    reasoning: Option<Level>,
    /// The same as `reasoning`.
    reasoning_level: Option<Level>,
    /// Tools that the agent of a new session may use, and no others, as it names them; `*` stands
    /// for any part of a name. Not every agent can be kept to that: `project_options` says which.
    pub(super) tools_allowed: Option<Vec<String>>,
    /// Tools that the agent of a new session may not use.
    pub(super) tools_disallowed: Option<Vec<String>>,
    /// The scope of the key that the agent gets to call Oubliette itself; no wider than your own.
    agent_scope: Option<Scope>,
    /// The OpenSpec change that the session works on, as `project_changes` names it.
    change_id: Option<String>,
    /// Files that are written into the workspace first.
    attachments: Option<Vec<File>>,
    /// What you say about yourself: tools of yours that the agent may call, for one.
    context: Option<Context>,
}

/// A file that comes with a message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct File {
    /// Its path in the workspace.
    name: String,
    /// Its content, as text.
    text: Option<String>,
    /// Or as base64.
    content_base64: Option<String>,
}

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
            .and_then(|(wanted, granted)| wanted.narrowed_to(granted)))
    }
}

/// What an agent is to do must say something, and not too much.
pub(crate) fn check_prompt(text: &str) -> Result<()> {
    if text.trim().is_empty() {
        return Err(EngineError::invalid(
            "`prompt` is empty; say what the agent is to do",
        ));
    }
    if text.len() > LONGEST_PROMPT {
        return Err(EngineError::invalid(format!(
            "`prompt` has {} bytes; at most {LONGEST_PROMPT} are taken. Put what is longer into a \
             file of the workspace",
            text.len()
        )));
    }
    Ok(())
}

impl Ask {
    /// The message, checked, with the tools that it declares and what there is to say about those.
    async fn to_declaring(
        &self,
        engine: &Engine,
        by: Option<TokenId>,
    ) -> Result<(Message, Vec<String>)> {
        let message = self.to_message(engine)?;
        let Some(context) = &self.context else {
            return Ok((message, Vec::new()));
        };
        let Some(by) = by else {
            return Err(no_context());
        };
        // Hundreds of schemas take their time.
        let (context, most) = (context.clone(), engine.settings().caller_tools.max_tools);
        let declared = move || context.declaration(most as usize, by);
        let declared = tokio::task::spawn_blocking(declared).await;
        Ok(match declared.map_err(EngineError::fault)?? {
            Some((declaration, warnings)) => {
                let declaration = Some(declaration);
                let message = Message {
                    declaration,
                    ..message
                };
                (message, warnings)
            }
            None => (message, Vec::new()),
        })
    }

    /// The message, checked.
    pub(super) fn to_message(&self, engine: &Engine) -> Result<Message> {
        let text = match (&self.prompt, &self.message) {
            (Some(_), Some(_)) => {
                return Err(EngineError::invalid(
                    "`prompt` and `message` are the same parameter; give one of them",
                ));
            }
            (Some(text), None) | (None, Some(text)) => text,
            (None, None) => {
                return Err(EngineError::invalid(
                    "missing parameter `prompt`: what the agent is to do",
                ));
            }
        };
        check_prompt(text)?;
        if self.change_id.as_ref().is_some_and(String::is_empty) {
            return Err(EngineError::invalid(
                "`change_id` is empty; leave it out, or name a change as `project_changes` does",
            ));
        }
        check_length("change_id", self.change_id.as_ref())?;
        let files = self.attachments.as_deref().unwrap_or_default();
        if files.len() > MOST_ATTACHMENTS {
            return Err(EngineError::invalid(format!(
                "`attachments` has {} files; at most {MOST_ATTACHMENTS} are taken",
                files.len()
            )));
        }
        Ok(Message {
            id: 0,
            text: text.clone(),
            attachments: files.iter().map(File::check).collect::<Result<_>>()?,
            declaration: None,
            change_id: self.change_id.clone(),
            created_at: engine.now(),
        })
    }

    /// What agents ask of sessions below their own has none.
    pub(super) fn no_context(&self) -> Result<()> {
        match self.context {
            Some(_) => Err(no_context()),
            None => Ok(()),
        }
    }

    /// Gives a workspace that is to be made a name, if it has none.
    pub(super) fn name_workspace(&mut self, name: Uuid) {
        if self.workspace_id.is_none() && self.create_workspace == Some(true) {
            self.workspace_id = Some(WorkspaceId::from_uuid(name));
        }
    }

    /// What was chosen, checked against what the agent can do.
    fn choices(&self, engine: &Engine, origin: &Origin, agent: &str) -> Result<Choices> {
        let row = agents::find(engine.settings(), agent)?;
        let tools = self.tools_below(origin.parent.as_ref(), agent)?;
        if let Some(objection) = row.keeper.objection(&tools) {
            return Err(EngineError::invalid(format!(
                "the agent `{agent}` {objection}; leave out `tools_allowed` and `tools_disallowed`, \
                 or change them"
            )));
        }
        if self.model.is_some() && !row.takes_model {
            return Err(EngineError::invalid(format!(
                "the agent `{agent}` has no models to choose from; leave out `model`"
            )));
        }
        let reasoning = self.reasoning.or(self.reasoning_level);
        if reasoning.is_some() && !row.takes_reasoning {
            return Err(EngineError::invalid(format!(
                "the agent `{agent}` has no setting for `reasoning`; leave it out"
            )));
        }
        if let Some(wanted) = self.agent_scope
            && !origin.grant.is_some_and(|grant| grant.covers(wanted))
        {
            return Err(match (origin.grant, &origin.parent) {
                (Some(grant), None) => EngineError::invalid(format!(
                    "`agent_scope` `{wanted}` is wider than your own scope `{grant}`"
                )),
                _ => EngineError::Refused {
                    parameter: Some("agent_scope"),
                },
            });
        }
        check_length("model", self.model.as_ref())?;
        check_length("external_id", self.external_id.as_ref())?;
        check_length("source", self.source.as_ref())?;
        Ok(Choices {
            model: self.model.clone(),
            autonomy: self.autonomy.or(self.autonomy_level),
            reasoning,
            tools_allowed: tools.allowed,
            tools_disallowed: tools.disallowed,
            // A child is like its parent, unless somebody says otherwise.
            agent_scope: self.agent_scope.or_else(|| {
                let parent = origin.parent.as_ref();
                parent.and_then(|parent| parent.choices.agent_scope)
            }),
            granted: origin.grant,
            external_id: self.external_id.clone(),
            source: self.source.clone(),
            change_id: self.change_id.clone(),
        })
    }
}

fn check_length(name: &str, text: Option<&String>) -> Result<()> {
    match text {
        Some(text) if text.len() > LONGEST_NAME => Err(EngineError::invalid(format!(
            "`{name}` is longer than {LONGEST_NAME} bytes"
        ))),
        _ => Ok(()),
    }
}

impl File {
    fn check(&self) -> Result<Attachment> {
        let name = &self.name;
        let inside = !name.is_empty()
            && name.len() <= 1000
            && !name.contains(['\0', '\n'])
            && Path::new(name)
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
            && !name.ends_with('/');
        if !inside {
            return Err(EngineError::invalid(format!(
                "`attachments`: {} must be the path of a file inside the workspace, relative to \
                 it, without `..`",
                quoted(name)
            )));
        }
        let content_base64 = match (&self.text, &self.content_base64) {
            (Some(text), None) => STANDARD.encode(text),
            (None, Some(encoded)) if STANDARD.decode(encoded).is_ok() => encoded.clone(),
            (None, Some(_)) => {
                return Err(EngineError::invalid(format!(
                    "`attachments`: `content_base64` of {} is not base64",
                    quoted(name)
                )));
            }
            _ => {
                return Err(EngineError::invalid(format!(
                    "`attachments`: {} needs exactly one of `text` and `content_base64`",
                    quoted(name)
                )));
            }
        };
        Ok(Attachment {
            name: name.clone(),
            content_base64,
        })
    }
}

impl Engine {
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
            (None, None | Some(false), Some(parent)) => Choice {
                workspace_id: Some(parent.workspace_id.clone()),
                create_workspace: false,
            },
            (id, create, _) => Choice {
                workspace_id: id.clone(),
                create_workspace: create.unwrap_or(false),
            },
        };
        let workspace = self.choose_workspace(project.id, &workspace, call).await?;
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
        Ok(Delivered {
            pending_caller_requests: self.pending_requests(&session).await?,
            warnings,
            session_id: session.id,
            project_id: session.project_id,
            spawned,
            resumed,
            workspace_id: session.workspace_id,
            workspace_created: workspace.created,
            status: session.status,
            last_event_index: session.log_end - 1,
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

fn no_context() -> EngineError {
    EngineError::invalid("`context` is for callers from outside; leave it out")
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
