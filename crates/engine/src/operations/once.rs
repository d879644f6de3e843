//! Calls with an id that the caller chose: a repeated call joins the first.
//!
//! A read is simply done again. A write is stored before it starts and runs to its end even if its
//! caller disconnects. A repeated write gets the stored outcome, or an error that says that the
//! outcome is unknown because the server died meanwhile.

use std::collections::HashMap;

use oubliette_model::{Mode, TokenId};
use oubliette_store::ToolCallStart;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;
use uuid::Uuid;

use super::{Entry, find};
use crate::{Actor, Call, Engine, EngineError, Result};

/// Larger outcomes are not stored; a repeated call then gets the error about an unknown outcome.
const MAX_STORED_OUTCOME_BYTES: usize = 1 << 20;

type CallKey = (TokenId, Uuid);
type OutcomeReceiver = watch::Receiver<Option<Result<Value>>>;

/// Calls with an id that run in this server.
#[derive(Debug, Default)]
pub(crate) struct RunningCalls {
    calls: Mutex<HashMap<CallKey, OutcomeReceiver>>,
}

/// The outcome of a call, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredOutcome {
    Done(Value),
    /// As older versions stored it.
    Refused,
    RefusedBecause(String),
    /// No operation has this name.
    Unknown(String),
    Failed(String),
}

/// What a repeated call gets instead of a secret.
const SHOWN_ONCE: &str = "shown once, in the first result; if that is lost, create another one";

impl StoredOutcome {
    fn from_result(result: &Result<Value>, secret_field: Option<&str>) -> Self {
        match result {
            Ok(value) => {
                let mut value = value.clone();
                if let Some(secret) = secret_field.and_then(|field| value.get_mut(field)) {
                    *secret = Value::from(SHOWN_ONCE);
                }
                Self::Done(value)
            }
            Err(EngineError::Refused { reason, .. }) => Self::RefusedBecause(reason.clone()),
            Err(EngineError::UnknownTool { name, .. }) => Self::Unknown(name.clone()),
            Err(error) => Self::Failed(error.to_string()),
        }
    }

    fn into_result(self) -> Result<Value> {
        match self {
            Self::Done(value) => Ok(value),
            Self::Refused => Err(EngineError::refused("the first call was refused")),
            Self::RefusedBecause(reason) => Err(EngineError::refused(reason)),
            Self::Unknown(name) => Err(EngineError::UnknownTool {
                name,
                nearest: None,
            }),
            Self::Failed(why) => Err(EngineError::Failed(why)),
        }
    }
}

fn outcome_unknown() -> EngineError {
    EngineError::Failed("outcome unknown: check the state before you repeat the call".to_owned())
}

impl Engine {
    /// Calls an operation under an id that the caller chose.
    pub async fn call_once(
        &self,
        actor: &Actor,
        name: &str,
        arguments: Map<String, Value>,
        call_id: Uuid,
        call: Call,
    ) -> Result<Value> {
        let Some(entry) = find_write(actor, name, &arguments) else {
            return self.call(actor, name, arguments, call).await;
        };
        let key = (actor.token_id, call_id);
        let (mut receiver, sender) = {
            let mut running = self.parts.running_calls.calls.lock();
            match running.get(&key) {
                Some(receiver) => (receiver.clone(), None),
                None => {
                    let (sender, receiver) = watch::channel(None);
                    running.insert(key, receiver.clone());
                    (receiver, Some(sender))
                }
            }
        };
        if let Some(sender) = sender {
            let (engine, actor, name) = (self.clone(), actor.clone(), name.to_owned());
            self.spawn(async move {
                let outcome = tokio::select! {
                    outcome = engine.call_stored(&actor, (entry, &name), arguments, call_id, call) => outcome,
                    () = engine.stopping() => Err(outcome_unknown()),
                };
                engine.parts.running_calls.calls.lock().remove(&key);
                sender.send_replace(Some(outcome));
            });
        }
        let outcome = receiver.wait_for(Option::is_some).await;
        outcome
            .ok()
            .and_then(|outcome| outcome.clone())
            .unwrap_or_else(|| Err(outcome_unknown()))
    }

    async fn call_stored(
        &self,
        actor: &Actor,
        (entry, name): (&Entry, &str),
        arguments: Map<String, Value>,
        call_id: Uuid,
        call: Call,
    ) -> Result<Value> {
        let (store, token) = (self.store(), actor.token_id);
        match store.begin_tool_call(token, call_id, self.now()).await? {
            ToolCallStart::New => {}
            ToolCallStart::Repeated(stored) => {
                let stored: StoredOutcome =
                    serde_json::from_str(&stored).map_err(EngineError::fault)?;
                return stored.into_result();
            }
            ToolCallStart::Unknown => return Err(outcome_unknown()),
        }
        let result = self.call(actor, name, arguments, call).await;
        let outcome = StoredOutcome::from_result(&result, entry.secret_field);
        let stored = serde_json::to_string(&outcome).map_err(EngineError::fault)?;
        if stored.len() <= MAX_STORED_OUTCOME_BYTES {
            store.end_tool_call(token, call_id, &stored).await?;
        }
        result
    }
}

/// The operation of a call that may change something. An unknown or refused operation changes nothing.
fn find_write(actor: &Actor, name: &str, arguments: &Map<String, Value>) -> Option<&'static Entry> {
    let action = arguments.get("action").and_then(Value::as_str);
    let entry = match (find(name), action) {
        (Some(entry), _) => Some(entry),
        (None, Some(action)) => find::find_action(name, action),
        (None, None) => None,
    };
    entry.filter(|entry| {
        oubliette_model::allows_class(actor.scope, entry.access)
            && entry.access.mode() == Mode::Write
    })
}
