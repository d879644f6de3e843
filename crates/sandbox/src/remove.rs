//! Removes everything that a sandbox left on the host.

use std::io;
use std::path::Path;
use std::time::Duration;

use oubliette_trees::remove_tree;

use crate::record::{Record, lock};
use crate::running::{find_running, kill_process};
use crate::{Error, Result, cgroup};

const CGROUP_REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Removes cgroups, layers and state of a stopped sandbox. It is not an error if they do not exist.
pub fn remove(state_dir: &Path, layers_dir: &Path) -> Result<()> {
    let _lock = match lock(state_dir) {
        Ok(lock) => Some(lock.ok_or(Error::Locked)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(Error::io("failed to lock the sandbox's state", source)),
    };
    if let Some(running) = find_running(state_dir) {
        return Err(Error::StillRunning { pid: running.pid() });
    }
    clear_leftovers(state_dir)?;
    for dir in [layers_dir, state_dir] {
        remove_tree(dir)
            .map_err(|source| Error::io(format!("failed to remove {}", dir.display()), source))?;
    }
    Ok(())
}

/// Removes the processes and cgroups that an interrupted launch or stop left. Files stay; a running
/// sandbox is left unchanged.
pub fn clean_up(state_dir: &Path) -> Result<()> {
    let lock = match lock(state_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        lock => lock.map_err(|source| Error::io("failed to lock the sandbox's state", source))?,
    };
    let _lock = lock.ok_or(Error::Locked)?;
    match find_running(state_dir) {
        Some(_) => Ok(()),
        None => clear_leftovers(state_dir),
    }
}

/// Kills the recorded process and removes the cgroups and the record. Files stay.
pub(crate) fn clear_leftovers(state_dir: &Path) -> Result<()> {
    let Some(record) = Record::read(state_dir) else {
        return Ok(());
    };
    if let Some(process) = &record.process {
        kill_process(process)?;
    }
    cgroup::remove(&record.cgroups, CGROUP_REMOVAL_TIMEOUT)
        .map_err(|source| Error::io("failed to remove the sandbox's cgroups", source))?;
    Record::remove(state_dir)
        .map_err(|source| Error::io("failed to remove the sandbox's record", source))
}
