//! Connections for bytes that were asked for and have not come yet.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use oubliette_runtime::ContainerId;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Stream, lock};

/// A stream that was asked for comes within this time or not at all.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection that carries the bytes of one stream.
pub struct Incoming {
    /// The offset of the first byte.
    pub from: u64,
    pub stream: Box<dyn Stream>,
    /// Bytes that came with the line before them.
    pub rest: Vec<u8>,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    expected: Mutex<HashMap<(ContainerId, String), oneshot::Sender<Incoming>>>,
}

/// A stream that was asked for.
#[derive(Debug)]
pub(super) struct Expected<'a> {
    streams: &'a Streams,
    container: ContainerId,
    pub(super) id: String,
    incoming: oneshot::Receiver<Incoming>,
}

impl Streams {
    /// Expects a stream of a container under a name that nobody can guess.
    pub(super) fn expect(&self, container: &ContainerId) -> Expected<'_> {
        let id = Uuid::new_v4().to_string();
        let (deliver, incoming) = oneshot::channel();
        lock(&self.expected).insert((container.clone(), id.clone()), deliver);
        Expected {
            streams: self,
            container: container.clone(),
            id,
            incoming,
        }
    }

    pub(super) fn deliver(&self, container: &ContainerId, id: &str, incoming: Incoming) {
        let name = (container.clone(), id.to_owned());
        if let Some(deliver) = lock(&self.expected).remove(&name) {
            let _ = deliver.send(incoming);
        }
    }
}

impl Expected<'_> {
    /// None if it does not come.
    pub(super) async fn arrive(mut self) -> Option<Incoming> {
        tokio::time::timeout(PATIENCE, &mut self.incoming)
            .await
            .ok()?
            .ok()
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let name = (self.container.clone(), std::mem::take(&mut self.id));
        lock(&self.streams.expected).remove(&name);
    }
}
