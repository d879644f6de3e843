//! Counters of calls, by operation and outcome, and of questions about hosts, and the sizes of what the engine keeps in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use oubliette_store::{AuditOutcome, StoredCounts};
use parking_lot::Mutex;

use crate::{Engine, Result};

/// Calls of one operation with one outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CallCount {
    pub calls: u64,
    pub time: Duration,
}

/// Counts by operation and outcome.
pub type CallCounts = BTreeMap<(&'static str, &'static str), CallCount>;

/// How many entries the engine has in memory. All but `callers` are zero when no agent or
/// command runs and no call waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Tasks of sessions that have a live agent or work to do.
    pub session_tasks: usize,
    /// Sessions and calls for whose changes someone waits.
    pub subscriptions: usize,
    /// Sessions whose callers were seen lately.
    pub callers: usize,
    /// Entries about containers that exist, and about commands that run in them.
    pub container_entries: usize,
    /// Containers that run.
    pub containers: usize,
    /// Questions about hosts that are open.
    pub host_questions: usize,
}

impl Engine {
    pub fn state_counts(&self) -> StateCounts {
        let sessions = self.sessions();
        StateCounts {
            session_tasks: sessions.count_tasks(),
            subscriptions: sessions.subscriptions().count_topics(),
            callers: self.callers().count_tracked(),
            container_entries: self.container_state().count_entries(),
            containers: self.container_state().count_connected(),
            host_questions: self.parts.network.questions.count(),
        }
    }

    /// What the store has, for metrics.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn stored_counts(&self) -> Result<StoredCounts> {
        Ok(self.store().stored_counts().await?)
    }
}

#[derive(Debug, Default)]
pub struct Metrics {
    calls: Mutex<CallCounts>,
    host_answers: Mutex<BTreeMap<&'static str, u64>>,
}

impl Metrics {
    pub(crate) fn record_call(
        &self,
        operation: &'static str,
        outcome: AuditOutcome,
        time: Duration,
    ) {
        let mut calls = self.calls.lock();
        let count = calls.entry((operation, outcome.as_str())).or_default();
        count.calls += 1;
        count.time += time;
    }

    /// Counts a question about a host that ended: by an answer, or without one.
    pub(crate) fn record_host_answer(&self, outcome: &'static str) {
        *self.host_answers.lock().entry(outcome).or_default() += 1;
    }

    /// Questions about hosts that ended, by outcome.
    pub fn host_answers(&self) -> BTreeMap<&'static str, u64> {
        self.host_answers.lock().clone()
    }

    pub fn calls(&self) -> CallCounts {
        self.calls.lock().clone()
    }
}
