//! One multiplexed stream, which is read and written like a socket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frame::{Frame, FrameKind, MAX_PAYLOAD_BYTES};
use super::{MAX_UNSENT_BYTES, STREAM_WINDOW_BYTES, Shared};

/// A stream of a multiplexed session.
#[derive(Debug)]
pub struct MuxStream {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u32,
}

impl MuxStream {
    pub(super) fn new(shared: Arc<Shared>, id: u32) -> Self {
        Self { shared, id }
    }
}

impl AsyncRead for MuxStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.shared.state.lock();
        let closed = state.closed;
        let Some(stream) = state.streams.get_mut(&self.id) else {
            return Poll::Ready(Ok(()));
        };
        if stream.received.is_empty() {
            if stream.peer_finished {
                return Poll::Ready(Ok(()));
            }
            if closed {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            stream.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut read = 0;
        while buffer.remaining() > 0 && !stream.received.is_empty() {
            let (front, _) = stream.received.as_slices();
            let length = front.len().min(buffer.remaining());
            buffer.put_slice(&front[..length]);
            stream.received.drain(..length);
            read += length;
        }
        stream.uncredited += u32::try_from(read).unwrap_or(STREAM_WINDOW_BYTES);
        if stream.uncredited >= STREAM_WINDOW_BYTES / 2 && !stream.peer_finished {
            let credit = std::mem::take(&mut stream.uncredited).to_be_bytes();
            state.send(&Frame::new(self.id, FrameKind::Credit).with_payload(&credit));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MuxStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.shared.state.lock();
        let (closed, is_full) = (state.closed, state.unsent.len() >= MAX_UNSENT_BYTES);
        let writable = state
            .streams
            .get_mut(&self.id)
            .filter(|stream| !closed && !stream.peer_closed && !stream.finished);
        let Some(stream) = writable else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if stream.credit == 0 {
            stream.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        if is_full {
            state.blocked.push(context.waker().clone());
            return Poll::Pending;
        }
        let length = bytes
            .len()
            .min(MAX_PAYLOAD_BYTES)
            .min(stream.credit as usize);
        stream.credit -= length as u32;
        state.send(&Frame::new(self.id, FrameKind::Data).with_payload(&bytes[..length]));
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.state.lock();
        if let Some(stream) = state.streams.get_mut(&self.id)
            && !std::mem::replace(&mut stream.finished, true)
        {
            state.send(&Frame::new(self.id, FrameKind::End));
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for MuxStream {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let Some(stream) = state.streams.remove(&self.id) else {
            return;
        };
        let peer_knows = stream.peer_closed || (stream.peer_finished && stream.finished);
        if !peer_knows && !state.closed {
            state.send(&Frame::new(self.id, FrameKind::Close));
        }
    }
}
