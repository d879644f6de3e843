//! Whether clients are using the server. A server that ends itself when it is idle asks this.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts connections that have shown a valid key: other processes do not keep a server running. Clones share their
/// counts.
#[derive(Debug, Clone, Default)]
pub struct ConnectionCounts {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    open: AtomicUsize,
}

/// Counts as open while it lives.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    counts: Arc<Counts>,
}

impl ConnectionCounts {
    pub(crate) fn begin(&self) -> OpenConnection {
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        self.counts.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection {
            counts: self.counts.clone(),
        }
    }

    /// How many connections have shown a key so far.
    pub fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::Relaxed)
    }

    /// How many of them are open.
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}
