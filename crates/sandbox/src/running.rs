//! A sandbox that is up: found again by its state directory, by whoever looks, and stopped.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::record::{Process, Record};
use crate::{EnforcementReport, Error, Result, cgroup};

/// How long a killed sandbox may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// How often and how far apart PID 1 is asked to end.
const MAX_TERM_SIGNALS: usize = 10;
const TERM_SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// A sandbox whose PID 1 was executed. Dropping it changes nothing.
#[derive(Debug)]
pub struct RunningSandbox {
    process: Process,
    pidfd: OwnedFd,
    enforced: EnforcementReport,
    cgroups: Vec<PathBuf>,
}

/// The sandbox of a state directory, if it is alive.
pub fn find_running(state_dir: &Path) -> Option<RunningSandbox> {
    let record = Record::read(state_dir)?;
    RunningSandbox::open(record.process?, record.enforced?, record.cgroups)
}

impl RunningSandbox {
    fn open(process: Process, enforced: EnforcementReport, cgroups: Vec<PathBuf>) -> Option<Self> {
        let pidfd = open(&process)?;
        Some(Self {
            process,
            pidfd,
            enforced,
            cgroups,
        })
    }

    /// PID 1 as the host numbers it.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    pub fn is_alive(&self) -> bool {
        !has_exited(&self.pidfd, Duration::ZERO)
    }

    pub fn enforced(&self) -> &EnforcementReport {
        &self.enforced
    }

    /// Asks PID 1 to end by `SIGTERM`, which may come more than once, kills it when `grace` is
    /// over, and returns when every process of the sandbox is gone: the kernel kills what is left
    /// in the namespace of a dead PID 1.
    pub fn stop(&self, grace: Duration) -> Result<()> {
        if !self.terminate(grace) {
            kill(&self.pidfd)?;
        }
        cgroup::remove(&self.cgroups, KILL_TIMEOUT)
            .map_err(|source| Error::io("failed to remove the sandbox's cgroups", source))
    }
}

impl RunningSandbox {
    fn terminate(&self, grace: Duration) -> bool {
        let until = Instant::now() + grace;
        // A PID 1 loses signals until it has asked for them, so the first may come too early.
        for _ in 0..MAX_TERM_SIGNALS {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // Refused only when the process is gone, which is what is asked for.
            let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
            if has_exited(&self.pidfd, left.min(TERM_SIGNAL_INTERVAL)) {
                return true;
            }
        }
        has_exited(&self.pidfd, until.saturating_duration_since(Instant::now()))
    }
}

/// Kills a recorded process, if it is still that process, and waits for its end.
pub(crate) fn kill_process(process: &Process) -> Result<()> {
    match open(process) {
        Some(pidfd) => kill(&pidfd),
        None => Ok(()),
    }
}

fn kill(pidfd: &OwnedFd) -> Result<()> {
    // Refused only when the process is gone.
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    if has_exited(pidfd, KILL_TIMEOUT) {
        return Ok(());
    }
    Err(Error::io(
        "a killed sandbox does not end",
        std::io::Error::from(std::io::ErrorKind::TimedOut),
    ))
}

fn open(process: &Process) -> Option<OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
    // Checked after the descriptor is there: from then on the number cannot go to another process.
    process.is_alive().then_some(pidfd)
}

/// Whether a process ends within a time. Its descriptor becomes readable when it does.
pub(crate) fn has_exited(pidfd: &OwnedFd, within: Duration) -> bool {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(_) => {}
            Ok(_) => return true,
        }
    }
}
