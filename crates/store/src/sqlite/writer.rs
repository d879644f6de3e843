//! The writer thread. Writes that arrive during a commit share the next commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::convert::convert_error;
use super::open::preallocate_wal;
use crate::{Result, StoreError};

const QUEUE_CAPACITY: usize = 1024;
const MAX_WRITES_PER_COMMIT: usize = 512;

/// A write to run in a transaction, with the sender for its result.
trait PendingWrite: Send {
    /// Runs the write; false if its changes must be rolled back.
    fn run(&mut self, connection: &Connection) -> bool;

    /// Sends the result after the commit.
    fn finish(self: Box<Self>, commit: Result<()>);
}

struct WriteTask<T, F> {
    work: Option<F>,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> PendingWrite for WriteTask<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> Result<T> + Send,
{
    fn run(&mut self, connection: &Connection) -> bool {
        if let Some(work) = self.work.take() {
            // A panic in one write must not end the thread.
            let result = catch_unwind(AssertUnwindSafe(|| work(connection)));
            self.result =
                Some(result.unwrap_or_else(|_| Err(StoreError::failed("a write panicked"))));
        }
        matches!(self.result, Some(Ok(_)))
    }

    fn finish(self: Box<Self>, commit: Result<()>) {
        let result = match (self.result, commit) {
            (Some(Err(error)), _) | (_, Err(error)) => Err(error),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(StoreError::Closed),
        };
        let _ = self.reply.send(result);
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn PendingWrite>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(connection: Connection, path: &Path) -> Result<Self> {
        let (queue, writes) = mpsc::channel(QUEUE_CAPACITY);
        let path = path.to_owned();
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || run(&connection, &path, writes))
            .map_err(StoreError::failed)?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    pub(super) async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (reply, outcome) = oneshot::channel();
        let task = Box::new(WriteTask {
            work: Some(work),
            result: None,
            reply,
        });
        let queue = self.queue.as_ref().ok_or(StoreError::Closed)?;
        queue.send(task).await.map_err(|_| StoreError::Closed)?;
        outcome.await.map_err(|_| StoreError::Closed)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread ends when the queue is closed and all accepted writes are committed.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(connection: &Connection, path: &Path, mut writes: mpsc::Receiver<Box<dyn PendingWrite>>) {
    if let Err(error) = preallocate_wal(path) {
        tracing::debug!(%error, "cannot preallocate the write-ahead log; the first commits take longer");
    }
    let mut batch = Vec::new();
    while writes.blocking_recv_many(&mut batch, MAX_WRITES_PER_COMMIT) > 0 {
        let outcome = commit(connection, path, &mut batch);
        if let Err(error) = &outcome {
            tracing::error!(%error, path = %path.display(), "commit failed");
        }
        for write in batch.drain(..) {
            write.finish(outcome.clone());
        }
    }
}

/// Commits a batch as one transaction. If a write fails, only its own changes are rolled back.
fn commit(connection: &Connection, path: &Path, batch: &mut [Box<dyn PendingWrite>]) -> Result<()> {
    // Cached: a batch runs these statements for each of its writes.
    let execute = |sql| {
        let statement = connection.prepare_cached(sql);
        let executed = statement.and_then(|mut statement| statement.execute([]));
        executed.map(drop).map_err(|e| convert_error(e, path))
    };
    execute("begin immediate")?;
    let committed = (|| {
        for write in batch {
            execute("savepoint write_task")?;
            let succeeded = write.run(connection);
            if connection.is_autocommit() {
                // Disk full and I/O errors end the whole transaction, not only this write.
                return Err(StoreError::DiskFull);
            }
            if !succeeded {
                execute("rollback to write_task")?;
            }
            execute("release write_task")?;
        }
        execute("commit")
    })();
    if committed.is_err() && !connection.is_autocommit() {
        let _ = execute("rollback");
    }
    committed
}
