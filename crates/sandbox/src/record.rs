//! The record of a sandbox in its state directory, with which another process can find the sandbox or
//! clean up after it. The file is always replaced as a whole.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::EnforcementReport;

const RECORD_FILE: &str = "sandbox.json";
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Written before the launch makes anything that would have to be removed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) process: Option<Process>,
    /// Directories to remove when the processes have ended.
    pub(crate) cgroups: Vec<PathBuf>,
    /// Present once PID 1 is executing the caller's program.
    pub(crate) enforced: Option<EnforcementReport>,
}

/// A process, told apart from a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// In ticks since boot: field 22 of `/proc/PID/stat`.
    pub(crate) start_time: u64,
    pub(crate) boot_id: String,
}

impl Process {
    pub(crate) fn from_pid(pid: i32) -> io::Result<Self> {
        let (_, start_time) = state_and_start(pid)?;
        Ok(Self {
            pid,
            start_time,
            boot_id: boot_id()?,
        })
    }

    /// Whether this process exists and is not a zombie.
    pub(crate) fn is_alive(&self) -> bool {
        let same = |(state, start): (char, u64)| start == self.start_time && !"ZX".contains(state);
        state_and_start(self.pid).is_ok_and(same) && boot_id().is_ok_and(|id| id == self.boot_id)
    }
}

impl Record {
    /// The record of a state directory; none if it is missing or unreadable.
    pub(crate) fn read(state_dir: &Path) -> Option<Self> {
        let path = state_dir.join(RECORD_FILE);
        if fs::metadata(&path).ok()?.len() > MAX_RECORD_BYTES {
            return None;
        }
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    pub(crate) fn write(&self, state_dir: &Path) -> io::Result<()> {
        let new = state_dir.join(format!("{RECORD_FILE}.new"));
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(new, state_dir.join(RECORD_FILE))
    }

    pub(crate) fn remove(state_dir: &Path) -> io::Result<()> {
        match fs::remove_file(state_dir.join(RECORD_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Prevents other processes from launching or removing the sandbox until the lock is dropped; none if
/// another process holds it. Locks the directory itself, so that no lock file has to be removed.
pub(crate) fn lock(state_dir: &Path) -> io::Result<Option<OwnedFd>> {
    let dir = crate::mounts::open_directory(state_dir)?;
    match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(dir)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

fn state_and_start(pid: i32) -> io::Result<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_stat(stat: &str) -> Option<(char, u64)> {
    // The name in parentheses may contain parentheses and spaces.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_process_with_the_same_pid_is_another_one() {
        let mut process = Process::from_pid(std::process::id() as i32).unwrap();
        assert!(process.is_alive());
        process.start_time += 1;
        assert!(!process.is_alive());
    }

    #[test]
    fn process_names_may_contain_parentheses() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4242 9 9";
        assert_eq!(parse_stat(stat), Some(('S', 4242)));
        assert_eq!(parse_stat("garbage"), None);
    }
}
