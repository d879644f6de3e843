//! One connection, to be read and written like a socket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frame::{Frame, Kind, LONGEST};
use super::{AHEAD, Shared, WINDOW};

/// A connection over a stream that carries many.
#[derive(Debug)]
pub struct Carried {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u32,
}

impl Carried {
    pub(super) fn new(shared: Arc<Shared>, id: u32) -> Self {
        Self { shared, id }
    }
}

impl AsyncRead for Carried {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        let closed = state.closed;
        let Some(ends) = state.connections.get_mut(&self.id) else {
            return Poll::Ready(Ok(()));
        };
        if ends.arrived.is_empty() {
            if ends.ended {
                return Poll::Ready(Ok(()));
            }
            if closed {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            ends.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut taken = 0;
        while buffer.remaining() > 0 && !ends.arrived.is_empty() {
            let (front, _) = ends.arrived.as_slices();
            let most = front.len().min(buffer.remaining());
            buffer.put_slice(&front[..most]);
            ends.arrived.drain(..most);
            taken += most;
        }
        ends.read += u32::try_from(taken).unwrap_or(WINDOW);
        if ends.read >= WINDOW / 2 && !ends.ended {
            let credit = std::mem::take(&mut ends.read).to_be_bytes();
            state.send(&Frame::new(self.id, Kind::Credit).with(&credit));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Carried {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        let (closed, waits) = (state.closed, state.out.len() >= AHEAD);
        let ends = state.connections.get_mut(&self.id);
        let Some(ends) = ends.filter(|ends| !closed && !ends.refused && !ends.finished) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if ends.credit == 0 {
            ends.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        if waits {
            state.waiting.push(context.waker().clone());
            return Poll::Pending;
        }
        let most = bytes.len().min(LONGEST).min(ends.credit as usize);
        ends.credit -= most as u32;
        state.send(&Frame::new(self.id, Kind::Data).with(&bytes[..most]));
        Poll::Ready(Ok(most))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        if let Some(ends) = state.connections.get_mut(&self.id)
            && !std::mem::replace(&mut ends.finished, true)
        {
            state.send(&Frame::new(self.id, Kind::End));
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let Some(ends) = state.connections.remove(&self.id) else {
            return;
        };
        let both_know = ends.refused || (ends.ended && ends.finished);
        if !both_know && !state.closed {
            state.send(&Frame::new(self.id, Kind::Close));
        }
    }
}
