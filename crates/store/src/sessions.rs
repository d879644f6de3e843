//! Sessions: what they are, what waits for them, and the one way they move on.

use async_trait::async_trait;
use jiff::Timestamp;
use oubliette_model::{
    AwaitedRequest, AwaitedRequestKind, Event, KeyHash, Level, PermissionDecision, ProjectId,
    Scope, SessionId, Status, TokenId, Usage, WorkspaceId,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{AuditEntry, Declaration, Page, Result, RunMark, Token, Visible};

/// What was chosen when a session was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Choices {
    pub model: Option<String>,
    pub autonomy: Option<Level>,
    pub reasoning: Option<Level>,
    pub tools_allowed: Vec<String>,
    pub tools_disallowed: Vec<String>,
    pub agent_scope: Option<Scope>,
    /// The widest scope that the agent's key may have: that of whoever made the session.
    pub granted: Option<Scope>,
    pub external_id: Option<String>,
    pub source: Option<String>,
    pub change_id: Option<String>,
}

/// What somebody wants of a session that its owner has yet to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The turn is to stop.
    Interrupt,
    /// The session is to end.
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
    pub choices: Choices,
    pub status: Status,
    pub waiting: Option<AwaitedRequest>,
    pub wanted: Option<Wanted>,
    pub error: Option<String>,
    pub usage: Usage,
    pub cost_usd: f64,
    pub turns: u32,
    pub key: Option<KeyHash>,
    /// The agent's own name for the conversation.
    pub agent_session_id: Option<String>,
    /// Where the owner of the session is with its agent; only the owner can read it.
    pub live: Option<String>,
    /// The number of events so far, and the index of the next.
    pub log_end: i64,
    /// Events before this index are gone.
    pub trimmed_before: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

impl Session {
    /// One that has just been made: nothing has happened in it, and it is the first of its tree.
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
            choices: Choices::default(),
            status: Status::Created,
            waiting: None,
            wanted: None,
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
}

/// A message for a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Given by the store.
    pub id: i64,
    pub text: String,
    pub attachments: Vec<Attachment>,
    /// The tools that its sender declares with it; stored apart.
    pub declaration: Option<Declaration>,
    /// The change that the session works on from now on. Taken over when the message is queued, not
    /// kept with it.
    pub change_id: Option<String>,
    pub created_at: Timestamp,
}

/// A file that goes into the workspace before a message goes to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attachment {
    pub name: String,
    pub content_base64: String,
}

/// What a tree of sessions may have in all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TreeLimits {
    pub depth: u32,
    pub sessions: u32,
    pub cost_usd: f64,
    pub spawns_per_minute: u32,
}

/// A session to be made, or found.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSession {
    pub session: Session,
    pub message: Option<Message>,
    /// Instead, the message goes to the newest session of the workspace that has this agent and
    /// no parent, if there is one.
    pub join: bool,
    /// The call of the parent that makes it: what was made by it before is found instead.
    pub call: Option<Uuid>,
    /// The run of a schedule that it is for.
    pub run: Option<RunMark>,
    /// Hold for children.
    pub limits: TreeLimits,
}

/// Which limit of a tree a new session would break.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    Depth,
    Sessions,
    Cost,
    Rate,
}

/// What became of a session to be made.
#[derive(Debug, Clone, PartialEq)]
pub enum Spawned {
    New(Box<Session>),
    /// The message went to one that is there. `resumed` if that had ended.
    Joined {
        session: Box<Session>,
        resumed: bool,
    },
    OverLimit(Limit),
    /// The project or the parent is gone, or the parent has ended.
    Gone,
}

/// A decision that somebody has to take.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub request_id: String,
    pub kind: AwaitedRequestKind,
    /// What the owner needs to carry it out; only the owner can read it.
    pub detail: String,
    pub deadline: Timestamp,
    pub verdict: Option<PermissionDecision>,
    /// What came with the verdict, as JSON.
    pub answer: Option<String>,
}

/// What became of an attempt to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    Done,
    /// Somebody was faster, or the time is over.
    Late,
    NoSuchRequest,
}

/// One step of a session: everything in it is committed together or not at all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    pub at: Timestamp,
    pub events: Vec<Event>,
    /// Events for the log of the parent, if there is one.
    pub to_parent: Vec<Event>,
    pub status: Option<Status>,
    pub waiting: Option<Option<AwaitedRequest>>,
    pub error: Option<Option<String>>,
    /// The totals of the session.
    pub usage: Option<(Usage, f64)>,
    pub agent_session_id: Option<Option<String>>,
    pub key: Option<KeyHash>,
    /// The token that its agent is started with.
    pub token: Option<(Token, KeyHash)>,
    /// Without an agent, its key and its token end, too.
    pub live: Option<Option<String>>,
    /// Bytes for the agent, each at its place.
    pub input: Vec<(u64, Vec<u8>)>,
    /// The agent has everything before this place.
    pub input_taken: Option<u64>,
    /// The message that a turn took.
    pub message_done: Option<i64>,
    /// Nobody wants the messages any more that wait.
    pub messages_dropped: bool,
    pub turn_begun: bool,
    /// Whatever was wanted has been done.
    pub wanted_done: bool,
    pub decisions: Vec<Decision>,
    pub decisions_done: Vec<String>,
    /// A new limit for what the whole tree may cost.
    pub cost_limit: Option<f64>,
}

/// Where a step led.
#[derive(Debug, Clone, PartialEq)]
pub struct Stepped {
    pub log_end: i64,
    pub root_id: SessionId,
    pub parent_id: Option<SessionId>,
}

/// What a tree has used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TreeUse {
    /// All it ever had, removed ones included.
    pub sessions: u32,
    pub cost_usd: f64,
    /// What a decision raised the limit of cost to.
    pub cost_limit: Option<f64>,
    pub spawned_last_minute: u32,
}

/// Which sessions a list shows; absent means any.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionFilter {
    pub workspace_id: Option<WorkspaceId>,
    pub status: Option<Status>,
    /// Only those that have not ended, or only those that have.
    pub active: Option<bool>,
    pub parent_id: Option<SessionId>,
    pub external_id: Option<String>,
    pub change_id: Option<String>,
    pub agent: Option<String>,
}

#[async_trait]
pub trait Sessions {
    /// Makes a session with its first event, or finds the one its message is for.
    async fn spawn_session(&self, new: &NewSession, audit: Option<AuditEntry>) -> Result<Spawned>;

    /// Queues a message for a session, which goes on if it had ended; none if there is no such
    /// session. The session is as it is afterwards.
    async fn queue_message(
        &self,
        id: SessionId,
        message: &Message,
        audit: Option<AuditEntry>,
    ) -> Result<Option<(Session, bool)>>;

    async fn session(&self, id: SessionId) -> Result<Option<Session>>;

    /// Sessions, newest first, after the cursor of the page before.
    async fn sessions(
        &self,
        visible: Visible,
        filter: &SessionFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<Session>>;

    /// A session and everything below it, parents first.
    async fn tree(&self, id: SessionId) -> Result<Vec<Session>>;

    async fn tree_use(&self, root: SessionId, now: Timestamp) -> Result<TreeUse>;

    /// Sessions that need an owner: they have an agent, or something to do.
    async fn unsettled_sessions(&self) -> Result<Vec<SessionId>>;

    /// Takes a step; none if the session is gone.
    async fn step(&self, id: SessionId, step: Step) -> Result<Option<Stepped>>;

    /// Notes what is wanted of sessions; `End` is stronger than `Interrupt`.
    async fn want(
        &self,
        ids: &[SessionId],
        wanted: Wanted,
        audit: Option<AuditEntry>,
    ) -> Result<()>;

    async fn next_message(&self, id: SessionId) -> Result<Option<Message>>;

    async fn queued_messages(&self, id: SessionId) -> Result<u32>;

    /// What the agent may not have yet, in order.
    async fn agent_input(&self, id: SessionId) -> Result<Vec<(u64, Vec<u8>)>>;

    async fn decisions(&self, id: SessionId) -> Result<Vec<Decision>>;

    /// Decides, if nobody has yet and the deadline is not over.
    async fn decide(
        &self,
        id: SessionId,
        request_id: &str,
        verdict: PermissionDecision,
        answer: Option<String>,
        now: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Decided>;

    /// Deletes sessions that ended before `before` and have no child that has not; which.
    async fn remove_ended(
        &self,
        visible: Visible,
        before: Timestamp,
        audit: Option<AuditEntry>,
    ) -> Result<Vec<SessionId>>;
}
