//! The scheduler: one task that starts runs. It sleeps until the next schedule is due and is woken
//! when something changed; it does not poll.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use jiff::SignedDuration;
use oubliette_store::{Firing, Lease, ScheduleRun};
use tokio::time::Instant;

use super::Schedules;
use super::firing::plan_firing;
use crate::{EngineError, Result};

/// How long another server leaves a run alone after its lease was renewed.
const RUN_LEASE: SignedDuration = SignedDuration::from_secs(60);
const LEASE_RENEWAL_INTERVAL: Duration = Duration::from_secs(20);
/// Schedules that are fired in one transaction.
const MAX_FIRINGS_PER_BATCH: u32 = 200;
const STORE_RETRY_DELAY: Duration = Duration::from_secs(5);

impl Schedules<'_> {
    /// Continues the runs that the previous server on this data directory had started.
    pub(crate) async fn recover_runs(self) -> Result<()> {
        for run in self.engine.store().adopt_runs(&self.lease()).await? {
            self.spawn_run(run);
        }
        Ok(())
    }

    /// Starts runs as they become due. Does not return.
    pub(crate) async fn run_scheduler(self) {
        loop {
            if let Err(error) = self.start_due_runs().await {
                tracing::error!(%error, "the scheduler failed; trying again");
            }
            tokio::time::sleep(STORE_RETRY_DELAY).await;
        }
    }

    async fn start_due_runs(self) -> Result<()> {
        let (engine, store) = (self.engine, self.engine.store());
        let mut renew_at = Instant::now() + LEASE_RENEWAL_INTERVAL;
        loop {
            self.fire_due().await?;
            self.claim_runs().await?;
            let busy = !self.state().running.lock().is_empty();
            if busy && Instant::now() >= renew_at {
                store.renew_runs(&self.lease()).await?;
                renew_at = Instant::now() + LEASE_RENEWAL_INTERVAL;
            }
            let due = store.next_due_at().await?;
            let foreign_lease_end = store.next_lease_end(&self.lease().holder).await?;
            let next = due.into_iter().chain(foreign_lease_end).min();
            let until = async {
                match next {
                    Some(at) => engine.clock().sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = until => {}
                () = self.state().wake_scheduler.notified() => {}
                () = tokio::time::sleep_until(renew_at), if busy => {}
            }
        }
    }

    /// Creates runs for all schedules that are due, the longest due first.
    pub(super) async fn fire_due(self) -> Result<Vec<ScheduleRun>> {
        let store = self.engine.store();
        let grace_seconds = self.engine.settings().schedules.grace_seconds;
        let grace = SignedDuration::from_secs(grace_seconds.into());
        let mut created = Vec::new();
        loop {
            let now = self.engine.now();
            let due = store.due_schedules(now, MAX_FIRINGS_PER_BATCH).await?;
            let has_more = due.len() == MAX_FIRINGS_PER_BATCH as usize;
            if due.is_empty() {
                return Ok(created);
            }
            let plan_all = move || -> Vec<Firing> {
                due.iter()
                    .filter_map(|schedule| plan_firing(schedule, now, grace))
                    .collect()
            };
            let firings = tokio::task::spawn_blocking(plan_all)
                .await
                .map_err(EngineError::fault)?;
            for firing in &firings {
                if let Some(why) = &firing.disable_reason {
                    tracing::warn!(schedule = %firing.schedule_id, why, "schedule disabled");
                }
            }
            created.extend(store.fire_schedules(firings, None).await?);
            if !has_more {
                return Ok(created);
            }
        }
    }

    /// Claims and starts as many runs as are allowed at once.
    async fn claim_runs(self) -> Result<()> {
        let settings = &self.engine.settings().schedules;
        let max_runs = settings.max_concurrent_runs.max(1) as usize;
        let free = max_runs.saturating_sub(self.state().running.lock().len());
        if free == 0 {
            return Ok(());
        }
        let timeout = SignedDuration::from_secs(settings.run_seconds.into());
        let deadline = self.engine.now() + timeout;
        let (store, lease) = (self.engine.store(), self.lease());
        for run in store.claim_runs(&lease, deadline, free as u32).await? {
            self.spawn_run(run);
        }
        Ok(())
    }

    /// Executes a run in a task of its own.
    fn spawn_run(self, run: ScheduleRun) {
        let id = run.id;
        if !self.state().running.lock().insert(id) {
            return;
        }
        let engine = self.engine.clone();
        self.engine.spawn(async move {
            let schedules = engine.schedules();
            let execution = AssertUnwindSafe(schedules.execute_run(run)).catch_unwind();
            tokio::select! {
                outcome = execution => if outcome.is_err() {
                    tracing::error!(run = %id, "a run of a schedule panicked");
                    schedules.fail_run(id).await;
                },
                () = engine.stopping() => {}
            }
            schedules.state().running.lock().remove(&id);
            schedules.state().wake_scheduler.notify_one();
        });
    }

    /// The lease with which this server holds runs. A data directory has one server at a time, so a
    /// restarted server finds its own runs by it.
    pub(super) fn lease(self) -> Lease {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let at = self.engine.now();
        Lease {
            holder: format!("{host}:{}", self.engine.settings().data_dir.display()),
            at,
            until: at + RUN_LEASE,
        }
    }
}
