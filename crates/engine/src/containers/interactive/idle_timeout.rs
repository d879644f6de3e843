//! Hangs up interactive commands whose caller makes no more calls. While such a command runs, its
//! container is in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oubliette_model::ProjectId;
use oubliette_runtime::ContainerId;
use oubliette_wire::Supervise;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::InteractiveExec;
use crate::containers::exec::exit_code;
use crate::containers::memory::MemoryKills;
use crate::containers::process::{Process, SIGHUP, SIGKILL};
use crate::containers::state::SUPERVISOR_RECONNECT_TIMEOUT;
use crate::containers::{Containers, INTERACTIVE_PREFIX};
use crate::{EngineError, Result};

/// How long a command may take to exit after each signal.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(10);
const AUDIT_INTERVAL: Duration = Duration::from_secs(60);
const MAX_COMMANDS_PER_CONTAINER: usize = 256;

type TimerKey = (ContainerId, String);

/// The idle timers of all interactive commands.
#[derive(Debug, Default)]
pub(in crate::containers) struct IdleTimers {
    timers: Mutex<HashMap<TimerKey, Arc<IdleTimer>>>,
}

#[derive(Debug)]
struct IdleTimer {
    boot_id: String,
    last_call: Mutex<Instant>,
    last_audit: Mutex<Instant>,
    finished: CancellationToken,
    /// None for a command that an earlier server started.
    memory_kills: Mutex<Option<MemoryKills>>,
}

impl IdleTimer {
    /// Returns when there was no call for that long.
    async fn elapsed(&self, timeout: Duration) {
        loop {
            let last_call = *self.last_call.lock();
            tokio::time::sleep_until(last_call + timeout).await;
            if *self.last_call.lock() == last_call {
                return;
            }
        }
    }
}

impl IdleTimers {
    /// Whether a call is to be audited now.
    pub(super) fn is_audit_due(&self, exec: &InteractiveExec<'_>) -> bool {
        let timers = self.timers.lock();
        let Some(timer) = timers.get(&key(exec)) else {
            return true;
        };
        let mut last_audit = timer.last_audit.lock();
        let is_due = last_audit.elapsed() >= AUDIT_INTERVAL;
        if is_due {
            *last_audit = Instant::now();
        }
        is_due
    }

    pub(super) fn record_call(&self, exec: &InteractiveExec<'_>) {
        if let Some(timer) = self.timers.lock().get(&key(exec)) {
            *timer.last_call.lock() = Instant::now();
        }
    }

    /// Remembers how many processes the memory limit had killed when a command was started.
    pub(super) fn set_memory_kills(&self, exec: &InteractiveExec<'_>, kills: MemoryKills) {
        if let Some(timer) = self.timers.lock().get(&key(exec)) {
            timer.memory_kills.lock().get_or_insert(kills);
        }
    }

    /// How many processes the memory limit has killed since a command was started; 0 if that is not known.
    pub(super) fn count_memory_kills(&self, exec: &InteractiveExec<'_>) -> u64 {
        let timers = self.timers.lock();
        let kills = timers
            .get(&key(exec))
            .map(|timer| timer.memory_kills.lock());
        kills.map_or(0, |kills| kills.as_ref().map_or(0, MemoryKills::count))
    }

    /// Ends the timer of a command whose end is stored.
    pub(super) fn finish(&self, exec: &InteractiveExec<'_>) {
        if let Some(timer) = self.timers.lock().get(&key(exec)) {
            timer.finished.cancel();
        }
    }

    /// Records a call, and returns the timer if it is new.
    fn start(&self, key: &TimerKey, boot_id: &str) -> Result<Option<Arc<IdleTimer>>> {
        let mut timers = self.timers.lock();
        if let Some(timer) = timers.get(key)
            && timer.boot_id == boot_id
            && !timer.finished.is_cancelled()
        {
            *timer.last_call.lock() = Instant::now();
            return Ok(None);
        }
        let of_container = timers.keys().filter(|(container, _)| *container == key.0);
        if of_container.count() >= MAX_COMMANDS_PER_CONTAINER {
            return Err(EngineError::Failed(format!(
                "{MAX_COMMANDS_PER_CONTAINER} interactive commands run in this container; end one of \
                 them first"
            )));
        }
        let timer = Arc::new(IdleTimer {
            boot_id: boot_id.to_owned(),
            last_call: Mutex::new(Instant::now()),
            last_audit: Mutex::new(Instant::now()),
            finished: CancellationToken::new(),
            memory_kills: Mutex::default(),
        });
        timers.insert(key.clone(), timer.clone());
        Ok(Some(timer))
    }

    fn remove(&self, key: &TimerKey, timer: &Arc<IdleTimer>) {
        let mut timers = self.timers.lock();
        if timers.get(key).is_some_and(|it| Arc::ptr_eq(it, timer)) {
            timers.remove(key);
        }
    }
}

fn key(exec: &InteractiveExec<'_>) -> TimerKey {
    (exec.container.clone(), exec.process_id.clone())
}

impl Containers<'_> {
    pub(super) fn start_idle_timer(self, exec: &InteractiveExec<'_>, boot_id: &str) -> Result<()> {
        self.start_timer(key(exec), exec.project_id, boot_id)
    }

    /// Starts timers for the interactive commands that a supervisor reports, which an earlier server
    /// started.
    pub(in crate::containers) async fn resume_idle_timers(
        self,
        container: &ContainerId,
        hello: &Supervise,
    ) {
        let process_ids: Vec<&String> = hello
            .processes
            .iter()
            .map(|report| &report.process_id)
            .filter(|id| id.starts_with(INTERACTIVE_PREFIX))
            .collect();
        if process_ids.is_empty() {
            return;
        }
        let stored = self.engine.store().container(container.as_str()).await;
        let Ok(Some(stored)) = stored else {
            return;
        };
        for id in process_ids {
            let key = (container.clone(), id.clone());
            // A supervisor that reports more commands than the server starts is not genuine.
            if self
                .start_timer(key, stored.project_id, &hello.boot_id)
                .is_err()
            {
                return;
            }
        }
    }

    fn start_timer(self, key: TimerKey, project: ProjectId, boot_id: &str) -> Result<()> {
        let Some(timer) = self.state().idle_timers.start(&key, boot_id)? else {
            return Ok(());
        };
        let engine = self.engine.clone();
        self.engine.spawn(async move {
            tokio::select! {
                () = engine.containers().run_timer(&key, &timer, project) => {}
                () = timer.finished.cancelled() => {}
                () = engine.stopping() => {}
            }
            engine.container_state().idle_timers.remove(&key, &timer);
        });
        Ok(())
    }

    /// Waits for the end of a command, hangs it up if its caller makes no more calls, and stores its
    /// end if no call does.
    async fn run_timer(self, key: &TimerKey, timer: &IdleTimer, project: ProjectId) {
        let (container, process_id) = key;
        let state = self.state();
        let timeout = Duration::from_secs(self.engine.settings().containers.absence_seconds);
        let exited = {
            let _in_use = state.mark_in_use(container);
            let connected =
                state.connect_process(container, process_id, SUPERVISOR_RECONNECT_TIMEOUT);
            let Ok(mut process) = connected.await else {
                return;
            };
            if process.link().boot_id() != timer.boot_id {
                return;
            }
            loop {
                tokio::select! {
                    exited = process.exited() => match exited {
                        Ok(exited) => break exited,
                        Err(_) => if process.reconnect().await.is_err() {
                            return;
                        },
                    },
                    () = timer.elapsed(timeout) => {
                        tracing::info!(%container, process_id, "hanging up an idle interactive command");
                        if !hang_up(&process).await {
                            // A process that cannot be killed ends with its container.
                            return;
                        }
                    }
                }
            }
        };
        // The output is kept for a caller whose connection was lost just before the end.
        timer.elapsed(timeout).await;
        let output = serde_json::json!({
            "project_id": project, "exit_code": exit_code(exited.ended),
            "stdout": "", "stderr": "", "truncated": true, "timed_out": false, "duration_ms": 0,
            "running": false,
        });
        let store = self.engine.store();
        let stored = store
            .set_exec_result(project, process_id, &output.to_string())
            .await;
        if stored.is_ok() {
            state.forget_process(container, process_id).await;
        }
    }
}

/// Sends a hangup to a command and kills it if it does not exit; returns whether it has exited.
async fn hang_up(process: &Process) -> bool {
    for signal in [SIGHUP, SIGKILL] {
        let _ = process.signal(signal).await;
        let exited = tokio::time::timeout(SIGNAL_TIMEOUT, process.exited()).await;
        if exited.is_ok_and(|exited| exited.is_ok()) {
            return true;
        }
    }
    false
}
