//! How the supervisor connects to the server: over a socket of the host that is mounted in the
//! container, or, where none can be, over the runtime's channel.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use super::mux_listener::MuxListener;

/// A connection to the server over either transport.
pub(super) trait Connection: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection for T {}

#[derive(Debug, Clone)]
pub(super) enum ServerTransport {
    Socket(PathBuf),
    Mux(Rc<MuxListener>),
}

impl ServerTransport {
    pub(super) async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Socket(path) => Box::new(UnixStream::connect(path).await?),
            Self::Mux(listener) => Box::new(listener.open_stream().await?),
        })
    }
}
