//! Bodies of git's requests and responses on their way: passed on as they are, and counted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::super::body::LimitedBody;
use crate::container::{ContainerGate, Gate};
use crate::journal::{JournalEntry, JournalEvent};
use crate::protocol::Way;

/// A request that is on its way. Dropped, it is in the journal: the host, never a path, a header or a body.
pub(super) struct Transfer {
    pub(super) gate: Arc<Gate>,
    pub(super) container: Arc<ContainerGate>,
    pub(super) host: (String, u16),
    pub(super) rule: String,
    pub(super) event: JournalEvent,
    pub(super) sent: Arc<AtomicU64>,
    pub(super) received: u64,
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let (host, port) = self.host.clone();
        let entry = JournalEntry {
            container: self.container.id.clone(),
            host,
            port: Some(port),
            way: Some(Way::Gateway),
            rule: std::mem::take(&mut self.rule),
            sent_bytes: Some(self.sent.load(Ordering::Relaxed)),
            received_bytes: Some(self.received),
            ..JournalEntry::new(self.event)
        };
        self.gate.journal.add(&self.container.project, entry);
    }
}

/// The body of a request, of which some has been read already.
pub(super) struct RequestStream {
    pub(super) first: Bytes,
    pub(super) rest: LimitedBody,
    pub(super) sent: Arc<AtomicU64>,
}

impl Body for RequestStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let polled = if this.first.is_empty() {
            Pin::new(&mut this.rest).poll_frame(context)
        } else {
            let first = std::mem::take(&mut this.first);
            Poll::Ready(Some(Ok(Frame::data(first))))
        };
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            this.sent.fetch_add(bytes, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (first, rest) = (self.first.len() as u64, self.rest.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + first);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + first);
        }
        hint
    }
}

/// The body of a response.
pub(super) struct ResponseStream {
    pub(super) inner: LimitedBody,
    pub(super) transfer: Transfer,
}

impl Body for ResponseStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            this.transfer.received += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
