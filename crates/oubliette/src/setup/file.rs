//! Reads configuration files and replaces them atomically. Links are followed; owner and permissions
//! are kept, but other users cannot read a file with a key.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
};

/// Linux follows at most this many links.
const MAX_LINKS: usize = 40;
/// The permissions that a file with a key may have.
const OWNER_ONLY: u32 = 0o600;

/// The contents of the file; none if it does not exist.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The permissions of a file, if other users than its owner have any.
pub(super) fn shared_mode(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.mode() & 0o7777;
    (mode & 0o077 != 0).then_some(mode)
}

/// Replaces the file atomically.
pub(super) fn replace(path: &Path, bytes: &[u8], has_key: bool) -> io::Result<()> {
    let path = follow(path)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(directory)?;
    // Temporary files are readable only by their owner; a new file stays so, because it contains a token.
    let mut file = tempfile::Builder::new()
        .prefix(".oubliette-setup-")
        .tempfile_in(directory)?;
    file.write_all(bytes)?;
    if let Some(old) = metadata(&path)? {
        copy_ownership(file.as_file(), &old, has_key)?;
    }
    file.as_file().sync_all()?;
    file.persist(&path)?;
    File::open(directory)?.sync_all()
}

fn copy_ownership(file: &File, old: &fs::Metadata, has_key: bool) -> io::Result<()> {
    let new = file.metadata()?;
    let owner = (old.uid() != new.uid()).then_some(old.uid());
    let group = (old.gid() != new.gid()).then_some(old.gid());
    if owner.is_some() || group.is_some() {
        fchown(file, owner, group)?;
    }
    // After the owner: a change of owner clears bits.
    let kept = if has_key { OWNER_ONLY } else { 0o7777 };
    file.set_permissions(Permissions::from_mode(old.mode() & kept))
}

fn metadata(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The target of a chain of links, whether or not it exists.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(error) if is_no_link(&error) => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many links in a row"))
}

fn is_no_link(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
    )
}
