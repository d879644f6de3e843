//! The way to the server: a socket of the host that is mounted here, or, where none can be, the
//! runtime's own channel.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use super::carriage::Carriage;

/// A connection to the server, whatever it is made of.
pub(super) trait Connection: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection for T {}

#[derive(Debug, Clone)]
pub(super) enum Way {
    Socket(PathBuf),
    Carried(Rc<Carriage>),
}

impl Way {
    pub(super) async fn dial(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Socket(path) => Box::new(UnixStream::connect(path).await?),
            Self::Carried(carriage) => Box::new(carriage.open().await?),
        })
    }
}
