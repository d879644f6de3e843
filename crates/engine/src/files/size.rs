//! How much a tree takes on the disk, of which everything may change while it is looked at.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};

/// Deeper than any tool goes; each level is an open directory.
const DEEPEST: usize = 128;
/// More files than that take too long to look at.
const MOST: usize = 5_000_000;

/// Bytes on the disk below a directory; no link is followed, and a file with several names counts
/// once. What cannot be looked at, because it is gone for one, counts nothing.
pub(super) fn of_tree(directory: &Path) -> io::Result<u64> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let open = |at: &OwnedFd, name: &std::ffi::CStr| openat(at, name, flags, Mode::empty());
    let mut stack = match openat(CWD, directory, flags, Mode::empty()) {
        Ok(top) => vec![level(top)?],
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
        if counted > MOST {
            break;
        }
        let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let once = is_directory || found.st_nlink <= 1 || seen.insert((found.st_dev, found.st_ino));
        if once {
            total = total.saturating_add(u64::try_from(found.st_blocks).unwrap_or(0) * 512);
        }
        if is_directory
            && stack.len() < DEEPEST
            && let Some((at, _)) = stack.last()
            && let Ok(inner) = open(at, name)
        {
            stack.push(level(inner)?);
        }
    }
    Ok(total)
}

fn level(directory: OwnedFd) -> io::Result<(OwnedFd, Dir)> {
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
        let size = of_tree(tree.path()).unwrap();
        assert!((256 << 10..512 << 10).contains(&size), "{size}");
        assert_eq!(of_tree(&tree.path().join("missing")).unwrap(), 0);
        assert!(of_tree(&tree.path().join("link")).is_err());
    }
}
