//! Unix sockets in private directories: that of the server in the data directory, by which the command
//! line reaches it, and those of containers.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};

/// A socket in a directory.
#[derive(Debug)]
pub struct LocalSocket {
    directory: OwnedFd,
    directory_path: PathBuf,
    name: &'static str,
}

impl LocalSocket {
    /// Keeps the directory open, so that the paths of this value stay those of this very directory.
    pub fn new(directory: &Path, name: &'static str) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        #[cfg(not(target_os = "linux"))]
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            directory: rustix::fs::open(directory, flags, Mode::empty())?,
            directory_path: directory.to_owned(),
            name,
        })
    }

    /// A path for `bind` and `connect`, valid while this lives. It is short: paths of sockets have at most
    /// 107 bytes, and the path of a data directory can be longer.
    #[cfg(target_os = "linux")]
    pub fn short_path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        let fd = self.directory.as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{fd}/{}", self.name))
    }

    #[cfg(not(target_os = "linux"))]
    pub fn short_path(&self) -> PathBuf {
        self.directory_path.join(self.name)
    }

    /// Binds the socket, which any user may connect to who can see it. It is made in a directory of its own
    /// and then renamed, so that nothing that was left under its name is followed or kept.
    pub(crate) fn bind_for_all(&self, staging_parent: &Path) -> io::Result<UnixListener> {
        self.bind_with_mode(staging_parent, 0o666)
    }

    /// Binds the socket for its owner.
    pub fn bind(&self) -> io::Result<UnixListener> {
        self.bind_with_mode(&self.directory_path, 0o600)
    }

    fn bind_with_mode(&self, staging_parent: &Path, mode: u32) -> io::Result<UnixListener> {
        let staging = tempfile::Builder::new()
            .prefix(".")
            .rand_bytes(6)
            .tempdir_in(staging_parent)?;
        let draft = Self::new(staging.path(), self.name)?;
        let listener = UnixListener::bind(draft.short_path())?;
        let socket = staging.path().join(self.name);
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(mode))?;
        std::fs::rename(socket, self.directory_path.join(self.name))?;
        Ok(listener)
    }

    /// The process that listens at the socket, 0 if its id is unknown. None if it could be that of another
    /// user than `owner`, or if this process has no business with that user's socket: only the directory's
    /// owner and root can put a socket into a private directory.
    pub async fn listener(&self, owner: u32) -> io::Result<Option<i32>> {
        let directory = rustix::fs::fstat(&self.directory)?;
        let user = rustix::process::geteuid();
        let is_own = user.is_root() || owner == user.as_raw();
        let is_private = directory.st_uid == owner && directory.st_mode & 0o022 == 0;
        let peer = UnixStream::connect(self.short_path()).await?.peer_cred()?;
        let is_owner = peer.uid() == owner || peer.uid() == 0;
        Ok((is_own && is_private && is_owner).then(|| peer.pid().unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_below_a_long_path_is_bound_and_reached() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("d".repeat(120)).join("e".repeat(120));
        std::fs::create_dir_all(&deep).unwrap();
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&deep, private).unwrap();
        let socket = LocalSocket::new(&deep, "server.sock").unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert!(socket.listener(user).await.is_err(), "nothing listens yet");
        let listener = socket.bind().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(socket.listener(user).await.unwrap(), Some(own));
        let mode = std::fs::metadata(deep.join("server.sock"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);

        // The directory does not belong to the expected user.
        assert_eq!(socket.listener(user + 1).await.unwrap(), None);

        // Others could have put it there.
        let shared = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&deep, shared).unwrap();
        assert_eq!(socket.listener(user).await.unwrap(), None);
        drop(listener);
        assert!(
            socket.listener(user).await.is_err(),
            "its process has ended"
        );
    }
}
