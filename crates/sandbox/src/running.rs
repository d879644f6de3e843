//! A sandbox that is up: found again by its state directory, by whoever looks, and stopped.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::record::{Process, Record};
use crate::{Enforced, Error, Result, cgroup};

/// How long a killed sandbox may take to be gone.
const DEATH: Duration = Duration::from_secs(20);

/// How often and how far apart PID 1 is asked to end.
const REQUESTS: usize = 10;
const REQUEST_INTERVAL: Duration = Duration::from_millis(50);

/// A sandbox whose PID 1 was executed. Dropping it changes nothing.
#[derive(Debug)]
pub struct Running {
    process: Process,
    pidfd: OwnedFd,
    enforced: Enforced,
    cgroups: Vec<PathBuf>,
}

/// The sandbox of a state directory, if it is alive.
pub fn running(state_dir: &Path) -> Option<Running> {
    let record = Record::read(state_dir)?;
    Running::of(record.process?, record.enforced?, record.cgroups)
}

impl Running {
    fn of(process: Process, enforced: Enforced, cgroups: Vec<PathBuf>) -> Option<Self> {
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

    pub fn enforced(&self) -> &Enforced {
        &self.enforced
    }

    /// Asks PID 1 to end by `SIGTERM`, which may come more than once, kills it when `grace` is
    /// over, and returns when every process of the sandbox is gone: the kernel kills what is left
    /// in the namespace of a dead PID 1.
    pub fn stop(&self, grace: Duration) -> Result<()> {
        if !self.ends_when_asked(grace) {
            kill(&self.pidfd)?;
        }
        cgroup::remove(&self.cgroups, DEATH)
            .map_err(|source| Error::io("failed to remove the sandbox's cgroups", source))
    }
}

impl Running {
    fn ends_when_asked(&self, grace: Duration) -> bool {
        let until = Instant::now() + grace;
        // A PID 1 loses signals until it has asked for them, so the first may come too early.
        for _ in 0..REQUESTS {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // Refused only when the process is gone, which is what is asked for.
            let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
            if has_exited(&self.pidfd, left.min(REQUEST_INTERVAL)) {
                return true;
            }
        }
        has_exited(&self.pidfd, until.saturating_duration_since(Instant::now()))
    }
}

/// Kills a recorded process, if it is still that process, and waits for its end.
pub(crate) fn kill_recorded(process: &Process) -> Result<()> {
    match open(process) {
        Some(pidfd) => kill(&pidfd),
        None => Ok(()),
    }
}

fn kill(pidfd: &OwnedFd) -> Result<()> {
    // Refused only when the process is gone.
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    if has_exited(pidfd, DEATH) {
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
