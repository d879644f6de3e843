//! Unix sockets in directories whose paths may be longer than the address of a socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};

/// How the names of directories begin in which sockets are made.
const DRAFT_PREFIX: &str = ".socket-";

/// Removes the directories that a killed process left. No other may be making one.
pub(crate) fn remove_drafts(staging: &Path) {
    let entries = std::fs::read_dir(staging).into_iter().flatten().flatten();
    for entry in entries {
        let is_draft = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(DRAFT_PREFIX.as_bytes());
        if is_draft {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Binds a socket under its name in one step: it is made in a directory of its own in `staging`, which no container
/// sees, and then renamed.
pub(crate) fn bind(
    directory: &Path,
    name: &str,
    staging: &Path,
    mode: u32,
) -> io::Result<UnixListener> {
    let draft = tempfile::Builder::new()
        .prefix(DRAFT_PREFIX)
        .rand_bytes(6)
        .tempdir_in(staging)?;
    let listener = {
        let opened = open(draft.path())?;
        UnixListener::bind(short_path(&opened, draft.path(), name))?
    };
    let socket = draft.path().join(name);
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(mode))?;
    std::fs::rename(socket, directory.join(name))?;
    Ok(listener)
}

pub(crate) async fn connect(directory: &Path, name: &str) -> io::Result<UnixStream> {
    let opened = open(directory)?;
    UnixStream::connect(short_path(&opened, directory, name)).await
}

fn open(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::empty())?)
}

/// Valid while the directory is open.
fn short_path(opened: &OwnedFd, directory: &Path, name: &str) -> PathBuf {
    if cfg!(target_os = "linux") {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd()))
    } else {
        directory.join(name)
    }
}
