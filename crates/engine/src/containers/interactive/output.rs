//! The new output of one stream of an interactive command.

use oubliette_wire::StreamKind;

use crate::containers::process::{OutputReader, Process, ProcessError};

/// A stream with this much at once is a transfer of data, not a terminal: more follows soon.
const BULK_BYTES: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct OutputStream {
    reader: OutputReader,
    /// The bytes before the offset of the reader.
    bytes: Vec<u8>,
    /// How many bytes one call returns at most.
    max_bytes: usize,
}

impl OutputStream {
    /// Opens the stream from `from` on, and acknowledges everything before.
    pub(super) async fn open(
        process: &Process,
        kind: StreamKind,
        from: Option<u64>,
        max_bytes: usize,
    ) -> Result<Option<Self>, ProcessError> {
        let Some(from) = from else {
            return Ok(None);
        };
        if from > 0 {
            process.acknowledge(kind, from).await;
        }
        Ok(Some(Self {
            reader: process.open_output(kind, from).await?,
            bytes: Vec::new(),
            max_bytes,
        }))
    }

    pub(super) fn reader(&self) -> &OutputReader {
        &self.reader
    }

    pub(super) fn is_missing_bytes(&self) -> bool {
        self.reader.is_missing_bytes()
    }

    /// The offset of the first byte, and the bytes.
    pub(super) fn into_parts(self) -> (u64, Vec<u8>) {
        let from = self.reader.offset() - self.bytes.len() as u64;
        (from, self.bytes)
    }

    pub(super) fn has_bytes(stream: &Option<Self>) -> bool {
        stream.as_ref().is_some_and(|it| !it.bytes.is_empty())
    }

    /// Returns when there are bytes or the connection of the stream ends; never for a stream whose
    /// connection has ended.
    pub(super) async fn read(stream: &mut Option<Self>) -> Result<(), ProcessError> {
        match stream {
            Some(stream) if !stream.bytes.is_empty() => Ok(()),
            Some(stream) if !stream.reader.is_closed() => stream.read_more().await.map(drop),
            _ => std::future::pending().await,
        }
    }

    /// Reads the bytes that have arrived already.
    pub(super) async fn read_available(stream: &mut Option<Self>) {
        let Some(stream) = stream else { return };
        while stream.bytes.len() < stream.max_bytes {
            let now = std::pin::pin!(stream.read_more());
            match futures_util::FutureExt::now_or_never(now) {
                Some(Ok(read)) if read > 0 => {}
                _ => return,
            }
        }
    }

    /// Waits for more of a stream that has much, until the call returns as much as it may. Cancel safe.
    pub(super) async fn fill(stream: &mut Option<Self>) {
        let Some(stream) = stream else { return };
        while (BULK_BYTES..stream.max_bytes).contains(&stream.bytes.len()) {
            if !matches!(stream.read_more().await, Ok(1..)) {
                return;
            }
        }
    }

    async fn read_more(&mut self) -> Result<usize, ProcessError> {
        let room = self.max_bytes - self.bytes.len();
        self.reader.read(&mut self.bytes, room).await
    }
}
