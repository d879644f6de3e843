//! Collecting children that have ended, whoever started them.

use rustix::io::Errno;
use rustix::process::{WaitOptions, WaitStatus, wait};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exited {
    pub pid: i32,
    pub exit: Exit,
}

/// Every child that has ended by now, orphans of other processes included.
pub fn reap() -> Vec<Exited> {
    let mut ended = Vec::new();
    while let Some(exited) = next(WaitOptions::NOHANG) {
        ended.push(exited);
    }
    ended
}

/// Waits for the next child to end; none if there is no child.
pub fn wait_any() -> Option<Exited> {
    next(WaitOptions::empty())
}

fn next(options: WaitOptions) -> Option<Exited> {
    loop {
        match wait(options) {
            Ok(Some((pid, status))) => {
                let exit = exit_of(status);
                return Some(Exited {
                    pid: pid.as_raw_nonzero().get(),
                    exit,
                });
            }
            Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

fn exit_of(status: WaitStatus) -> Exit {
    match status.terminating_signal() {
        Some(signal) => Exit::Signal(signal),
        None => Exit::Code(status.exit_status().unwrap_or(0)),
    }
}
