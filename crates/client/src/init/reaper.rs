//! Waits for child processes. PID 1 is the parent of every orphan, so there is one waiter for all:
//! two would take each other's exits.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use oubliette_wire::ExitStatus;
use rustix::process::{Signal, WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::process::Process;
use super::process_table::{self, ProcessTable};

/// How long processes may take to end when the container is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Reaps until the container is stopped, then ends all processes.
pub(super) fn start(table: Rc<ProcessTable>) -> io::Result<impl Future<Output = ()>> {
    let mut children = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        loop {
            reap(&table);
            tokio::select! {
                _ = children.recv() => {}
                _ = terminate.recv() => break,
            }
        }
        table.close();
        // Only for their exits, not until their output is read: the server can be gone.
        let running = || -> Vec<Rc<Process>> {
            let all = table.all().into_iter();
            all.filter(|process| !process.has_ended()).collect()
        };
        for process in running() {
            process_table::send_signal(&process, Signal::TERM, true);
        }
        let ending = async {
            while !running().is_empty() {
                children.recv().await;
                reap(&table);
            }
            // Lets the control connection report the exits.
            tokio::task::yield_now().await;
        };
        // The kernel kills the remaining processes when PID 1 exits.
        let _ = tokio::time::timeout(STOP_TIMEOUT, ending).await;
    })
}

fn reap(table: &ProcessTable) {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        let ended = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ExitStatus::Code(code),
            (None, Some(signal)) => ExitStatus::Signal(signal),
            (None, None) => continue,
        };
        let pid = u32::try_from(pid.as_raw_nonzero().get()).unwrap_or_default();
        if let Some(process) = table.by_pid(pid) {
            process.record_exit(ended);
            table.process_ended.notify_waiters();
        }
    }
}
