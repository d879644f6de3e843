//! Writes the standard input of a process from an offset on.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{IncomingStream, ProcessError};

/// The supervisor skips bytes that it has already received.
#[derive(Debug)]
pub(crate) struct InputWriter {
    connection: IncomingStream,
}

impl InputWriter {
    pub(super) fn new(connection: IncomingStream) -> Self {
        Self { connection }
    }

    /// The offset from which the supervisor lacks input.
    pub(crate) fn offset(&self) -> u64 {
        self.connection.from
    }

    /// Writes some of the bytes and returns how many. Cancel safe.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<usize, ProcessError> {
        match self.connection.stream.write(bytes).await {
            Ok(0) | Err(_) => Err(ProcessError::ConnectionLost),
            Ok(written) => Ok(written),
        }
    }

    /// Writes all bytes as the last ones of this connection.
    pub(crate) async fn finish(&mut self, bytes: &[u8]) -> Result<(), ProcessError> {
        let stream = &mut self.connection.stream;
        let written = async {
            stream.write_all(bytes).await?;
            stream.shutdown().await
        };
        written.await.map_err(|_| ProcessError::ConnectionLost)
    }

    /// Returns when the supervisor has handed everything to the process.
    pub(crate) async fn wait_until_taken(&mut self) -> Result<(), ProcessError> {
        let read = self.connection.stream.read(&mut [0; 1]).await;
        read.map(drop).map_err(|_| ProcessError::ConnectionLost)
    }
}
