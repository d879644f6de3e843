//! The one thread that writes. Units of work that arrive while a commit syncs share the next one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::convert::explain;
use super::open::lay_out_log;
use crate::{Result, StoreError};

const QUEUE: usize = 1024;
const MOST_PER_COMMIT: usize = 512;

/// Something to do in a transaction, and somebody to tell.
trait Unit: Send {
    /// Does the work; false if nothing of it may stay.
    fn run(&mut self, connection: &Connection) -> bool;

    /// Tells the outcome, once the commit's is known.
    fn answer(self: Box<Self>, commit: Result<()>);
}

struct Work<T, F> {
    work: Option<F>,
    result: Option<Result<T>>,
    answer: oneshot::Sender<Result<T>>,
}

impl<T, F> Unit for Work<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> Result<T> + Send,
{
    fn run(&mut self, connection: &Connection) -> bool {
        if let Some(work) = self.work.take() {
            // A panic in one unit must not end the thread that all units need.
            let result = catch_unwind(AssertUnwindSafe(|| work(connection)));
            self.result =
                Some(result.unwrap_or_else(|_| Err(StoreError::failed("a write panicked"))));
        }
        matches!(self.result, Some(Ok(_)))
    }

    fn answer(self: Box<Self>, commit: Result<()>) {
        let result = match (self.result, commit) {
            (Some(Err(error)), _) | (_, Err(error)) => Err(error),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(StoreError::Closed),
        };
        let _ = self.answer.send(result);
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn Unit>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(connection: Connection, path: &Path) -> Result<Self> {
        let (queue, units) = mpsc::channel(QUEUE);
        let path = path.to_owned();
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || run(&connection, &path, units))
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
        let (answer, outcome) = oneshot::channel();
        let unit = Box::new(Work {
            work: Some(work),
            result: None,
            answer,
        });
        let queue = self.queue.as_ref().ok_or(StoreError::Closed)?;
        queue.send(unit).await.map_err(|_| StoreError::Closed)?;
        outcome.await.map_err(|_| StoreError::Closed)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread ends when the queue is closed and empty: what was accepted is written.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(connection: &Connection, path: &Path, mut units: mpsc::Receiver<Box<dyn Unit>>) {
    if let Err(error) = lay_out_log(path) {
        tracing::debug!(%error, "the first commits take longer");
    }
    let mut batch = Vec::new();
    while units.blocking_recv_many(&mut batch, MOST_PER_COMMIT) > 0 {
        let outcome = commit(connection, path, &mut batch);
        if let Err(error) = &outcome {
            tracing::error!(%error, path = %path.display(), "commit failed");
        }
        for unit in batch.drain(..) {
            unit.answer(outcome.clone());
        }
    }
}

/// Commits a batch as one transaction. A unit that fails takes only its own changes back.
fn commit(connection: &Connection, path: &Path, batch: &mut [Box<dyn Unit>]) -> Result<()> {
    // Compiled once: a batch runs the same few statements around each of its units.
    let execute = |sql| {
        let statement = connection.prepare_cached(sql);
        let done = statement.and_then(|mut statement| statement.execute([]));
        done.map(drop).map_err(|e| explain(e, path))
    };
    execute("begin immediate")?;
    let done = (|| {
        for unit in batch {
            execute("savepoint unit")?;
            let kept = unit.run(connection);
            if connection.is_autocommit() {
                // Disk full and I/O errors end the whole transaction, not only this unit.
                return Err(StoreError::Full);
            }
            if !kept {
                execute("rollback to unit")?;
            }
            execute("release unit")?;
        }
        execute("commit")
    })();
    if done.is_err() && !connection.is_autocommit() {
        let _ = execute("rollback");
    }
    done
}
