//! Multiplexes many streams over one byte channel. It connects a container in which no socket of the
//! host can be mounted: the container's side opens streams, the server's side accepts them.
//!
//! Each stream has its own credit: the reader grants the writer as many bytes as it has space for,
//! so that a stream that is not read does not block the others, and all buffers are bounded. A
//! stream ends like a socket: one direction, or both.

mod frame;
mod handshake;
mod stream;

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use frame::{Frame, FrameKind, Header};
pub use handshake::{answer_challenge, challenge_server, hash_key};
pub use stream::MuxStream;

/// How many bytes of one stream may be in flight or unread.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// How many bytes of all streams may wait to be sent before writers have to wait.
const MAX_UNSENT_BYTES: usize = 256 << 10;
const MAX_STREAMS: usize = 1024;

/// Opens streams over a byte channel. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MuxSession {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<SessionState>,
}

#[derive(Debug, Default)]
struct SessionState {
    streams: HashMap<u32, StreamState>,
    last_id: u32,
    /// Encoded frames that wait to be sent.
    unsent: Vec<u8>,
    /// The task that sends them.
    sender: Option<Waker>,
    /// Tasks that wait until `unsent` is shorter.
    blocked: Vec<Waker>,
    closed: bool,
}

#[derive(Debug)]
struct StreamState {
    received: VecDeque<u8>,
    /// Bytes that were read and for which no credit was sent yet.
    uncredited: u32,
    /// The peer writes no more.
    peer_finished: bool,
    reader: Option<Waker>,
    /// How many bytes may be sent.
    credit: u32,
    /// The peer reads no more.
    peer_closed: bool,
    writer: Option<Waker>,
    /// This side writes no more.
    finished: bool,
}

impl Default for StreamState {
    fn default() -> Self {
        Self {
            received: VecDeque::new(),
            uncredited: 0,
            peer_finished: false,
            reader: None,
            credit: STREAM_WINDOW_BYTES,
            peer_closed: false,
            writer: None,
            finished: false,
        }
    }
}

impl StreamState {
    fn wake(&mut self) {
        let wakers = [self.reader.take(), self.writer.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Shared {
    /// Ends every stream.
    fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.streams.values_mut().for_each(StreamState::wake);
        state.blocked.drain(..).for_each(Waker::wake);
        state.sender.take().into_iter().for_each(Waker::wake);
    }
}

impl SessionState {
    fn send(&mut self, frame: &Frame<'_>) {
        frame.write(&mut self.unsent);
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }
}

struct CloseOnDrop<'a>(&'a Shared);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl MuxSession {
    /// A session over `channel`, and the future that runs it until the channel ends or the peer
    /// violates the protocol; all streams end with it. Streams that the peer opens go to
    /// `incoming`; without it the peer may open none.
    pub fn new<S>(
        channel: S,
        incoming: Option<mpsc::Sender<MuxStream>>,
    ) -> (Self, impl Future<Output = io::Result<()>>)
    where
        S: AsyncRead + AsyncWrite,
    {
        let shared = Arc::new(Shared::default());
        let session = Self {
            shared: shared.clone(),
        };
        let running = async move {
            // Also when this future is dropped.
            let _close = CloseOnDrop(&shared);
            let (reader, writer) = tokio::io::split(channel);
            tokio::select! {
                received = receive(&shared, reader, incoming) => received,
                sent = send(&shared, writer) => sent,
            }
        };
        (session, running)
    }

    /// Opens a stream; it can be written to at once.
    pub fn open(&self) -> io::Result<MuxStream> {
        let mut state = self.shared.state.lock();
        if state.closed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if state.streams.len() >= MAX_STREAMS {
            return Err(io::Error::other("too many streams are open"));
        }
        let id = loop {
            state.last_id = state.last_id.wrapping_add(1);
            let id = state.last_id;
            if !state.streams.contains_key(&id) {
                break id;
            }
        };
        state.streams.insert(id, StreamState::default());
        state.send(&Frame::new(id, FrameKind::Open));
        drop(state);
        Ok(MuxStream::new(self.shared.clone(), id))
    }

    /// Whether streams can still be opened.
    pub fn is_open(&self) -> bool {
        !self.shared.state.lock().closed
    }
}

async fn send<S: AsyncRead + AsyncWrite>(
    shared: &Shared,
    mut writer: WriteHalf<S>,
) -> io::Result<()> {
    loop {
        let bytes = poll_fn(|context| {
            let mut state = shared.state.lock();
            if state.unsent.is_empty() {
                state.sender = Some(context.waker().clone());
                return Poll::Pending;
            }
            let bytes = std::mem::take(&mut state.unsent);
            state.blocked.drain(..).for_each(Waker::wake);
            Poll::Ready(bytes)
        })
        .await;
        writer.write_all(&bytes).await?;
        writer.flush().await?;
    }
}

async fn receive<S: AsyncRead + AsyncWrite>(
    shared: &Arc<Shared>,
    mut reader: ReadHalf<S>,
    incoming: Option<mpsc::Sender<MuxStream>>,
) -> io::Result<()> {
    let mut payload = Vec::new();
    loop {
        wait_for_send_space(shared).await;
        let mut header = [0; Header::BYTES];
        match reader.read_exact(&mut header).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let header = Header::parse(header)?;
        payload.resize(header.length, 0);
        reader.read_exact(&mut payload).await?;
        let opened = handle_frame(shared, &header, &payload, incoming.is_some())?;
        if let (Some(stream), Some(incoming)) = (opened, &incoming) {
            // If the queue is full, the stream is dropped, which closes it.
            let _ = incoming.try_send(stream);
        }
    }
}

/// Reading a frame can add frames to send; they must not pile up.
async fn wait_for_send_space(shared: &Shared) {
    poll_fn(|context| {
        let mut state = shared.state.lock();
        if state.unsent.len() < 2 * MAX_UNSENT_BYTES {
            return Poll::Ready(());
        }
        state.blocked.push(context.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Handles a frame and returns the stream that it opens, if any. A frame of a stream that has ended
/// on this side is ignored: the peer did not know yet.
fn handle_frame(
    shared: &Arc<Shared>,
    header: &Header,
    payload: &[u8],
    accepts: bool,
) -> io::Result<Option<MuxStream>> {
    let violation = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    let id = header.stream_id;
    let mut state = shared.state.lock();
    if header.kind == Some(FrameKind::Open) {
        if !accepts || state.streams.contains_key(&id) {
            return violation("the peer opened a stream that it may not open");
        }
        if state.streams.len() >= MAX_STREAMS {
            state.send(&Frame::new(id, FrameKind::Close));
            return Ok(None);
        }
        state.streams.insert(id, StreamState::default());
        return Ok(Some(MuxStream::new(shared.clone(), id)));
    }
    let Some(stream) = state.streams.get_mut(&id) else {
        return Ok(None);
    };
    match header.kind {
        Some(FrameKind::Data) => {
            let unread = stream.received.len() + stream.uncredited as usize;
            if stream.peer_finished || unread + payload.len() > STREAM_WINDOW_BYTES as usize {
                return violation("the peer sent more bytes than it had credit for");
            }
            stream.received.extend(payload);
        }
        Some(FrameKind::Credit) => {
            let Ok(credit) = payload.try_into().map(u32::from_be_bytes) else {
                return violation("the payload of a credit frame must have 4 bytes");
            };
            stream.credit = stream
                .credit
                .saturating_add(credit)
                .min(STREAM_WINDOW_BYTES);
        }
        Some(FrameKind::End) => stream.peer_finished = true,
        Some(FrameKind::Close) => {
            stream.peer_finished = true;
            stream.peer_closed = true;
        }
        // A newer peer must not rely on kinds that this version does not know.
        Some(FrameKind::Open) | None => {}
    }
    stream.wake();
    Ok(None)
}

#[cfg(test)]
mod tests;
