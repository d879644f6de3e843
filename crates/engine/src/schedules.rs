//! Schedules: prompts that are sent to agents at set times.
//!
//! A schedule that is due becomes runs in one transaction (`firing.rs`). The scheduler
//! (`scheduler.rs`) starts each run, which is a call with the token of the schedule's owner
//! (`run.rs`). After a crash the next server continues from what the store has.

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

use oubliette_model::{RunId, ScheduleId};
use oubliette_store::{RunFilter, Schedule, ScheduleRun};
use parking_lot::Mutex;
use tokio::sync::{Notify, SetOnce, watch};

use crate::{Actor, Engine, EngineError, Result};

/// What the scheduler and the tasks of runs share.
#[derive(Debug, Default)]
pub(crate) struct ScheduleState {
    started: SetOnce<()>,
    wake_scheduler: Notify,
    changes: watch::Sender<()>,
    running: Mutex<HashSet<RunId>>,
}

/// The verbs about schedules.
#[derive(Debug, Clone, Copy)]
pub struct Schedules<'a> {
    engine: &'a Engine,
}

impl<'a> Schedules<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine }
    }

    fn state(self) -> &'a ScheduleState {
        &self.engine.parts.schedules
    }

    /// Starts the scheduler, once the server can serve the sessions that it starts.
    pub fn start(self) {
        // Starting twice is the same as once.
        let _ = self.state().started.set(());
    }

    pub(crate) async fn wait_until_started(self) {
        self.state().started.wait().await;
    }

    /// Wakes the scheduler and the tasks of runs, so that they read the store again.
    pub(crate) fn notify_changed(self) {
        self.state().wake_scheduler.notify_one();
        self.state().changes.send_replace(());
    }

    /// The schedule with this id.
    pub(crate) async fn get(self, id: ScheduleId) -> Result<Schedule> {
        let found = self.engine.store().schedule(id).await?;
        found.ok_or_else(|| not_found(id))
    }

    /// The newest run of a schedule in a project that the actor can see.
    async fn last_run(self, schedule: &Schedule, actor: &Actor) -> Result<Option<ScheduleRun>> {
        let filter = RunFilter {
            project_id: actor.scope.project(),
        };
        let store = self.engine.store();
        let newest = store.schedule_runs(schedule.id, &filter, None, 1).await?;
        Ok(newest.rows.into_iter().next())
    }
}

pub(crate) fn not_found(id: impl ToString) -> EngineError {
    EngineError::NotFound {
        what: "schedule",
        id: id.to_string(),
        hint: "`schedule_list` shows the schedules that this token can use",
    }
}

#[cfg(test)]
mod tests;
