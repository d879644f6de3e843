//! Bodies on their way: bounded in size and time, and counted.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};

use super::settlement::Settlement;
use super::usage_filter::UsageFilter;

/// For the journal: its disk may be full or slow.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyLimits {
    pub(crate) max_bytes: u64,
    /// Without a byte.
    pub(crate) idle: Duration,
}

/// A body that ends with an error at its limits.
#[derive(Debug)]
pub(crate) struct LimitedBody {
    inner: Incoming,
    limits: BodyLimits,
    bytes: u64,
    idle: Pin<Box<Sleep>>,
}

impl LimitedBody {
    pub(crate) fn new(inner: Incoming, limits: BodyLimits) -> Self {
        Self {
            inner,
            limits,
            bytes: 0,
            idle: Box::pin(sleep(limits.idle)),
        }
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        loop {
            match Pin::new(&mut this.inner).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else {
                        // Trailers are for one connection.
                        continue;
                    };
                    this.bytes += data.len() as u64;
                    if this.bytes > this.limits.max_bytes {
                        let error = io::Error::other("the body is too long");
                        return Poll::Ready(Some(Err(error)));
                    }
                    this.idle.as_mut().reset(Instant::now() + this.limits.idle);
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    return match this.idle.as_mut().poll(context) {
                        Poll::Ready(()) => {
                            let error = io::Error::from(io::ErrorKind::TimedOut);
                            Poll::Ready(Some(Err(error)))
                        }
                        Poll::Pending => Poll::Pending,
                    };
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of a response: what the provider sends is counted, and the end is passed on only when the count is on
/// the disk.
pub(crate) struct ResponseBody {
    inner: LimitedBody,
    /// None when the call is settled.
    settlement: Option<Settlement>,
    filter: Option<UsageFilter>,
    /// How much is left of a body whose length is known: its last byte is its end.
    left: Option<u64>,
    state: State,
}

enum State {
    Streaming,
    /// Waits for the journal, and then goes on with this.
    Settling {
        written: oneshot::Receiver<()>,
        deadline: Pin<Box<Sleep>>,
        then: Then,
    },
    /// The provider has sent everything.
    Finished,
    Ended,
}

enum Then {
    Data(Bytes),
    End,
}

impl ResponseBody {
    pub(crate) fn new(
        inner: LimitedBody,
        settlement: Option<Settlement>,
        filter: Option<UsageFilter>,
    ) -> Self {
        Self {
            left: inner.size_hint().exact(),
            inner,
            settlement,
            filter,
            state: State::Streaming,
        }
    }

    fn settle(&mut self, then: Then) {
        self.state = match self.settlement.take() {
            Some(settlement) => State::Settling {
                written: settlement.complete(),
                deadline: Box::pin(sleep(JOURNAL_TIMEOUT)),
                then,
            },
            None => match then {
                // Without a settlement nothing is held back.
                Then::Data(_) => State::Streaming,
                Then::End => State::Ended,
            },
        };
    }

    /// Handles the next bytes; none if they wait for the journal or are not passed on.
    fn take_data(&mut self, data: Bytes) -> Option<Bytes> {
        if let Some(settlement) = &mut self.settlement {
            settlement.add_received(data.len());
        }
        let is_end = self
            .settlement
            .as_mut()
            .is_some_and(|settlement| settlement.feed(&data));
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(data.len() as u64);
        }
        let is_last = self.left == Some(0) || is_end;
        let data = match &mut self.filter {
            Some(filter) => filter.pass(&data),
            None => data,
        };
        if is_last && self.settlement.is_some() {
            self.settle(Then::Data(data));
            return None;
        }
        (!data.is_empty()).then_some(data)
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                State::Finished => this.settle(Then::End),
                State::Settling {
                    written,
                    deadline,
                    then,
                } => {
                    let is_written = Pin::new(written).poll(context).is_ready();
                    // The work of the model must not be lost for a full disk; the gate goes on trying.
                    if !is_written && deadline.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    match std::mem::replace(then, Then::End) {
                        Then::End => this.state = State::Ended,
                        Then::Data(data) => {
                            this.state = State::Streaming;
                            if !data.is_empty() {
                                return Poll::Ready(Some(Ok(Frame::data(data))));
                            }
                        }
                    }
                }
                State::Streaming => match Pin::new(&mut this.inner).poll_frame(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(frame))) => {
                        let data = frame.into_data().unwrap_or_default();
                        if let Some(data) = this.take_data(data) {
                            return Poll::Ready(Some(Ok(Frame::data(data))));
                        }
                    }
                    Poll::Ready(Some(Err(error))) => {
                        this.state = State::Ended;
                        if let Some(settlement) = this.settlement.take() {
                            settlement.cut();
                        }
                        return Poll::Ready(Some(Err(error)));
                    }
                    Poll::Ready(None) => {
                        this.state = State::Finished;
                        let rest = this.filter.as_mut().map(UsageFilter::rest);
                        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
                            return Poll::Ready(Some(Ok(Frame::data(rest))));
                        }
                    }
                },
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.filter {
            Some(_) => SizeHint::default(),
            None => self.inner.size_hint(),
        }
    }
}
