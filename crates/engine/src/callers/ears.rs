//! Which tools of its caller an agent's client was told of last: an agent is not given the prompt before
//! the tools that came with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oubliette_model::SessionId;
use oubliette_wire::CallerTools;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{Engine, Result};

/// A client that is not told in time has trouble of its own.
const PATIENCE: Duration = Duration::from_secs(1);

/// What each connection was told, by session and number.
type Told = HashMap<SessionId, HashMap<u64, Option<CallerTools>>>;

#[derive(Debug, Clone)]
pub(crate) struct Ears {
    told: Arc<Mutex<Told>>,
    next: Arc<AtomicU64>,
    changed: Arc<watch::Sender<()>>,
}

impl Default for Ears {
    fn default() -> Self {
        Self {
            told: Arc::default(),
            next: Arc::default(),
            changed: Arc::new(watch::Sender::new(())),
        }
    }
}

impl Ears {
    fn set(&self, ear: &Ear, tools: Option<CallerTools>) {
        let mut told = self.told.lock();
        told.entry(ear.session)
            .or_default()
            .insert(ear.number, tools);
        drop(told);
        self.changed.send_replace(());
    }

    fn all_know(&self, session: SessionId, tools: &CallerTools) -> bool {
        let told = self.told.lock();
        let mut ears = told.get(&session).into_iter().flat_map(HashMap::values);
        ears.all(|told| told.as_ref() == Some(tools))
    }
}

/// A connection that speaks for a session.
#[derive(Debug)]
pub struct Ear {
    ears: Ears,
    session: SessionId,
    number: u64,
}

impl Ear {
    /// It was told of these.
    pub fn told(&self, tools: &CallerTools) {
        self.ears.set(self, Some(tools.clone()));
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut told = self.ears.told.lock();
        if let Some(ears) = told.get_mut(&self.session) {
            ears.remove(&self.number);
            if ears.is_empty() {
                told.remove(&self.session);
            }
        }
        drop(told);
        self.ears.changed.send_replace(());
    }
}

impl Engine {
    /// Notes that a connection speaks for a session.
    pub fn ear(&self, session: SessionId) -> Ear {
        let ears = self.callers().ears.clone();
        let ear = Ear {
            ears: ears.clone(),
            session,
            number: ears.next.fetch_add(1, Ordering::Relaxed),
        };
        ears.set(&ear, None);
        ear
    }

    /// Waits until every client of a session was told of the tools that there are now.
    pub(crate) async fn tools_told(&self, session: SessionId) -> Result<()> {
        let tools = self.caller_tools(session).await?;
        let ears = &self.callers().ears;
        let mut changed = ears.changed.subscribe();
        let telling =
            async { while !ears.all_know(session, &tools) && changed.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(PATIENCE, telling).await;
        Ok(())
    }
}
