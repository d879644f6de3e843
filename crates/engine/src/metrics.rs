//! Counters of what was called and how it ended.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oubliette_store::Outcome;

/// Calls of one operation with one outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counted {
    pub calls: u64,
    pub time: Duration,
}

#[derive(Debug, Default)]
pub struct Metrics {
    calls: Mutex<BTreeMap<(&'static str, &'static str), Counted>>,
}

impl Metrics {
    pub(crate) fn called(&self, operation: &'static str, outcome: Outcome, time: Duration) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = calls.entry((operation, outcome.as_str())).or_default();
        counted.calls += 1;
        counted.time += time;
    }

    /// By operation and outcome.
    pub fn calls(&self) -> BTreeMap<(&'static str, &'static str), Counted> {
        self.calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
