//! Many connections over one stream of bytes: the way out of a container into which no socket of
//! the host can be mounted. The container's side opens connections, the server's side accepts them.
//!
//! Each connection has its own credit: the reader says how much more it has room for, so that one
//! that is not read holds up nobody else, and nothing grows without a bound. A connection ends like
//! a socket: half of it, or all.

mod connection;
mod frame;
mod greeting;

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

pub use connection::Carried;
use frame::{Frame, Header, Kind};
pub use greeting::{challenge, hash_of_key, introduce};

/// How many bytes of a connection may be under way or unread.
const WINDOW: u32 = 256 << 10;
/// Bytes that wait to be sent, of all connections; whoever writes more waits.
const AHEAD: usize = 256 << 10;
/// Connections at once.
const MOST: usize = 1024;

/// Opens connections over a stream of bytes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Carrier {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connections: HashMap<u32, Ends>,
    next: u32,
    /// Frames that wait to be sent.
    out: Vec<u8>,
    /// Who sends them.
    sender: Option<Waker>,
    /// Who waits for room among them.
    waiting: Vec<Waker>,
    closed: bool,
}

/// What is known here of one connection.
#[derive(Debug)]
struct Ends {
    arrived: VecDeque<u8>,
    /// Bytes that were read and not yet told to the other side.
    read: u32,
    /// No more will arrive.
    ended: bool,
    reader: Option<Waker>,
    /// How much the other side has room for.
    credit: u32,
    /// The other side reads no more.
    refused: bool,
    writer: Option<Waker>,
    /// We write no more.
    finished: bool,
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            arrived: VecDeque::new(),
            read: 0,
            ended: false,
            reader: None,
            credit: WINDOW,
            refused: false,
            writer: None,
            finished: false,
        }
    }
}

impl Ends {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()]
            .into_iter()
            .flatten()
        {
            waker.wake();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every connection.
    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.connections.values_mut().for_each(Ends::wake);
        state.waiting.drain(..).for_each(Waker::wake);
        state.sender.take().into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn send(&mut self, frame: &Frame<'_>) {
        frame.write(&mut self.out);
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }
}

/// Carries connections over `stream`. The future does it, until the stream ends or the other side
/// breaks the rules; with it all connections end. `arrivals` gets the connections that the other
/// side opens; without it, it may open none.
pub fn carry<S>(
    stream: S,
    arrivals: Option<mpsc::Sender<Carried>>,
) -> (Carrier, impl Future<Output = io::Result<()>>)
where
    S: AsyncRead + AsyncWrite,
{
    let shared = Arc::new(Shared::default());
    let carrier = Carrier {
        shared: shared.clone(),
    };
    let carrying = async move {
        // However it ends, also when it is dropped.
        let _end = CloseOnDrop(&shared);
        let (reader, writer) = tokio::io::split(stream);
        tokio::select! {
            received = receive(&shared, reader, arrivals) => received,
            sent = send(&shared, writer) => sent,
        }
    };
    (carrier, carrying)
}

struct CloseOnDrop<'a>(&'a Shared);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Carrier {
    /// Opens a connection; the first bytes may follow at once.
    pub fn open(&self) -> io::Result<Carried> {
        let mut state = self.shared.lock();
        if state.closed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if state.connections.len() >= MOST {
            return Err(io::Error::other("too many connections are open"));
        }
        let id = loop {
            state.next = state.next.wrapping_add(1);
            let next = state.next;
            if !state.connections.contains_key(&next) {
                break next;
            }
        };
        state.connections.insert(id, Ends::default());
        state.send(&Frame::new(id, Kind::Open));
        drop(state);
        Ok(Carried::new(self.shared.clone(), id))
    }

    /// Whether connections can still be opened.
    pub fn is_open(&self) -> bool {
        !self.shared.lock().closed
    }
}

async fn send<S: AsyncRead + AsyncWrite>(
    shared: &Shared,
    mut writer: WriteHalf<S>,
) -> io::Result<()> {
    loop {
        let bytes = poll_fn(|context| {
            let mut state = shared.lock();
            if state.out.is_empty() {
                state.sender = Some(context.waker().clone());
                return Poll::Pending;
            }
            let bytes = std::mem::take(&mut state.out);
            state.waiting.drain(..).for_each(Waker::wake);
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
    arrivals: Option<mpsc::Sender<Carried>>,
) -> io::Result<()> {
    let mut payload = Vec::new();
    loop {
        // Answers to what comes must not pile up.
        room_to_answer(shared).await;
        let mut header = [0; Header::LENGTH];
        match reader.read_exact(&mut header).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let header = Header::read(header)?;
        payload.resize(header.length, 0);
        reader.read_exact(&mut payload).await?;
        let arrived = take_in(shared, &header, &payload, arrivals.is_some())?;
        if let (Some(connection), Some(arrivals)) = (arrived, &arrivals) {
            // Whoever cannot keep up with new ones loses them: a connection that is dropped ends.
            let _ = arrivals.try_send(connection);
        }
    }
}

async fn room_to_answer(shared: &Shared) {
    poll_fn(|context| {
        let mut state = shared.lock();
        if state.out.len() < 2 * AHEAD {
            return Poll::Ready(());
        }
        state.waiting.push(context.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Takes in a frame; the connection, if it opens one. What is about a connection that has ended here
/// was sent before the other side knew.
fn take_in(
    shared: &Arc<Shared>,
    header: &Header,
    payload: &[u8],
    accepts: bool,
) -> io::Result<Option<Carried>> {
    let broken = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    let mut state = shared.lock();
    if header.kind == Some(Kind::Open) {
        if !accepts || state.connections.contains_key(&header.connection) {
            return broken("a connection that may not be opened");
        }
        if state.connections.len() >= MOST {
            state.send(&Frame::new(header.connection, Kind::Close));
            return Ok(None);
        }
        state.connections.insert(header.connection, Ends::default());
        return Ok(Some(Carried::new(shared.clone(), header.connection)));
    }
    let Some(ends) = state.connections.get_mut(&header.connection) else {
        return Ok(None);
    };
    match header.kind {
        Some(Kind::Data) => {
            let unread = ends.arrived.len() + ends.read as usize;
            if ends.ended || unread + payload.len() > WINDOW as usize {
                return broken("more bytes than there was room for");
            }
            ends.arrived.extend(payload);
        }
        Some(Kind::Credit) => {
            let Ok(more) = payload.try_into().map(u32::from_be_bytes) else {
                return broken("credit of a strange size");
            };
            ends.credit = ends.credit.saturating_add(more).min(WINDOW);
        }
        Some(Kind::End) => ends.ended = true,
        Some(Kind::Close) => {
            ends.ended = true;
            ends.refused = true;
        }
        // Of a newer version, which must do without it.
        Some(Kind::Open) | None => {}
    }
    ends.wake();
    Ok(None)
}

#[cfg(test)]
mod tests;
