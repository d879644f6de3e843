//! Counters of calls, by operation and outcome.

use std::collections::BTreeMap;
use std::time::Duration;

use oubliette_store::AuditOutcome;
use parking_lot::Mutex;

/// Calls of one operation with one outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CallCount {
    pub calls: u64,
    pub time: Duration,
}

/// Counts by operation and outcome.
pub type CallCounts = BTreeMap<(&'static str, &'static str), CallCount>;

#[derive(Debug, Default)]
pub struct Metrics {
    calls: Mutex<CallCounts>,
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

    pub fn calls(&self) -> CallCounts {
        self.calls.lock().clone()
    }
}
