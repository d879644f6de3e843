//! The calls of agents that are being answered. An agent that waits for one is not stalled, also if it has
//! not reported the call.

use std::collections::HashMap;
use std::sync::Arc;

use oubliette_model::SessionId;
use parking_lot::Mutex;

use super::Sessions;

/// The number of calls of each session that has any.
#[derive(Debug, Default)]
pub(super) struct AgentCalls(Mutex<HashMap<SessionId, usize>>);

/// A call of a session's agent, until it is dropped.
#[derive(Debug)]
pub struct AgentCallGuard {
    calls: Arc<AgentCalls>,
    session: SessionId,
}

impl Drop for AgentCallGuard {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock();
        if let Some(count) = calls.get_mut(&self.session) {
            *count -= 1;
            if *count == 0 {
                calls.remove(&self.session);
            }
        }
    }
}

impl Sessions<'_> {
    /// Counts a call of a session's agent as being answered.
    pub fn begin_agent_call(self, session: SessionId) -> AgentCallGuard {
        let calls = self.state().agent_calls.clone();
        *calls.0.lock().entry(session).or_default() += 1;
        AgentCallGuard { calls, session }
    }

    pub(super) fn has_agent_calls(self, session: SessionId) -> bool {
        self.state().agent_calls.0.lock().contains_key(&session)
    }
}
