//! Streams that were requested from a supervisor and whose connections have not arrived yet.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oubliette_runtime::ContainerId;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::containers::Stream;

const STREAM_ARRIVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that carries the bytes of one stream.
pub struct IncomingStream {
    /// The offset of the first byte.
    pub from: u64,
    pub stream: Box<dyn Stream>,
    /// Bytes that arrived together with the first line.
    pub rest: Vec<u8>,
}

impl fmt::Debug for IncomingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingStream")
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

type Senders = Mutex<HashMap<(ContainerId, String), oneshot::Sender<IncomingStream>>>;

#[derive(Debug, Default)]
pub(in crate::containers) struct PendingStreams {
    senders: Arc<Senders>,
}

/// A stream that was requested. Dropping it cancels the request.
#[derive(Debug)]
pub(in crate::containers) struct PendingStream {
    senders: Arc<Senders>,
    key: (ContainerId, String),
    receiver: oneshot::Receiver<IncomingStream>,
}

impl PendingStreams {
    /// Expects a stream of a container under an id that cannot be guessed.
    pub(super) fn expect(&self, container: &ContainerId) -> PendingStream {
        let key = (container.clone(), Uuid::new_v4().to_string());
        let (sender, receiver) = oneshot::channel();
        self.senders.lock().insert(key.clone(), sender);
        PendingStream {
            senders: self.senders.clone(),
            key,
            receiver,
        }
    }

    pub(in crate::containers) fn count(&self) -> usize {
        self.senders.lock().len()
    }

    /// Hands a connection to the request with this id, if it still waits.
    pub(in crate::containers) fn deliver(
        &self,
        container: &ContainerId,
        stream_id: &str,
        incoming: IncomingStream,
    ) {
        let key = (container.clone(), stream_id.to_owned());
        let sender = self.senders.lock().remove(&key);
        if let Some(sender) = sender {
            let _ = sender.send(incoming);
        }
    }
}

impl PendingStream {
    pub(super) fn stream_id(&self) -> &str {
        &self.key.1
    }

    /// None if no connection arrives in time.
    pub(super) async fn arrive(mut self) -> Option<IncomingStream> {
        tokio::time::timeout(STREAM_ARRIVAL_TIMEOUT, &mut self.receiver)
            .await
            .ok()?
            .ok()
    }
}

impl Drop for PendingStream {
    fn drop(&mut self) {
        self.senders.lock().remove(&self.key);
    }
}
