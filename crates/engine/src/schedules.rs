//! Schedules: prompts that agents get at set times.
//!
//! A schedule that is due becomes runs in one transaction (`firing.rs`). A run is begun by the one
//! task that looks after schedules (`scheduler.rs`) and carried out as a call of its owner's token
//! (`run.rs`). Whatever dies in between, the next start goes on from what the store says.

pub(crate) mod create;
pub(crate) mod delete;
mod fields;
mod firing;
pub(crate) mod get;
pub(crate) mod history;
pub(crate) mod list;
mod run;
mod scheduler;
pub(crate) mod trigger;
pub(crate) mod update;
mod view;

use std::collections::HashSet;
use std::sync::Mutex;

use oubliette_model::{RunId, ScheduleId};
use tokio::sync::{Notify, watch};

use crate::{Engine, EngineError};

/// What the task that looks after schedules has to know, and those that carry out runs.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    wake: Notify,
    changes: watch::Sender<()>,
    running: Mutex<HashSet<RunId>>,
}

impl Schedules {
    /// Something changed in the store: who looks after schedules or waits for a run looks again.
    pub(crate) fn tell(&self) {
        self.wake.notify_one();
        self.changes.send_replace(());
    }
}

impl Engine {
    pub(crate) fn schedule_not_found(id: ScheduleId) -> EngineError {
        EngineError::NotFound {
            what: "schedule",
            id: id.to_string(),
            hint: "`schedule_list` shows the schedules that this token can use",
        }
    }
}

#[cfg(test)]
mod tests;
