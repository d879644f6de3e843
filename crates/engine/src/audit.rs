//! The audit log: writes and refusals at once, reads in batches within a second.

pub(crate) mod list;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oubliette_store::{AuditEntry, Store};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

const WAITING: usize = 4096;
const BATCH: usize = 512;
const PAUSE: Duration = Duration::from_millis(500);

/// Takes entries and sees that they are stored.
#[derive(Debug)]
pub(crate) struct AuditLog {
    store: Arc<dyn Store>,
    notes: Mutex<Option<mpsc::Sender<AuditEntry>>>,
}

impl AuditLog {
    pub(crate) fn start(store: Arc<dyn Store>, tasks: &TaskTracker) -> Self {
        let (notes, waiting) = mpsc::channel(WAITING);
        tasks.spawn(write_batches(store.clone(), waiting));
        Self {
            store,
            notes: Mutex::new(Some(notes)),
        }
    }

    /// Stores an entry before it returns.
    pub(crate) async fn write(&self, entry: AuditEntry) {
        store_all(&*self.store, vec![entry]).await;
    }

    /// Stores an entry within a second. Waits only when thousands are ahead of it.
    pub(crate) async fn note(&self, entry: AuditEntry) {
        let notes = self
            .notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match notes {
            Some(notes) => drop(notes.send(entry).await),
            None => self.write(entry).await,
        }
    }

    /// Takes no more notes; what was taken is still written.
    pub(crate) fn close(&self) {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

async fn write_batches(store: Arc<dyn Store>, mut waiting: mpsc::Receiver<AuditEntry>) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, BATCH).await > 0 {
        // Let a batch gather, unless it is full or no more will come.
        let pause = tokio::time::sleep(PAUSE);
        tokio::pin!(pause);
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            tokio::select! {
                () = &mut pause => break,
                more = waiting.recv_many(&mut batch, room) => if more == 0 { break },
            }
        }
        store_all(&*store, std::mem::take(&mut batch)).await;
    }
}

/// An audit log that cannot be written must be heard of, but must not fail the call it tells of:
/// the call has had its effect.
async fn store_all(store: &dyn Store, entries: Vec<AuditEntry>) {
    let lost = entries.len();
    if let Err(error) = store.append_audit(entries).await {
        tracing::error!(%error, lost, "audit entries could not be stored");
    }
}
