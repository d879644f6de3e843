//! One JSON document per line, of bounded length.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reads lines, and keeps what comes after the last one.
#[derive(Debug)]
pub(crate) struct LineReader<R> {
    source: R,
    buffer: Vec<u8>,
    max_bytes: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(crate) fn new(source: R, max_bytes: usize) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            max_bytes,
        }
    }

    /// The next document; None at the end of the stream. Cancelling loses nothing.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut searched = 0;
        loop {
            let newline = self.buffer[searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            if let Some(newline) = newline {
                let rest = self.buffer.split_off(searched + newline + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                let document = serde_json::from_slice(&line);
                return document.map(Some).map_err(io::Error::from);
            }
            searched = self.buffer.len();
            if searched > self.max_bytes {
                return Err(io::Error::other("a line is too long"));
            }
            if self.source.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The source, and what was read after the last line.
    pub(crate) fn into_parts(self) -> (R, Vec<u8>) {
        (self.source, self.buffer)
    }
}

pub(crate) async fn write_line(
    sink: &mut (impl AsyncWrite + Unpin),
    document: &impl Serialize,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(document).map_err(io::Error::from)?;
    line.push(b'\n');
    sink.write_all(&line).await
}
