//! The audit log: writes and refusals are stored before the call returns, reads in batches within a
//! second.

pub(crate) mod list;

use std::sync::Arc;
use std::time::Duration;

use oubliette_store::{AuditEntry, Store};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

const MAX_QUEUED_ENTRIES: usize = 4096;
const MAX_BATCH_ENTRIES: usize = 512;
const BATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Stores audit entries.
#[derive(Debug)]
pub(crate) struct AuditLog {
    store: Arc<dyn Store>,
    queue: Mutex<Option<mpsc::Sender<AuditEntry>>>,
}

impl AuditLog {
    pub(crate) fn start(store: Arc<dyn Store>, tasks: &TaskTracker) -> Self {
        let (queue, queued) = mpsc::channel(MAX_QUEUED_ENTRIES);
        tasks.spawn(write_batches(store.clone(), queued));
        Self {
            store,
            queue: Mutex::new(Some(queue)),
        }
    }

    /// Stores an entry before it returns.
    pub(crate) async fn write(&self, entry: AuditEntry) {
        store_all(&*self.store, vec![entry]).await;
    }

    /// Queues an entry, which is stored within a second. Waits only when the queue is full.
    pub(crate) async fn enqueue(&self, entry: AuditEntry) {
        let queue = self.queue.lock().clone();
        match queue {
            Some(queue) => drop(queue.send(entry).await),
            None => self.write(entry).await,
        }
    }

    /// Closes the queue; queued entries are still written.
    pub(crate) fn close(&self) {
        self.queue.lock().take();
    }
}

async fn write_batches(store: Arc<dyn Store>, mut queued: mpsc::Receiver<AuditEntry>) {
    let mut batch = Vec::new();
    while queued.recv_many(&mut batch, MAX_BATCH_ENTRIES).await > 0 {
        let interval = tokio::time::sleep(BATCH_INTERVAL);
        tokio::pin!(interval);
        while batch.len() < MAX_BATCH_ENTRIES {
            let free = MAX_BATCH_ENTRIES - batch.len();
            tokio::select! {
                () = &mut interval => break,
                received = queued.recv_many(&mut batch, free) => if received == 0 { break },
            }
        }
        store_all(&*store, std::mem::take(&mut batch)).await;
    }
}

/// Stores entries. A failure is logged and does not fail the call, which has had its effect.
async fn store_all(store: &dyn Store, entries: Vec<AuditEntry>) {
    let lost = entries.len();
    if let Err(error) = store.append_audit(entries).await {
        tracing::error!(%error, lost, "could not store audit entries");
    }
}
