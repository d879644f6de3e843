//! Removes everything that a sandbox left on the host.

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

/// Removes a tree with untrusted contents: of any depth, with directories that deny access to their
/// owner, with symbolic links to anywhere. Each directory is first moved to the top, so that neither
/// the depth nor the number of open files grows.
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
            // Moving a directory writes its entry `..`.
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
    // No symbolic link gets here: `unlinkat` has reported a directory.
    rustix::fs::chmodat(at, name, Mode::from_raw_mode(0o700), AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn hostile_trees_are_removed_and_link_targets_stay() {
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
