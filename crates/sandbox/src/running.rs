//! Running sandboxes: any process can find one by its state directory and stop it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::record::{Process, Record};
use crate::{EnforcementReport, Error, Result, cgroup};

/// How long a killed sandbox may take to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// PID 1 gets `SIGTERM` up to this many times.
const MAX_TERM_SIGNALS: usize = 10;
const TERM_SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// A sandbox whose PID 1 was executed. Dropping this handle does not stop it.
#[derive(Debug)]
pub struct RunningSandbox {
    process: Process,
    pidfd: OwnedFd,
    enforced: EnforcementReport,
    cgroups: Vec<PathBuf>,
}

/// The sandbox of a state directory, if it is running.
pub fn find_running(state_dir: &Path) -> Option<RunningSandbox> {
    let record = Record::read(state_dir)?;
    RunningSandbox::open(record.process?, record.enforced?, record.cgroups)
}

impl RunningSandbox {
    /// The file in which the kernel counts the processes that the memory limit has killed, if there is one:
    /// its line `oom_kill`.
    pub fn memory_events(&self) -> Option<PathBuf> {
        let names = ["memory.events", "memory.oom_control"];
        let files = self
            .cgroups
            .iter()
            .flat_map(|group| names.map(|name| group.join(name)));
        files.into_iter().find(|file| file.is_file())
    }

    fn open(process: Process, enforced: EnforcementReport, cgroups: Vec<PathBuf>) -> Option<Self> {
        let pidfd = open(&process)?;
        Some(Self {
            process,
            pidfd,
            enforced,
            cgroups,
        })
    }

    /// The process id of PID 1 on the host.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    pub fn is_alive(&self) -> bool {
        !has_exited(&self.pidfd, Duration::ZERO)
    }

    pub fn enforced(&self) -> &EnforcementReport {
        &self.enforced
    }

    /// Sends PID 1 `SIGTERM`, possibly more than once, kills it after `grace`, and returns when every
    /// process of the sandbox has ended: the kernel kills the other processes of the namespace.
    pub fn stop(&self, grace: Duration) -> Result<()> {
        if !self.terminate(grace) {
            kill(&self.pidfd)?;
        }
        cgroup::remove(&self.cgroups, KILL_TIMEOUT)
            .map_err(|source| Error::io("failed to remove the sandbox's cgroups", source))
    }

    /// Whether PID 1 ends within `grace`.
    fn terminate(&self, grace: Duration) -> bool {
        let until = Instant::now() + grace;
        // PID 1 gets no signal before it has installed a handler, so the first may be lost.
        for _ in 0..MAX_TERM_SIGNALS {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // Fails only if the process has ended.
            let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
            if has_exited(&self.pidfd, left.min(TERM_SIGNAL_INTERVAL)) {
                return true;
            }
        }
        has_exited(&self.pidfd, until.saturating_duration_since(Instant::now()))
    }
}

/// Kills the process, unless its pid belongs to another one by now, and waits for its end.
pub(crate) fn kill_process(process: &Process) -> Result<()> {
    match open(process) {
        Some(pidfd) => kill(&pidfd),
        None => Ok(()),
    }
}

fn kill(pidfd: &OwnedFd) -> Result<()> {
    // Fails only if the process has ended.
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    if has_exited(pidfd, KILL_TIMEOUT) {
        return Ok(());
    }
    Err(Error::io(
        "a killed sandbox did not end",
        std::io::Error::from(std::io::ErrorKind::TimedOut),
    ))
}

fn open(process: &Process) -> Option<OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
    // Checked after the descriptor is open: from then on the pid cannot belong to another process.
    process.is_alive().then_some(pidfd)
}

/// Whether a process ends within a timeout; its descriptor then becomes readable.
pub(crate) fn has_exited(pidfd: &OwnedFd, timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let poll_timeout = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut fds, poll_timeout.as_ref()) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(_) => {}
            Ok(_) => return true,
        }
    }
}
