//! A pool of read-only connections, opened on demand.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;

use super::open::open_for_reading;
use crate::Result;

/// Connections beyond this number are closed after use.
const MAX_IDLE_CONNECTIONS: usize = 8;

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
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => open_for_reading(&self.path)?,
        };
        let result = work(&connection);
        // A connection that failed is closed: its state is unknown.
        if result.is_ok() {
            let mut idle = self.idle.lock();
            if idle.len() < MAX_IDLE_CONNECTIONS {
                idle.push(connection);
            }
        }
        result
    }
}
