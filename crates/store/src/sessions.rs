//! Storage of sessions, their queued messages and pending decisions. [`SessionStore::commit_step`] changes
//! the state of a session in one transaction.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{
    AwaitedRequest, AwaitedRequestKind, Event, HostPattern, KeyHash, Level, PermissionDecision,
    ProjectId, Scope, SessionId, Status, TokenId, Usage, WorkspaceId, may_direct, narrow,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    AuditEntry, CheckpointStep, Page, Result, RunBinding, Token, ToolDeclaration, VisibleProjects,
};

/// How much the messages that wait in the sessions of a project may take.
pub const MAX_QUEUED_BYTES: u64 = 64 << 20;

/// The options chosen when a session was created.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionChoices {
    pub model: Option<String>,
    /// The model that the agent really uses, as far as it says.
    pub used_model: Option<String>,
    /// The models of the sessions of its tree that choose none, by the name of their agent.
    pub models: BTreeMap<String, String>,
    pub autonomy: Option<Level>,
    pub reasoning: Option<Level>,
    pub tools_allowed: Vec<String>,
    pub tools_disallowed: Vec<String>,
    pub agent_scope: Option<Scope>,
    /// The widest scope that the agent's key may have: the scope of the creator of the session,
    /// narrowed to the scope of everyone who sent it a message.
    pub granted: Option<Scope>,
    pub external_id: Option<String>,
    pub source: Option<String>,
    pub change_id: Option<String>,
    /// Whether an agent that starts anew gets the transcript of the session: its own conversation would be
    /// another one, because the session was set back, or is a fork.
    pub starts_from_transcript: bool,
    /// Hosts that its container may reach while the session lives, because a caller was asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network_allowed: Vec<HostPattern>,
}

/// A request to stop, which the actor of the session has not handled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopRequest {
    /// Stop the current turn.
    Interrupt,
    /// End the session.
    End,
}

/// A session as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    pub id: SessionId,
    pub project_id: ProjectId,
    pub workspace_id: WorkspaceId,
    pub parent_id: Option<SessionId>,
    pub root_id: SessionId,
    pub depth: u32,
    pub owner_id: Option<TokenId>,
    pub agent: String,
    pub choices: SessionChoices,
    pub status: Status,
    pub waiting: Option<AwaitedRequest>,
    pub stop_request: Option<StopRequest>,
    pub error: Option<String>,
    pub usage: Usage,
    pub cost_usd: f64,
    pub turns: u32,
    pub key: Option<KeyHash>,
    /// The agent's own id for the conversation.
    pub agent_session_id: Option<String>,
    /// The state of the session's actor while an agent runs; opaque to the store.
    pub live: Option<String>,
    /// The number of events appended so far, which is the index of the next one.
    pub log_end: i64,
    /// Events before this index are deleted.
    pub trimmed_before: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

impl Session {
    /// Returns a new session that is the root of its tree.
    pub fn new(
        id: SessionId,
        project_id: ProjectId,
        workspace_id: WorkspaceId,
        agent: impl Into<String>,
        at: Timestamp,
    ) -> Self {
        Self {
            id,
            project_id,
            workspace_id,
            parent_id: None,
            root_id: id,
            depth: 0,
            owner_id: None,
            agent: agent.into(),
            choices: SessionChoices::default(),
            status: Status::Created,
            waiting: None,
            stop_request: None,
            error: None,
            usage: Usage::default(),
            cost_usd: 0.0,
            turns: 0,
            key: None,
            agent_session_id: None,
            live: None,
            log_end: 0,
            trimmed_before: 0,
            created_at: at,
            updated_at: at,
            ended_at: None,
        }
    }

    /// The model that it was told to use: its own, that of its tree for its agent, or the default for
    /// its agent.
    pub fn chosen_model<'a>(
        &'a self,
        defaults: &'a BTreeMap<String, String>,
    ) -> Option<&'a String> {
        let choices = &self.choices;
        let of_tree = choices.models.get(&self.agent);
        let own = choices.model.as_ref().or(of_tree);
        own.or_else(|| defaults.get(&self.agent))
    }

    /// Its cost in US dollars; none if the cost of a turn is unknown.
    pub fn total_cost_usd(&self) -> Option<f64> {
        (self.usage.unpriced_turns == 0).then_some(self.cost_usd)
    }
}

/// A message for a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionMessage {
    /// Assigned by the store.
    pub id: i64,
    pub text: String,
    pub attachments: Vec<Attachment>,
    /// The tools that the sender declares; stored with the session, not with the message.
    pub declaration: Option<ToolDeclaration>,
    /// The OpenSpec change that the session works on from now on; stored with the session when the
    /// message is queued.
    pub change_id: Option<String>,
    /// The scope of the sender, to which the grant of the session is narrowed when the message is
    /// queued. None if the sender is an agent without a key, whose session has no child with one.
    pub sender_scope: Option<Scope>,
    /// With this id [`crate::CallStore::called_turn`] finds the turn of the message, as a call of the
    /// session to itself.
    pub wait_id: Option<Uuid>,
    pub created_at: Timestamp,
}

/// A file that is written to the workspace before the message is sent to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attachment {
    pub name: String,
    pub content_base64: String,
}

/// Limits for a whole tree of sessions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SessionTreeLimits {
    pub depth: u32,
    pub sessions: u32,
    pub cost_usd: f64,
    pub spawns_per_minute: u32,
}

/// The parameters of [`SessionStore::spawn_session`].
#[derive(Debug, Clone, PartialEq)]
pub struct NewSession {
    pub session: Session,
    pub message: Option<SessionMessage>,
    /// Send the message to the newest session of the workspace without a parent that has these
    /// settings, if there is one, instead of creating a session.
    pub join: Option<JoinFilter>,
    /// The id of the call of the parent. If the call created a session before, that one is returned.
    pub call: Option<Uuid>,
    /// The schedule run that the session is created for.
    pub run: Option<RunBinding>,
    /// Events for the log of a new session, after the first one.
    pub events: Vec<Event>,
    /// Checked only for sessions with a parent.
    pub limits: SessionTreeLimits,
}

/// Settings that hold for a whole session, as a message asks for them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestedSettings {
    pub agent: Option<String>,
    pub given: SessionChoices,
    /// The settings of sessions that have none of their own; their models are by agent.
    pub defaults: SessionChoices,
}

impl RequestedSettings {
    /// The first given parameter that a session does not have.
    pub fn differing_parameter(&self, session: &Session) -> Option<&'static str> {
        fn differs<T: PartialEq>(given: &Option<T>, own: &Option<T>, default: &Option<T>) -> bool {
            given.is_some() && given.as_ref() != own.as_ref().or(default.as_ref())
        }
        let (given, own, default) = (&self.given, &session.choices, &self.defaults);
        let model = session.chosen_model(&default.models);
        let is_other_model = given.model.is_some() && given.model.as_ref() != model;
        let are_other_models = !given.models.is_empty() && given.models != own.models;
        let is_other_agent = self.agent.as_ref().is_some_and(|it| *it != session.agent);
        [
            ("agent", is_other_agent),
            ("model", is_other_model),
            ("models", are_other_models),
            (
                "autonomy",
                differs(&given.autonomy, &own.autonomy, &default.autonomy),
            ),
            (
                "reasoning",
                differs(&given.reasoning, &own.reasoning, &default.reasoning),
            ),
            (
                "agent_scope",
                differs(&given.agent_scope, &own.agent_scope, &default.agent_scope),
            ),
            (
                "external_id",
                differs(&given.external_id, &own.external_id, &None),
            ),
            ("source", differs(&given.source, &own.source, &None)),
        ]
        .into_iter()
        .find_map(|(name, differs)| differs.then_some(name))
    }
}

/// Which session a message can go to instead of to a new one.
#[derive(Debug, Clone, PartialEq)]
pub struct JoinFilter {
    pub settings: RequestedSettings,
    /// The scope of the sender.
    pub sender: Scope,
}

impl JoinFilter {
    /// Whether a session has the settings, and an agent that the sender may direct.
    pub fn matches(&self, session: &Session) -> bool {
        let choices = &session.choices;
        let default = self.settings.defaults.agent_scope;
        let wanted = choices.agent_scope.or(default);
        let key = wanted.and_then(|wanted| narrow(wanted, [choices.granted]));
        self.settings.differing_parameter(session).is_none() && may_direct(self.sender, key)
    }
}

/// The limit of a tree that a new session would exceed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TreeLimit {
    Depth,
    Sessions,
    Cost,
    Rate,
}

/// The outcome of [`SessionStore::spawn_session`].
#[derive(Debug, Clone, PartialEq)]
pub enum SpawnOutcome {
    New(Box<Session>),
    /// An existing session got the message. `resumed` is true if that session had ended.
    Joined {
        session: Box<Session>,
        resumed: bool,
    },
    OverLimit(TreeLimit),
    /// The project, workspace, run or parent does not exist, or the parent has ended.
    Gone,
}

/// A decision that a session waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingDecision {
    pub request_id: String,
    pub kind: AwaitedRequestKind,
    /// What the session's actor needs to apply the decision; opaque to the store.
    pub detail: String,
    pub deadline: Timestamp,
    /// `None` until the decision is made.
    pub verdict: Option<PermissionDecision>,
    /// The answer that was given with the verdict, as JSON.
    pub answer: Option<String>,
}

/// The outcome of [`SessionStore::record_decision`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionOutcome {
    Done,
    /// The request was already decided, or its deadline has passed.
    Late,
    NoSuchRequest,
}

/// Changes of a session that are committed in one transaction. `None`, `false` and empty lists change
/// nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionStep {
    pub at: Timestamp,
    pub events: Vec<Event>,
    /// Events for the log of the parent session, if there is one.
    pub parent_events: Vec<Event>,
    pub status: Option<Status>,
    pub waiting: Option<Option<AwaitedRequest>>,
    pub error: Option<Option<String>>,
    /// The total usage and cost of the session in US dollars.
    pub usage: Option<(Usage, f64)>,
    pub agent_session_id: Option<Option<String>>,
    /// The model that the agent uses.
    pub used_model: Option<String>,
    /// The hosts that its container may reach while the session lives.
    pub network_allowed: Option<Vec<HostPattern>>,
    pub key: Option<KeyHash>,
    /// The token that the agent is started with.
    pub token: Option<(Token, KeyHash)>,
    /// `Some(None)` also deletes the key, the token and the pending input of the agent.
    pub live: Option<Option<String>>,
    /// Bytes for the agent, each with its offset in the input stream.
    pub input: Vec<(u64, Vec<u8>)>,
    /// The agent has received all input before this offset.
    pub input_acknowledged: Option<u64>,
    /// The queued message that a turn has taken.
    pub taken_message: Option<i64>,
    /// Delete all queued messages.
    pub drop_messages: bool,
    pub turn_started: bool,
    /// This stop request has been handled. A later one, `End` after `Interrupt`, is kept.
    pub handled_stop_request: Option<StopRequest>,
    pub decisions: Vec<PendingDecision>,
    /// The request ids of decisions to delete.
    pub removed_decisions: Vec<String>,
    /// A new cost limit for the whole tree, in US dollars.
    pub cost_limit: Option<f64>,
    pub checkpoint: Option<CheckpointStep>,
    /// Forget the agent's own conversation: the agent starts from the transcript next time.
    pub forget_conversation: bool,
}

/// The session after a step was committed.
#[derive(Debug, Clone, PartialEq)]
pub struct CommittedStep {
    pub log_end: i64,
    pub root_id: SessionId,
    pub parent_id: Option<SessionId>,
}

/// What a tree of sessions has used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TreeUsage {
    /// All sessions of the tree, including removed ones.
    pub sessions: u32,
    /// The part of the cost that is known.
    pub cost_usd: f64,
    pub unpriced_turns: u32,
    /// The cost limit that a decision set, if any.
    pub cost_limit: Option<f64>,
    pub spawned_last_minute: u32,
}

impl TreeUsage {
    /// None if the cost of a turn is unknown.
    pub fn total_cost_usd(&self) -> Option<f64> {
        (self.unpriced_turns == 0).then_some(self.cost_usd)
    }
}

/// Filters for a list of sessions; `None` matches every session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionFilter {
    pub workspace_id: Option<WorkspaceId>,
    pub status: Option<Status>,
    /// True for sessions that have not ended, false for sessions that have.
    pub active: Option<bool>,
    pub parent_id: Option<SessionId>,
    pub external_id: Option<String>,
    pub change_id: Option<String>,
    pub agent: Option<String>,
}

/// What there is, for metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredCounts {
    /// Sessions by status; a status without sessions is missing.
    pub sessions: Vec<(Status, u64)>,
    /// What all sessions have cost, as far as it is known.
    pub cost_usd: f64,
    /// Calls of callers' tools that wait for a response.
    pub pending_caller_requests: u64,
    pub enabled_schedules: u64,
}

#[async_trait]
pub trait SessionStore {
    /// Creates a session with its first event and message, or queues the message for an existing one.
    async fn spawn_session(
        &self,
        new: &NewSession,
        audit: Option<AuditEntry>,
    ) -> Result<SpawnOutcome>;

    /// Queues a message for a session and resumes the session if it had ended. Returns the changed
    /// session and whether it was resumed, or `None` if there is no such session.
    async fn queue_message(
        &self,
        id: SessionId,
        message: &SessionMessage,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>>;

    async fn session(&self, id: SessionId) -> Result<Option<Session>>;

    async fn stored_counts(&self) -> Result<StoredCounts>;

    /// Returns the newest sessions whose ids begin with `prefix`: of one project, or of all.
    async fn sessions_with_prefix(
        &self,
        project: Option<ProjectId>,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<Session>>;

    /// Lists sessions, newest first. `after` is the cursor of the previous page.
    async fn sessions(
        &self,
        visible: VisibleProjects,
        filter: &SessionFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Session>>;

    /// Returns the first `max_chars` characters of the first prompt of each session. Sessions whose log has no
    /// prompt are left out.
    async fn first_prompts(
        &self,
        ids: &[SessionId],
        max_chars: u32,
    ) -> Result<HashMap<SessionId, String>>;

    /// Returns a session and its descendants, parents first.
    async fn session_tree(&self, id: SessionId) -> Result<Vec<Session>>;

    async fn tree_usage(&self, root: SessionId, now: Timestamp) -> Result<TreeUsage>;

    /// Returns the sessions that need an actor: they have an agent, a stop request, a queued message
    /// or an unfinished turn.
    async fn unfinished_sessions(&self) -> Result<Vec<SessionId>>;

    /// Commits a step. `None` if there is no such session.
    async fn commit_step(&self, id: SessionId, step: SessionStep) -> Result<Option<CommittedStep>>;

    /// Records a stop request for sessions. `End` replaces `Interrupt`, but not the other way round.
    async fn request_stop(
        &self,
        ids: &[SessionId],
        request: StopRequest,
        audit: Option<AuditEntry>,
    ) -> Result<()>;

    /// Requests to interrupt every turn of a tree, except that of one session. Returns the sessions
    /// that have the request now. Those in no turn, for example waiting for a higher cost limit, do not
    /// get it.
    async fn interrupt_turns(
        &self,
        root: SessionId,
        except: SessionId,
    ) -> Result<Vec<(SessionId, ProjectId)>>;

    async fn next_message(&self, id: SessionId) -> Result<Option<SessionMessage>>;

    async fn queued_messages(&self, id: SessionId) -> Result<u32>;

    /// Returns the input that the agent has not acknowledged, by offset.
    async fn agent_input(&self, id: SessionId) -> Result<Vec<(u64, Vec<u8>)>>;

    async fn decisions(&self, id: SessionId) -> Result<Vec<PendingDecision>>;

    /// Records a decision if the request is undecided and its deadline has not passed.
    async fn record_decision(
        &self,
        id: SessionId,
        request_id: &str,
        verdict: PermissionDecision,
        answer: Option<String>,
        now: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<DecisionOutcome>;

    /// What the store has because of each project, in bytes: logs, waiting messages, tools of callers and
    /// requests to them, results of commands, outcomes of agents' calls, and prompts of schedules.
    async fn stored_bytes(&self) -> Result<HashMap<ProjectId, u64>>;

    /// Deletes sessions that ended before `before` and have no remaining children. Returns their ids.
    async fn remove_ended_sessions(
        &self,
        visible: VisibleProjects,
        before: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Vec<SessionId>>;
}
