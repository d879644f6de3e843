//! Reads one output stream of a process from an offset on.

use oubliette_wire::{Exited, StreamKind};
use tokio::io::AsyncReadExt;

use super::{IncomingStream, ProcessError};

const MAX_READ_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct OutputReader {
    kind: StreamKind,
    /// The offset of the next byte that is read.
    offset: u64,
    /// None once the connection has ended.
    connection: Option<IncomingStream>,
    is_missing_bytes: bool,
}

impl OutputReader {
    /// Reads a stream that was requested from `from` on.
    pub(super) fn new(kind: StreamKind, from: u64, incoming: IncomingStream) -> Self {
        Self {
            kind,
            offset: incoming.from.max(from),
            is_missing_bytes: incoming.from > from,
            connection: Some(incoming),
        }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the supervisor had dropped bytes that were requested.
    pub(crate) fn is_missing_bytes(&self) -> bool {
        self.is_missing_bytes
    }

    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.connection.is_none()
    }

    /// Whether everything was read that the process had written when it exited.
    pub(crate) fn is_complete(&self, exited: &Exited) -> bool {
        let end = match self.kind {
            StreamKind::Stderr => exited.stderr_end,
            StreamKind::Stdout | StreamKind::Stdin => exited.stdout_end,
        };
        self.offset >= end
    }

    /// Appends at most `max_bytes` to `buffer` and returns how many; 0 at the end of the stream or of
    /// the connection, which only the supervisor can tell apart. Cancel safe.
    pub(crate) async fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        max_bytes: usize,
    ) -> Result<usize, ProcessError> {
        let Some(IncomingStream { stream, rest, .. }) = &mut self.connection else {
            return Ok(0);
        };
        let read = if rest.is_empty() {
            buffer.reserve(max_bytes.min(MAX_READ_BYTES));
            let read = stream.take(max_bytes as u64).read_buf(buffer).await;
            match read {
                Ok(read) => read,
                Err(_) => {
                    self.connection = None;
                    return Err(ProcessError::ConnectionLost);
                }
            }
        } else {
            let taken = rest.len().min(max_bytes);
            buffer.extend(rest.drain(..taken));
            taken
        };
        if read == 0 {
            self.connection = None;
        }
        self.offset += read as u64;
        Ok(read)
    }
}
