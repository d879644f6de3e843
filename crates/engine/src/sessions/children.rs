//! What an agent does through its own session: it starts sessions below it, follows and ends them.
//!
//! Speaking for a session is the permission, and it reaches what is below that session, nothing
//! beside or above it.

mod message;

use std::future::Future;
use std::sync::LazyLock;
use std::time::Instant;

use oubliette_model::{Level, Mode, SessionId, autonomy_below, is_below};
use oubliette_store::{AuditEntry, Outcome, Project, Session};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{end, events};
use crate::operations::{FinishedCall, catch_panic, parameters, schema};
use crate::{Call, Engine, EngineError, Result};

type Schema = LazyLock<Map<String, Value>>;

static MESSAGE: Schema = LazyLock::new(schema::parameters_schema::<message::Params>);
static EVENTS: Schema = LazyLock::new(schema::parameters_schema::<events::Params>);
static END: Schema = LazyLock::new(schema::parameters_schema::<Named>);
static LIMITS: Schema = LazyLock::new(schema::parameters_schema::<MaybeNamed>);

/// A session below the one that asks.
#[derive(Debug, Deserialize, JsonSchema)]
struct Named {
    /// A session that you started, or that one of those did.
    session_id: SessionId,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct MaybeNamed {
    /// A session that you started, or that one of those did; your own if absent.
    session_id: Option<SessionId>,
}

/// What a session can be asked for by its own agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Message,
    Events,
    End,
    Limits,
}

impl Verb {
    pub fn named(name: &str) -> Option<Self> {
        [Self::Message, Self::Events, Self::End, Self::Limits]
            .into_iter()
            .find(|verb| verb.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Message => "session_message",
            Self::Events => "session_events",
            Self::End => "session_end",
            Self::Limits => "config_limits",
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
            Self::Message => &MESSAGE,
            Self::Events => &EVENTS,
            Self::End => &END,
            Self::Limits => &LIMITS,
        }
    }
}

impl Engine {
    /// How much a session may do without being asked: no more than the one above it, or an agent would
    /// permit itself what it has to ask for.
    pub(super) async fn level_below(
        &self,
        parent: &Session,
        project: &Project,
        asked: Option<Level>,
    ) -> Result<Level> {
        let usual = project.settings.autonomy.unwrap_or(Level::High);
        let above = match parent.choices.autonomy {
            Some(level) => level,
            None if parent.project_id == project.id => usual,
            None => {
                let above = self.store().get(parent.project_id).await?;
                let level = above.and_then(|above| above.settings.autonomy);
                level.unwrap_or(Level::High)
            }
        };
        Ok(autonomy_below(above, asked.unwrap_or(usual)))
    }

    /// Does what the agent of a session asks for. `address` is for the audit log.
    pub async fn call_as(
        &self,
        session: &Session,
        address: String,
        verb: Verb,
        arguments: Map<String, Value>,
        call: Call,
    ) -> Result<Value> {
        let entry = AuditEntry {
            at: self.now(),
            token_id: session.owner_id,
            operation: verb.name().to_owned(),
            project_id: Some(session.project_id),
            outcome: Outcome::Ok,
            address: Some(address),
        };
        let started = Instant::now();
        call.set_audit_entry(entry.clone());
        let result = catch_panic(self.perform_as(session, verb, arguments, &call)).await;
        let finished = FinishedCall {
            operation: verb.name(),
            mode: verb.mode(),
            entry,
            started,
        };
        self.record_call(finished, &result, &call).await;
        result
    }

    async fn perform_as(
        &self,
        session: &Session,
        verb: Verb,
        arguments: Map<String, Value>,
        call: &Call,
    ) -> Result<Value> {
        match verb {
            Verb::Message => {
                let params = parsed(verb, arguments)?;
                rendered(self.message_below(session, params, call)).await
            }
            Verb::Events => {
                let params: events::Params = parsed(verb, arguments)?;
                self.below(session, params.session()).await?;
                tokio::select! {
                    page = rendered(self.events_asked_for(&params)) => page,
                    () = call.cancelled() => Err(EngineError::Cancelled),
                }
            }
            Verb::End => {
                let Named { session_id } = parsed(verb, arguments)?;
                self.below(session, session_id).await?;
                Box::pin(rendered::<end::Output>(self.end_tree(session_id, call))).await
            }
            Verb::Limits => {
                let MaybeNamed { session_id } = parsed(verb, arguments)?;
                let named = match session_id.filter(|id| *id != session.id) {
                    Some(id) => self.below(session, id).await?,
                    None => session.clone(),
                };
                rendered(self.limits_of_session(&named)).await
            }
        }
    }

    /// A session below another one; whatever is not is the same as what does not exist.
    async fn below(&self, above: &Session, id: SessionId) -> Result<Session> {
        let not_found = || EngineError::NotFound {
            what: "session",
            id: id.to_string(),
            hint: "only sessions that you started, or that one of those did, can be named",
        };
        let found = self.store().session(id).await?.ok_or_else(not_found)?;
        let mut ancestors = Vec::new();
        let mut at = found.clone();
        while at.depth > above.depth {
            let Some(parent) = at.parent_id else { break };
            ancestors.push(parent);
            at = match self.store().session(parent).await? {
                Some(parent) => parent,
                None => break,
            };
        }
        if is_below(above.id, &ancestors) {
            Ok(found)
        } else {
            Err(not_found())
        }
    }
}

fn parsed<T: DeserializeOwned>(verb: Verb, arguments: Map<String, Value>) -> Result<T> {
    parameters::parse(verb.parameters(), arguments)
}

async fn rendered<T: Serialize>(running: impl Future<Output = Result<T>>) -> Result<Value> {
    serde_json::to_value(running.await?).map_err(EngineError::fault)
}
