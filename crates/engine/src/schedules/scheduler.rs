//! The one task that looks after schedules. It sleeps until something is due, and is woken when
//! something changed; nothing is looked at in between.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::FutureExt;
use jiff::SignedDuration;
use oubliette_model::RunId;
use oubliette_store::{Firing, Lease, Run};
use tokio::time::Instant;

use super::firing::plan;
use crate::{Engine, EngineError, Result};

/// How long a run is left alone after its server was last heard of.
const LEASE: SignedDuration = SignedDuration::from_secs(60);
const RENEWAL: Duration = Duration::from_secs(20);
/// How many schedules are moved on in one transaction.
const BATCH: u32 = 200;
/// How soon a store is asked again that could not answer.
const PAUSE: Duration = Duration::from_secs(5);

impl Engine {
    /// Looks after schedules from now on.
    pub fn run_schedules(&self) {
        let engine = self.clone();
        self.spawn(async move {
            tokio::select! {
                () = engine.look_after_schedules() => {}
                () = engine.stopping() => {}
            }
        });
    }

    async fn look_after_schedules(&self) {
        let mut adopted = false;
        loop {
            if let Err(error) = self.schedule(&mut adopted).await {
                tracing::error!(%error, "schedules could not be looked after");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn schedule(&self, adopted: &mut bool) -> Result<()> {
        if !*adopted {
            // What the server before this one had begun.
            for run in self.store().adopt_runs(&self.lease()).await? {
                self.carry_out(run);
            }
            *adopted = true;
        }
        let mut renewal = Instant::now() + RENEWAL;
        loop {
            self.fire_due().await?;
            self.begin_runs().await?;
            let busy = !self.running_runs().is_empty();
            if busy && Instant::now() >= renewal {
                self.store().renew_runs(&self.lease()).await?;
                renewal = Instant::now() + RENEWAL;
            }
            let due = self.store().next_due().await?;
            let left = self.store().next_lease_end(&self.lease().by).await?;
            let next = due.into_iter().chain(left).min();
            let until = async {
                match next {
                    Some(at) => self.clock().until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = until => {}
                () = self.schedules().wake.notified() => {}
                () = tokio::time::sleep_until(renewal), if busy => {}
            }
        }
    }

    /// Makes runs of all schedules that are due, the longest due first.
    pub(super) async fn fire_due(&self) -> Result<Vec<Run>> {
        let grace = self.settings().schedules.grace_seconds;
        let grace = SignedDuration::from_secs(grace.into());
        let mut made = Vec::new();
        loop {
            let now = self.now();
            let due = self.store().due_schedules(now, BATCH).await?;
            let more = due.len() == BATCH as usize;
            if due.is_empty() {
                return Ok(made);
            }
            let planning = move || -> Vec<Firing> {
                let firings = due.iter().filter_map(|schedule| plan(schedule, now, grace));
                firings.collect()
            };
            let firings = tokio::task::spawn_blocking(planning)
                .await
                .map_err(EngineError::fault)?;
            for firing in &firings {
                if let Some(why) = &firing.disabled {
                    tracing::warn!(schedule = %firing.schedule_id, why, "a schedule was disabled");
                }
            }
            made.extend(self.store().fire(firings, None).await?);
            if !more {
                return Ok(made);
            }
        }
    }

    /// Begins as many runs as may go on at once.
    async fn begin_runs(&self) -> Result<()> {
        let settings = &self.settings().schedules;
        let most = settings.max_concurrent_runs.max(1) as usize;
        let free = most.saturating_sub(self.running_runs().len());
        if free == 0 {
            return Ok(());
        }
        let deadline = self.now() + SignedDuration::from_secs(settings.run_seconds.into());
        let lease = self.lease();
        let claimed = self.store().claim_runs(&lease, deadline, free as u32);
        for run in claimed.await? {
            self.carry_out(run);
        }
        Ok(())
    }

    fn running_runs(&self) -> std::sync::MutexGuard<'_, HashSet<RunId>> {
        let running = self.schedules().running.lock();
        running.unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a run in a task of its own.
    fn carry_out(&self, run: Run) {
        let id = run.id;
        if !self.running_runs().insert(id) {
            return;
        }
        let engine = self.clone();
        self.spawn(async move {
            let work = AssertUnwindSafe(engine.see_run_through(run)).catch_unwind();
            tokio::select! {
                outcome = work => if outcome.is_err() {
                    tracing::error!(run = %id, "a run of a schedule panicked");
                    engine.give_up_run(id).await;
                },
                () = engine.stopping() => {}
            }
            engine.running_runs().remove(&id);
            engine.schedules().wake.notify_one();
        });
    }

    /// What this server holds runs by. The data directory has one server at a time, so that one that
    /// is started again finds what is its own.
    pub(super) fn lease(&self) -> Lease {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        let at = self.now();
        Lease {
            by: format!("{host}:{}", self.settings().data_dir.display()),
            at,
            until: at + LEASE,
        }
    }
}
