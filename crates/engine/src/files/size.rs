//! The disk usage of a directory tree that may change while it is measured.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};

/// Each level keeps a directory open.
const MAX_DEPTH: usize = 128;
/// Counting stops here, because more files take too long.
const MAX_FILES: usize = 5_000_000;

/// The bytes on the disk below a directory. Links are not followed, and a file with several names
/// counts once. Files that cannot be read, for example because they were removed, do not count.
pub(super) fn disk_usage(directory: &Path) -> io::Result<u64> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let open = |at: &OwnedFd, name: &std::ffi::CStr| openat(at, name, flags, Mode::empty());
    let mut stack = match openat(CWD, directory, flags, Mode::empty()) {
        Ok(root) => vec![read_dir(root)?],
        Err(rustix::io::Errno::NOENT) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let (mut total, mut seen, mut counted) = (0u64, HashSet::new(), 0);
    while let Some((at, entries)) = stack.last_mut() {
        let entry = match entries.next() {
            Some(Ok(entry)) => entry,
            Some(Err(_)) | None => {
                stack.pop();
                continue;
            }
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(found) = statat(&*at, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        counted += 1;
        if counted > MAX_FILES {
            break;
        }
        let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let is_first =
            is_directory || found.st_nlink <= 1 || seen.insert((found.st_dev, found.st_ino));
        if is_first {
            total = total.saturating_add(u64::try_from(found.st_blocks).unwrap_or(0) * 512);
        }
        if is_directory
            && stack.len() < MAX_DEPTH
            && let Some((at, _)) = stack.last()
            && let Ok(inner) = open(at, name)
        {
            stack.push(read_dir(inner)?);
        }
    }
    Ok(total)
}

fn read_dir(directory: OwnedFd) -> io::Result<(OwnedFd, Dir)> {
    let entries = Dir::read_from(&directory)?;
    Ok((directory, entries))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_not_followed_and_a_file_counts_once() {
        let (tree, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("big"), vec![1; 1 << 20]).unwrap();
        symlink(outside.path(), tree.path().join("link")).unwrap();
        symlink(".", tree.path().join("loop")).unwrap();
        let deep = tree.path().join("a/b/c");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), vec![1; 256 << 10]).unwrap();
        fs::hard_link(deep.join("file"), tree.path().join("again")).unwrap();
        let size = disk_usage(tree.path()).unwrap();
        assert!((256 << 10..512 << 10).contains(&size), "{size}");
        assert_eq!(disk_usage(&tree.path().join("missing")).unwrap(), 0);
        assert!(disk_usage(&tree.path().join("link")).is_err());
    }
}
