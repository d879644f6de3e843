//! The embedded store: one SQLite file in WAL mode, one writer thread, group commit.
//!
//! `synchronous=FULL` is required: an acknowledged write must survive a power loss.

mod audit;
mod backup;
mod callers;
mod calls;
mod charges;
mod checkpoints;
mod containers;
mod convert;
mod events;
mod mcp_sessions;
mod open;
mod projects;
mod readers;
mod schedules;
mod sessions;
mod tokens;
mod workspaces;
mod writer;

use std::path::Path;

use rusqlite::Connection;

pub use backup::{ContainerOwner, backup, container_owners, verify};

use crate::Result;
use readers::Readers;
use writer::Writer;

/// The store in one SQLite file.
#[derive(Debug)]
pub struct Sqlite {
    writer: Writer,
    readers: Readers,
}

impl Sqlite {
    /// Opens the store, creates it if the file does not exist, and migrates an older format. A
    /// damaged, foreign or newer file is refused and not changed.
    pub fn open(path: &Path) -> Result<Self> {
        let connection = open::open_for_writing(path)?;
        Ok(Self {
            writer: Writer::start(connection, path)?,
            readers: Readers::new(path),
        })
    }

    /// Runs `work` in a transaction of the writer and returns when it is durable. If `work` fails,
    /// its changes are rolled back.
    async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        self.writer.write(work).await
    }

    /// Like [`Sqlite::write`], for what may delete or replace secrets: nothing of them stays in the files.
    async fn write_and_purge<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        self.writer.write_and_purge(work).await
    }

    /// Reads a few rows on the calling thread: a point read from the page cache takes a few
    /// microseconds, less than a switch to another thread.
    fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.readers.with(work)
    }

    /// Reads many rows on the pool of blocking threads.
    async fn read_blocking<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let readers = self.readers.clone();
        tokio::task::spawn_blocking(move || readers.with(work))
            .await
            .map_err(crate::StoreError::failed)?
    }
}

#[cfg(test)]
mod tests;
