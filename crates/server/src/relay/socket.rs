//! The unix socket of a container.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::UnixListener;

const SOCKET_NAME: &str = "relay.sock";

/// Binds the socket in a container's directory. It is made in a directory that the container does not
/// see and then renamed, so that nothing the container left there is followed or kept.
pub(super) fn bind(directory: &Path) -> io::Result<UnixListener> {
    let parent = directory.parent().unwrap_or(directory);
    let staging = tempfile::Builder::new()
        .prefix(".")
        .rand_bytes(6)
        .tempdir_in(parent)?;
    let listener = UnixListener::bind(ShortPath::open(staging.path())?.as_path())?;
    let socket = staging.path().join(SOCKET_NAME);
    // User ids in a container differ from the server's; the parent directory keeps other users out.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))?;
    std::fs::rename(socket, directory.join(SOCKET_NAME))?;
    Ok(listener)
}

/// A short path of the socket in a directory, valid while this lives: paths of sockets have at most
/// 107 bytes, and the path of a data directory can be longer.
struct ShortPath {
    _directory: OwnedFd,
    path: PathBuf,
}

impl ShortPath {
    #[cfg(target_os = "linux")]
    fn open(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", fd.as_raw_fd()));
        Ok(Self {
            _directory: fd,
            path,
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn open(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::empty())?;
        Ok(Self {
            _directory: fd,
            path: directory.join(SOCKET_NAME),
        })
    }

    fn as_path(&self) -> &Path {
        &self.path
    }
}
