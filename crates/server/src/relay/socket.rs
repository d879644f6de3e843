//! The unix socket of a container.

use std::io;
use std::path::Path;

use tokio::net::UnixListener;

use crate::LocalSocket;

const SOCKET_NAME: &str = "relay.sock";

/// Binds the socket in a container's directory, through the parent directory, which the container does not
/// see.
pub(super) fn bind(directory: &Path) -> io::Result<UnixListener> {
    let parent = directory.parent().unwrap_or(directory);
    // User ids in a container differ from the server's; the parent directory keeps other users out.
    LocalSocket::new(directory, SOCKET_NAME)?.bind_for_all(parent)
}
