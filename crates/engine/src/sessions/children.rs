//! What an agent does through its own session: it starts child sessions, follows them and ends them.
//!
//! Being attached to a session permits access to the sessions below it, and to no others.

mod message;

use std::future::Future;
use std::sync::LazyLock;
use std::time::Instant;

use oubliette_model::{Level, Mode, SessionId, autonomy_below, is_below};
use oubliette_store::{AuditEntry, AuditOutcome, Project, Session};
use oubliette_wire::relay_methods;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Sessions, events};
use crate::operations::{FinishedCall, catch_panic, id_lookup, parameters, schema};
use crate::{Call, EngineError, Result};

type Schema = LazyLock<Map<String, Value>>;

static MESSAGE_SCHEMA: Schema = LazyLock::new(schema::parameters_schema::<message::Params>);
static EVENTS_SCHEMA: Schema = LazyLock::new(schema::parameters_schema::<events::Params>);
static END_SCHEMA: Schema = LazyLock::new(schema::parameters_schema::<EndParams>);
static LIMITS_SCHEMA: Schema = LazyLock::new(schema::parameters_schema::<LimitsParams>);

#[derive(Debug, Deserialize, JsonSchema)]
struct EndParams {
    /// A session that you started, or one below it.
    session_id: SessionId,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct LimitsParams {
    /// A session that you started, or one below it; your own if absent.
    session_id: Option<SessionId>,
}

/// A tool that every agent with a session has. The agent's client describes them to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentTool {
    Message,
    Events,
    End,
    Limits,
}

impl AgentTool {
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Message, Self::Events, Self::End, Self::Limits]
            .into_iter()
            .find(|tool| tool.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Message => relay_methods::SESSION_MESSAGE,
            Self::Events => relay_methods::SESSION_EVENTS,
            Self::End => relay_methods::SESSION_END,
            Self::Limits => relay_methods::CONFIG_LIMITS,
        }
    }

    fn mode(self) -> Mode {
        match self {
            Self::Message | Self::End => Mode::Write,
            Self::Events | Self::Limits => Mode::Read,
        }
    }

    /// The schema of its parameters.
    pub fn parameters(self) -> &'static Map<String, Value> {
        match self {
            Self::Message => &MESSAGE_SCHEMA,
            Self::Events => &EVENTS_SCHEMA,
            Self::End => &END_SCHEMA,
            Self::Limits => &LIMITS_SCHEMA,
        }
    }

    fn parse<T: DeserializeOwned>(self, arguments: Map<String, Value>) -> Result<T> {
        parameters::parse(None, self.parameters(), arguments)
    }
}

impl Sessions<'_> {
    /// The autonomy of a child: at most that of its parent, so that an agent cannot permit itself what it
    /// has to ask for.
    pub(crate) async fn child_autonomy(
        self,
        parent: &Session,
        project: &Project,
        requested: Option<Level>,
    ) -> Result<Level> {
        let default = project.settings.autonomy.unwrap_or(Level::High);
        let of_parent = match parent.choices.autonomy {
            Some(level) => level,
            None if parent.project_id == project.id => default,
            None => {
                let parent_project = self.engine.store().project(parent.project_id).await?;
                let level = parent_project.and_then(|project| project.settings.autonomy);
                level.unwrap_or(Level::High)
            }
        };
        Ok(autonomy_below(of_parent, requested.unwrap_or(default)))
    }

    /// Runs a tool that the agent of a session calls. `address` is for the audit log.
    pub async fn call_from_agent(
        self,
        session: &Session,
        address: String,
        tool: AgentTool,
        arguments: Map<String, Value>,
        call: Call,
    ) -> Result<Value> {
        let entry = AuditEntry {
            at: self.engine.now(),
            token_id: session.owner_id,
            operation: tool.name().to_owned(),
            project_id: Some(session.project_id),
            outcome: AuditOutcome::Ok,
            address: Some(address),
        };
        let started = Instant::now();
        call.set_audit_entry(entry.clone());
        let result = catch_panic(self.run_agent_tool(session, tool, arguments, &call)).await;
        let called = FinishedCall {
            operation: tool.name(),
            mode: tool.mode(),
            entry,
            started,
        };
        self.engine.record_call(called, &result, &call).await;
        result
    }

    async fn run_agent_tool(
        self,
        session: &Session,
        tool: AgentTool,
        mut arguments: Map<String, Value>,
        call: &Call,
    ) -> Result<Value> {
        self.resolve_descendant(session, &mut arguments).await?;
        match tool {
            AgentTool::Message => {
                let params = tool.parse(arguments)?;
                to_json(self.message_child(session, params, call)).await
            }
            AgentTool::Events => {
                let params: events::Params = tool.parse(arguments)?;
                self.descendant(session, params.session_id).await?;
                tokio::select! {
                    page = to_json(self.read_events(&params)) => page,
                    () = call.cancelled() => Err(EngineError::Cancelled),
                }
            }
            AgentTool::End => {
                let EndParams { session_id } = tool.parse(arguments)?;
                self.descendant(session, session_id).await?;
                Box::pin(to_json(self.end_tree(session_id, call))).await
            }
            AgentTool::Limits => {
                let LimitsParams { session_id } = tool.parse(arguments)?;
                let target = match session_id.filter(|id| *id != session.id) {
                    Some(id) => self.descendant(session, id).await?,
                    None => session.clone(),
                };
                to_json(self.engine.limits_of_session(&target)).await
            }
        }
    }

    /// Replaces the beginning of an id of a session below another one by the id.
    async fn resolve_descendant(
        self,
        session: &Session,
        arguments: &mut Map<String, Value>,
    ) -> Result<()> {
        let Some(text) = arguments.get("session_id").and_then(Value::as_str) else {
            return Ok(());
        };
        if text.parse::<SessionId>().is_ok() {
            return Ok(());
        }
        let tree = self.engine.store().session_tree(session.id).await?;
        let below = tree.iter().filter(|below| below.id != session.id);
        if let Some(id) = id_lookup::pick_session(below, text)? {
            arguments.insert("session_id".to_owned(), Value::from(id));
        }
        Ok(())
    }

    /// A session below another one. Any other session gives the same error as one that does not exist.
    async fn descendant(self, ancestor: &Session, id: SessionId) -> Result<Session> {
        let not_found = || EngineError::NotFound {
            what: "session",
            id: id.to_string(),
            hint: "only sessions that you started, and those below them, can be used",
        };
        let store = self.engine.store();
        let found = store.session(id).await?.ok_or_else(not_found)?;
        let ancestors = self.ancestors(&found, ancestor.depth).await?;
        if is_below(ancestor.id, &ancestors) {
            Ok(found)
        } else {
            Err(not_found())
        }
    }
}

async fn to_json<T: Serialize>(running: impl Future<Output = Result<T>>) -> Result<Value> {
    serde_json::to_value(running.await?).map_err(EngineError::fault)
}
