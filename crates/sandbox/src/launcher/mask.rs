//! Files of the host's directories that the sandbox must not read: those that an unprivileged user of
//! the host cannot read, and known secrets regardless of their mode. Where the sandbox's root may read
//! files of the host's root, they are left out of a copy or covered by whiteouts.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

/// Larger trees are not searched.
const MAX_SCANNED_ENTRIES: usize = 30_000;

/// An entry to hide, by its path below the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hidden {
    pub(super) path: PathBuf,
    pub(super) is_dir: bool,
}

/// Names below `/etc` that are hidden even where a host has made them readable.
fn is_known_secret(path: &Path) -> bool {
    let text = path.as_os_str().as_bytes();
    let starts = |start: &str| text.starts_with(start.as_bytes());
    let is_key = starts("ssh/ssh_host_") && !text.ends_with(b".pub");
    is_key
        || ["shadow", "gshadow", "sudoers"]
            .iter()
            .any(|name| starts(name))
        || path == Path::new("ssl/private")
}

/// Whether the entry `path` of the host's directory `top` must not be visible.
pub(super) fn is_hidden(top: &Path, path: &Path, mode: u32) -> bool {
    let kind = FileType::from_raw_mode(mode);
    let readable = match kind {
        FileType::Symlink => 0,
        FileType::Directory => 0o005,
        _ => 0o004,
    };
    mode & readable != readable || top == Path::new("/etc") && is_known_secret(path)
}

/// The entries to hide in a directory of the host; none if the tree is too large.
pub(super) fn find(top: &Path) -> io::Result<Option<Vec<Hidden>>> {
    let mut hidden = Vec::new();
    let mut queue = vec![PathBuf::new()];
    let mut seen = 0;
    while let Some(relative) = queue.pop() {
        let Ok(dir) = open_dir(&top.join(&relative)) else {
            // The sandbox cannot read it either.
            continue;
        };
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            seen += 1;
            if seen > MAX_SCANNED_ENTRIES {
                return Ok(None);
            }
            if entry.file_type() == FileType::Symlink {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let path = relative.join(name);
            let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
            if is_hidden(top, &path, stat.st_mode) {
                hidden.push(Hidden { path, is_dir });
            } else if is_dir {
                queue.push(path);
            }
        }
    }
    Ok(Some(hidden))
}

/// Directories that a skeleton has at most, and how deep they are: deep enough for
/// `lib/python3/dist-packages` and `lib/node_modules`.
const MAX_SKELETON_DIRECTORIES: usize = 2000;
const MAX_SKELETON_DEPTH: usize = 3;

/// Makes a layer at `layer` with the directories of `host` that all may read, so that root inside owns
/// them and can add files; the files themselves stay the host's. Deep ones may be left out.
pub(super) fn skeleton(
    layer: &Path,
    host: &Path,
    owner: impl Fn(u32, u32) -> (u32, u32),
) -> io::Result<()> {
    let mut queue = VecDeque::from([PathBuf::new()]);
    let mut made = 0;
    while let Some(relative) = queue.pop_front() {
        let Ok(dir) = open_dir(&host.join(&relative)) else {
            continue;
        };
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || entry.file_type() != FileType::Directory {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
            let path = relative.join(name);
            if !is_dir || is_hidden(host, &path, stat.st_mode) {
                continue;
            }
            make_like(&layer.join(&path), &stat, &owner)?;
            if path.components().count() < MAX_SKELETON_DEPTH {
                queue.push_back(path);
            }
            made += 1;
            if made == MAX_SKELETON_DIRECTORIES {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Makes a directory with the mode of the host's and its owner inside.
fn make_like(
    copy: &Path,
    stat: &rustix::fs::Stat,
    owner: &impl Fn(u32, u32) -> (u32, u32),
) -> io::Result<()> {
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    rustix::fs::mkdirat(CWD, copy, Mode::from_raw_mode(0o755))?;
    let (uid, gid) = owner(stat.st_uid, stat.st_gid);
    std::os::unix::fs::chown(copy, Some(uid), Some(gid))?;
    Ok(rustix::fs::chmodat(CWD, copy, mode, AtFlags::empty())?)
}

/// Makes a layer of whiteouts at `layer`, to be stacked on the host's directory `host`. Parent
/// directories get the host's owner and mode, because the topmost layer determines them.
pub(super) fn whiteouts(
    layer: &Path,
    host: &Path,
    hidden: &[Hidden],
    owner: impl Fn(u32, u32) -> (u32, u32),
) -> io::Result<()> {
    for Hidden { path, .. } in hidden {
        let mut made = PathBuf::new();
        for part in path.parent().into_iter().flat_map(Path::components) {
            made.push(part);
            let copy = layer.join(&made);
            if copy.exists() {
                continue;
            }
            let stat = rustix::fs::statat(CWD, host.join(&made), AtFlags::SYMLINK_NOFOLLOW)?;
            make_like(&copy, &stat, &owner)?;
        }
        let mode = Mode::empty();
        rustix::fs::mknodat(CWD, layer.join(path), FileType::CharacterDevice, mode, 0)?;
    }
    Ok(())
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn entries_that_others_cannot_read_are_found() {
        let scratch = tempfile::tempdir().unwrap();
        let make = |name: &str, mode: u32| {
            let path = scratch.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        make("open", 0o644);
        make("closed", 0o640);
        make("sub/deep/closed", 0o600);
        make("locked/inner", 0o644);
        let locked = scratch.path().join("locked");
        fs::set_permissions(locked, fs::Permissions::from_mode(0o750)).unwrap();
        let mut found = find(scratch.path()).unwrap().unwrap();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        let names: Vec<_> = found.iter().map(|h| h.path.to_str().unwrap()).collect();
        assert_eq!(names, ["closed", "locked", "sub/deep/closed"]);
        assert!(found[1].is_dir);
    }

    #[test]
    fn known_secrets_do_not_include_public_keys() {
        assert!(is_known_secret(Path::new("shadow-")));
        assert!(is_known_secret(Path::new("ssh/ssh_host_rsa_key")));
        assert!(!is_known_secret(Path::new("ssh/ssh_host_rsa_key.pub")));
        assert!(is_known_secret(Path::new("sudoers.d")));
        assert!(!is_known_secret(Path::new("passwd")));
    }
}
