//! What is written down about a sandbox in its state directory, so that another process can find
//! it again or clear up after it. Always replaced whole, never edited.

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

/// The record of a sandbox. It is written before the first thing that would have to be cleared up.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) process: Option<Process>,
    /// Directories to remove once the processes are gone.
    pub(crate) cgroups: Vec<PathBuf>,
    /// Present once PID 1 is executing the caller's program.
    pub(crate) enforced: Option<EnforcementReport>,
}

/// A process that cannot be mistaken for a later one with its number.
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

    /// Whether this very process is there, and no zombie.
    pub(crate) fn is_alive(&self) -> bool {
        let same = |(state, start): (char, u64)| start == self.start_time && !"ZX".contains(state);
        state_and_start(self.pid).is_ok_and(same) && boot_id().is_ok_and(|id| id == self.boot_id)
    }
}

impl Record {
    /// The record of a state directory; none where there is none that can be read.
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

/// Keeps others from launching or removing the same sandbox until it is dropped; none if somebody
/// else has it. The directory itself is locked, so that nothing more has to be cleared up.
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
    // The name in parentheses may itself hold parentheses and spaces.
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
    fn this_process_is_alive_and_a_later_one_is_not_it() {
        let mut process = Process::from_pid(std::process::id() as i32).unwrap();
        assert!(process.is_alive());
        process.start_time += 1;
        assert!(!process.is_alive());
    }

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4242 9 9";
        assert_eq!(parse_stat(stat), Some(('S', 4242)));
        assert_eq!(parse_stat("garbage"), None);
    }
}
