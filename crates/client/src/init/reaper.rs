//! The one who waits for children: PID 1 is the parent of every orphan, and two that wait would
//! take each other's exits.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use oubliette_wire::Ended;
use rustix::process::{Signal, WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::process::Process;
use super::table::{self, Table};

/// How long processes may take to end when the container is stopped.
const GRACE: Duration = Duration::from_secs(5);

/// Reaps until the container is told to stop, then ends everything.
pub(super) fn start(table: Rc<Table>) -> io::Result<impl Future<Output = ()>> {
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
        // Whether their output is read to the end is not waited for: whoever reads it may be gone.
        let running = || -> Vec<Rc<Process>> {
            let all = table.all().into_iter();
            all.filter(|process| !process.has_ended()).collect()
        };
        running()
            .iter()
            .for_each(|process| table::send(process, Signal::TERM, true));
        let ending = async {
            while !running().is_empty() {
                children.recv().await;
                reap(&table);
            }
            // The server hears of it, if it is there.
            tokio::task::yield_now().await;
        };
        // Whoever is left goes with the container: PID 1 is its last process.
        let _ = tokio::time::timeout(GRACE, ending).await;
    })
}

fn reap(table: &Table) {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        let ended = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Ended::Code(code),
            (None, Some(signal)) => Ended::Signal(signal),
            (None, None) => continue,
        };
        let pid = u32::try_from(pid.as_raw_nonzero().get()).unwrap_or_default();
        if let Some(process) = table.by_pid(pid) {
            process.end(ended);
            table.ended.notify_waiters();
        }
    }
}
