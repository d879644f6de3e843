//! Taking away everything a sandbox has left on the host.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::record::{Record, lock};
use crate::running::{find_running, kill_process};
use crate::{Error, Result, cgroup};

const CGROUP_REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Removes cgroups, layers and state of a sandbox that is stopped. Removing what is not there is
/// no error.
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

/// Clears what a launch or a stop that was cut short has left of a sandbox that does not run; its
/// files stay, and one that runs is left as it is.
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

/// Ends and clears what a launch, or a sandbox that has died, has left behind; its files stay.
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
        .map_err(|source| Error::io("failed to erase the sandbox's record", source))
}

/// Removes a tree that somebody hostile may have made: of any depth, with directories that deny
/// their owner, with symbolic links to anywhere. Each directory is first moved to the top, so that
/// neither the depth nor the number of open files grows.
fn remove_tree(top: &Path) -> rustix::io::Result<()> {
    let top_dir = match open_dir(CWD, top.as_os_str()) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR) => return rustix::fs::unlinkat(CWD, top, AtFlags::empty()),
        other => other?,
    };
    let mut moved = 0_u64;
    let mut queue = VecDeque::from([OsString::from(".")]);
    while let Some(name) = queue.pop_front() {
        let dir = open_dir(&top_dir, &name)?;
        for entry in rustix::fs::Dir::read_from(&dir)?.collect::<Vec<_>>() {
            let entry = entry?;
            let child = OsStr::from_bytes(entry.file_name().to_bytes());
            if child == "." || child == ".." {
                continue;
            }
            match rustix::fs::unlinkat(&dir, child, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR) => {}
                Err(error) => return Err(error),
            }
            if rustix::fs::unlinkat(&dir, child, AtFlags::REMOVEDIR).is_ok() {
                continue;
            }
            // To move a directory its own entry `..` has to be written.
            allow_owner(&dir, child)?;
            let flat = loop {
                moved += 1;
                let flat = OsString::from(format!(".gone-{moved}"));
                let flags = rustix::fs::RenameFlags::NOREPLACE;
                match rustix::fs::renameat_with(&dir, child, &top_dir, &flat, flags) {
                    Ok(()) => break flat,
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(error),
                }
            };
            queue.push_back(flat);
        }
        if name != "." {
            rustix::fs::unlinkat(&top_dir, &name, AtFlags::REMOVEDIR)?;
        }
    }
    fs::remove_dir(top).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn open_dir(at: impl std::os::fd::AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(&at, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            allow_owner(&at, name)?;
            rustix::fs::openat(&at, name, flags, Mode::empty())
        }
        other => other,
    }
}

fn allow_owner(at: impl std::os::fd::AsFd, name: &OsStr) -> rustix::io::Result<()> {
    // A symbolic link is not followed: only directories get here, which `unlinkat` has told apart.
    rustix::fs::chmodat(at, name, Mode::from_raw_mode(0o700), AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn hostile_trees_go_and_what_they_point_at_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let precious = scratch.path().join("precious");
        fs::write(&precious, "x").unwrap();
        let top = scratch.path().join("top");
        let mut deep = top.clone();
        for _ in 0..300 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        symlink(&precious, top.join("link")).unwrap();
        symlink(scratch.path(), top.join("link-dir")).unwrap();
        fs::create_dir(top.join("locked")).unwrap();
        fs::write(top.join("locked/file"), "").unwrap();
        fs::create_dir(top.join(".gone-1")).unwrap();
        fs::write(top.join(".gone-1/file"), "").unwrap();
        fs::set_permissions(top.join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists());
        assert!(precious.exists());
        remove_tree(&top).unwrap();
    }
}
