//! Calls that have a name: repeated, they are the same call.
//!
//! What only looks is done again. What changes something is noted before it begins and runs whether
//! or not anybody still waits for it; who repeats it gets what came of it, or hears that nobody knows.

use std::collections::HashMap;

use oubliette_model::{Mode, TokenId};
use oubliette_store::Begun;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;
use uuid::Uuid;

use super::lookup;
use crate::{Actor, Call, Engine, EngineError, Result};

/// Longer results are not kept for somebody who asks again.
const LONGEST: usize = 1 << 20;

type Key = (TokenId, Uuid);
type Waiting = watch::Receiver<Option<Result<Value>>>;

/// Calls that are being done.
#[derive(Debug, Default)]
pub(crate) struct Running {
    calls: Mutex<HashMap<Key, Waiting>>,
}

/// What came of a call, as it is kept.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kept {
    Done(Value),
    Refused,
    /// The program that called has to mend it.
    Unknown(String),
    Failed(String),
}

impl Kept {
    fn of(result: &Result<Value>) -> Self {
        match result {
            Ok(value) => Self::Done(value.clone()),
            Err(EngineError::Refused { .. }) => Self::Refused,
            Err(EngineError::UnknownTool { name, .. }) => Self::Unknown(name.clone()),
            Err(error) => Self::Failed(error.to_string()),
        }
    }

    fn result(self) -> Result<Value> {
        match self {
            Self::Done(value) => Ok(value),
            Self::Refused => Err(EngineError::Refused { parameter: None }),
            Self::Unknown(name) => Err(EngineError::UnknownTool {
                name,
                nearest: None,
            }),
            Self::Failed(why) => Err(EngineError::Failed(why)),
        }
    }
}

fn unknown() -> EngineError {
    EngineError::Failed("outcome unknown: look before you repeat it".to_owned())
}

impl Engine {
    /// Calls an operation under a name that the caller chose for the call.
    pub async fn call_once(
        &self,
        actor: &Actor,
        name: &str,
        arguments: Map<String, Value>,
        call_id: Uuid,
        call: Call,
    ) -> Result<Value> {
        if !changes(actor, name, &arguments) {
            return self.call(actor, name, arguments, call).await;
        }
        let key = (actor.token_id, call_id);
        let (mut waiting, first) = {
            let mut running = self.running().calls.lock();
            match running.get(&key) {
                Some(waiting) => (waiting.clone(), None),
                None => {
                    let (done, waiting) = watch::channel(None);
                    running.insert(key, waiting.clone());
                    (waiting, Some(done))
                }
            }
        };
        if let Some(done) = first {
            let (engine, actor, name) = (self.clone(), actor.clone(), name.to_owned());
            self.spawn(async move {
                let outcome = tokio::select! {
                    outcome = engine.begin_once(&actor, &name, arguments, call_id, call) => outcome,
                    // Whoever asks the next server hears that nobody knows.
                    () = engine.stopping() => Err(unknown()),
                };
                engine.running().calls.lock().remove(&key);
                done.send_replace(Some(outcome));
            });
        }
        let outcome = waiting.wait_for(Option::is_some).await;
        let outcome = outcome.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(unknown()))
    }

    async fn begin_once(
        &self,
        actor: &Actor,
        name: &str,
        arguments: Map<String, Value>,
        call_id: Uuid,
        call: Call,
    ) -> Result<Value> {
        let (store, token) = (self.store(), actor.token_id);
        match store.begin_tool_call(token, call_id, self.now()).await? {
            Begun::New => {}
            Begun::Before(kept) => {
                let kept: Kept = serde_json::from_str(&kept).map_err(EngineError::fault)?;
                return kept.result();
            }
            Begun::Unknown => return Err(unknown()),
        }
        let result = self.call(actor, name, arguments, call).await;
        let kept = serde_json::to_string(&Kept::of(&result)).map_err(EngineError::fault)?;
        if kept.len() <= LONGEST {
            store.end_tool_call(token, call_id, &kept).await?;
        }
        result
    }
}

/// Whether a call may change something. What is no operation changes nothing.
fn changes(actor: &Actor, name: &str, arguments: &Map<String, Value>) -> bool {
    let action = arguments.get("action").and_then(Value::as_str);
    let entry = match (lookup::find(name), action) {
        (Some(entry), _) => Some(entry),
        (None, Some(action)) => lookup::find_action(name, action),
        (None, None) => None,
    };
    let permitted = entry.filter(|entry| oubliette_model::allows_class(actor.scope, entry.access));
    permitted.is_some_and(|entry| entry.access.mode() == Mode::Write)
}
