//! The writer thread. Writes that arrive during a commit share the next commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::convert::convert_error;
use super::open::{
    BUSY_TIMEOUT, SECURE_DELETE, WAL_PREALLOCATED_BYTES, WAL_USUAL_BYTES, free_bytes,
    preallocate_wal,
};
use crate::{Result, StoreError, reserve};

const QUEUE_CAPACITY: usize = 1024;
const MAX_WRITES_PER_COMMIT: usize = 512;
/// How long a purge of the write-ahead log waits for readers.
const PURGE_TIMEOUT: Duration = Duration::from_millis(50);
const PURGE_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// With less free space the disk is full: only writes that may use the reserve go on.
const FULL_DISK_BYTES: u64 = 64 << 10;
/// With less free space a checkpoint may fail, so that the write-ahead log grows into the reserve.
const SCARCE_DISK_BYTES: u64 = 8 << 20;

/// A write to run in a transaction, with the sender for its result.
trait PendingWrite: Send {
    /// Runs the write; false if its changes must be rolled back.
    fn run(&mut self, connection: &Connection) -> bool;

    /// Whether what it deleted must be gone from the files when it is done.
    fn purges_deleted(&self) -> bool;

    fn uses_reserve(&self) -> bool;

    /// Sends the result after the commit.
    fn finish(self: Box<Self>, commit: Result<()>);
}

struct WriteTask<T, F> {
    work: Option<F>,
    purges_deleted: bool,
    uses_reserve: bool,
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

    fn purges_deleted(&self) -> bool {
        self.purges_deleted
    }

    fn uses_reserve(&self) -> bool {
        self.uses_reserve
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
        self.write_task(work, false).await
    }

    /// Like [`Writer::write`]; nothing of what it deletes stays in the files, also not in the write-ahead
    /// log. This takes as long as some commits.
    pub(super) async fn write_and_purge<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let purging = |connection: &Connection| overwrite_deleted(connection, work);
        self.write_task(purging, true).await
    }

    async fn write_task<T, F>(&self, work: F, purges_deleted: bool) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (reply, outcome) = oneshot::channel();
        let task = Box::new(WriteTask {
            work: Some(work),
            purges_deleted,
            uses_reserve: reserve::is_usable(),
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
    prepare_log(path);
    let mut batch = Vec::new();
    let mut next_purge = None;
    while writes.blocking_recv_many(&mut batch, MAX_WRITES_PER_COMMIT) > 0 {
        if keeps_reserve(connection, path) {
            let (allowed, refused): (Vec<_>, Vec<_>) =
                batch.drain(..).partition(|write| write.uses_reserve());
            batch = allowed;
            for write in refused {
                write.finish(Err(StoreError::DiskFull));
            }
            if batch.is_empty() {
                continue;
            }
        }
        let outcome = commit(connection, path, &mut batch);
        if let Err(error) = &outcome {
            tracing::error!(%error, path = %path.display(), "commit failed");
        }
        if batch.iter().any(|write| write.purges_deleted()) {
            next_purge = Some(Instant::now());
        }
        // Emptying the log gives its space back, which another process would take on a full disk.
        let may_purge = || free_bytes(path).is_ok_and(|free| free > WAL_PREALLOCATED_BYTES);
        if next_purge.is_some_and(|due| due <= Instant::now()) && may_purge() {
            let is_purged = purge_log(connection, path);
            next_purge = (!is_purged).then(|| Instant::now() + PURGE_RETRY_INTERVAL);
        }
        for write in batch.drain(..) {
            write.finish(outcome.clone());
        }
    }
}

/// Whether only writes that may use the reserve can go on: the disk is full, or so scarce that checkpoints fail
/// and the write-ahead log has reached the reserve.
fn keeps_reserve(connection: &Connection, path: &Path) -> bool {
    let free = match free_bytes(path) {
        Ok(free) if free < SCARCE_DISK_BYTES => free,
        _ => return false,
    };
    if !has_reserve(path) {
        return false;
    }
    if free < FULL_DISK_BYTES {
        return true;
    }
    let frames: rusqlite::Result<i64> =
        connection.query_row("pragma wal_checkpoint(passive)", [], |row| row.get(1));
    let page_bytes: rusqlite::Result<i64> =
        connection.query_row("pragma page_size", [], |row| row.get(0));
    match (frames, page_bytes) {
        (Ok(frames), Ok(page_bytes)) => {
            let used = frames.saturating_mul(page_bytes);
            u64::try_from(used).is_ok_and(|used| used > WAL_USUAL_BYTES)
        }
        _ => false,
    }
}

/// Whether the write-ahead log was preallocated.
fn has_reserve(path: &Path) -> bool {
    let mut wal_path = path.as_os_str().to_owned();
    wal_path.push("-wal");
    std::fs::metadata(wal_path).is_ok_and(|meta| meta.len() >= WAL_PREALLOCATED_BYTES)
}

/// Overwrites all pages that become unused in `work`.
pub(super) fn overwrite_deleted<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    connection.pragma_update(None, "secure_delete", "on")?;
    let result = work(connection);
    connection.pragma_update(None, "secure_delete", SECURE_DELETE)?;
    result
}

fn prepare_log(path: &Path) {
    if let Err(error) = preallocate_wal(path) {
        tracing::debug!(%error, "cannot preallocate the write-ahead log; the first commits take longer");
    }
}

/// Empties the write-ahead log, which has what was deleted until other commits overwrite it. False if a
/// reader prevents it, which other writes do not wait for.
fn purge_log(connection: &Connection, path: &Path) -> bool {
    let checkpoint = || {
        connection.busy_timeout(PURGE_TIMEOUT)?;
        let is_busy = connection.query_row("pragma wal_checkpoint(truncate)", [], |row| row.get(0));
        connection.busy_timeout(BUSY_TIMEOUT)?;
        is_busy
    };
    match checkpoint() {
        Ok(true) => false,
        Ok(false) => {
            prepare_log(path);
            true
        }
        Err(error) => {
            tracing::warn!(%error, "could not empty the write-ahead log");
            false
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
