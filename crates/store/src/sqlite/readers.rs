//! A few read-only connections, opened as needed and kept.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;

use super::open::open_for_reading;
use crate::Result;

/// More readers than this at once open a connection of their own and close it after.
const KEPT: usize = 8;

#[derive(Debug, Clone)]
pub(super) struct Readers {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: Arc::new(path.to_owned()),
            idle: Arc::default(),
        }
    }

    pub(super) fn with<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let kept = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let connection = match kept {
            Some(connection) => connection,
            None => open_for_reading(&self.path)?,
        };
        let result = work(&connection);
        // A connection that failed is not kept: its state is not known.
        if result.is_ok() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < KEPT {
                idle.push(connection);
            }
        }
        result
    }
}
