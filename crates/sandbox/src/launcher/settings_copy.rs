//! A private copy of a directory of the host with settings, as the lower layer of an overlay: files that
//! every user of the host may read, as they are when the sandbox starts. The host's directory itself
//! would also show what is added later, and root inside reads every file of the host's root.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid};

use super::mask;

/// Larger directories are not copied.
const MAX_ENTRIES: usize = 30_000;
const MAX_BYTES: u64 = 64 << 20;
/// The size of the filesystem in memory for the largest copy.
pub(super) const FILESYSTEM_SIZE: &str = "256m";
/// An entry of the host that everybody may read.
struct Entry {
    /// Below the directory.
    path: PathBuf,
    kind: FileType,
    stat: rustix::fs::Stat,
}

/// Copies `host` to the directory `copy`, which is empty; false if `host` is too large. `owner` gives the
/// owner of the copy of a file.
pub(super) fn make(
    copy: &Path,
    host: &Path,
    owner: impl Fn(u32, u32) -> (u32, u32),
) -> io::Result<bool> {
    let Some(entries) = list(host)? else {
        return Ok(false);
    };
    for entry in &entries {
        copy_entry(host, copy, entry, &owner)?;
    }
    set_owner_and_mode(copy, &rustix::fs::stat(host)?, &owner)?;
    Ok(true)
}

/// Everything that every user of the host may read, directories before their entries; none if there
/// is too much of it.
fn list(host: &Path) -> io::Result<Option<Vec<Entry>>> {
    let (mut found, mut bytes) = (Vec::<Entry>::new(), 0);
    let mut queue = vec![PathBuf::new()];
    while let Some(relative) = queue.pop() {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(dir) = rustix::fs::openat(CWD, host.join(&relative), flags, Mode::empty()) else {
            // Removed meanwhile.
            continue;
        };
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let (path, kind) = (relative.join(name), FileType::from_raw_mode(stat.st_mode));
            if mask::is_hidden(host, &path, stat.st_mode) {
                continue;
            }
            match kind {
                FileType::Directory => queue.push(path.clone()),
                FileType::RegularFile => bytes += stat.st_size as u64,
                FileType::Symlink => {}
                _ => continue,
            }
            found.push(Entry { path, kind, stat });
            if found.len() > MAX_ENTRIES || bytes > MAX_BYTES {
                return Ok(None);
            }
        }
    }
    Ok(Some(found))
}

fn copy_entry(
    host: &Path,
    copy: &Path,
    entry: &Entry,
    owner: &impl Fn(u32, u32) -> (u32, u32),
) -> io::Result<()> {
    let (from, to) = (host.join(&entry.path), copy.join(&entry.path));
    match entry.kind {
        FileType::Directory => {
            fs::create_dir(&to)?;
            set_owner_and_mode(&to, &entry.stat, owner)
        }
        FileType::Symlink => {
            let Ok(target) = fs::read_link(&from) else {
                return Ok(());
            };
            std::os::unix::fs::symlink(target, &to)?;
            let (uid, gid) = owner(entry.stat.st_uid, entry.stat.st_gid);
            std::os::unix::fs::lchown(&to, Some(uid), Some(gid))
        }
        _ => copy_file(host, &entry.path, &to, owner),
    }
}

fn copy_file(
    host: &Path,
    path: &Path,
    to: &Path,
    owner: &impl Fn(u32, u32) -> (u32, u32),
) -> io::Result<()> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(host.join(path));
    let Ok(source) = opened else {
        return Ok(());
    };
    // It can be another file than the one that was listed.
    let meta = source.metadata()?;
    if !meta.is_file() || mask::is_hidden(host, path, meta.mode()) {
        return Ok(());
    }
    let mut target = File::create_new(to)?;
    io::copy(&mut source.take(MAX_BYTES), &mut target)?;
    let (uid, gid) = owner(meta.uid(), meta.gid());
    std::os::unix::fs::fchown(&target, Some(uid), Some(gid))?;
    target.set_permissions(fs::Permissions::from_mode(meta.mode() & 0o777))?;
    target.set_modified(meta.modified()?)
}

fn set_owner_and_mode(
    path: &Path,
    stat: &rustix::fs::Stat,
    owner: &impl Fn(u32, u32) -> (u32, u32),
) -> io::Result<()> {
    let (uid, gid) = owner(stat.st_uid, stat.st_gid);
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::empty())?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    Ok(rustix::fs::chmodat(CWD, path, mode, AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_what_all_may_read() {
        let scratch = tempfile::tempdir().unwrap();
        let (host, copy) = (scratch.path().join("host"), scratch.path().join("copy"));
        let write = |name: &str, mode: u32| {
            let path = host.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write("open", 0o644);
        write("closed", 0o600);
        write("sub/open", 0o755);
        write("locked/open", 0o644);
        std::os::unix::fs::symlink("sub/open", host.join("link")).unwrap();
        fs::set_permissions(host.join("locked"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(&copy).unwrap();
        assert!(make(&copy, &host, |uid, gid| (uid, gid)).unwrap());
        assert_eq!(fs::read_to_string(copy.join("open")).unwrap(), "open");
        assert_eq!(fs::read_to_string(copy.join("link")).unwrap(), "sub/open");
        assert!(!copy.join("closed").exists() && !copy.join("locked").exists());
    }
}
