//! The connections of a container that are not authenticated yet. Their number is bounded: a new one
//! evicts the oldest, so that silent connections cannot keep others out.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Agents that start at the same time open three streams each.
const MAX_PENDING_CONNECTIONS: usize = 192;
/// Long lines that are read at once; each can have many megabytes.
const MAX_LONG_LINES: usize = 1;

#[derive(Debug)]
pub(super) struct PendingConnections {
    queue: Mutex<Queue>,
    /// A connection holds a permit while it reads a long line.
    pub(super) long_lines: Semaphore,
}

#[derive(Debug, Default)]
struct Queue {
    next_number: u64,
    /// By the order in which they came.
    evictions: BTreeMap<u64, CancellationToken>,
}

/// A pending connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Unauthenticated<'a> {
    pending: &'a PendingConnections,
    number: u64,
    eviction: CancellationToken,
}

impl Default for PendingConnections {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            long_lines: Semaphore::new(MAX_LONG_LINES),
        }
    }
}

impl PendingConnections {
    pub(super) fn add(&self) -> Unauthenticated<'_> {
        let mut queue = self.queue.lock();
        if queue.evictions.len() >= MAX_PENDING_CONNECTIONS
            && let Some((_, oldest)) = queue.evictions.pop_first()
        {
            oldest.cancel();
        }
        let number = queue.next_number;
        queue.next_number += 1;
        let eviction = CancellationToken::new();
        queue.evictions.insert(number, eviction.clone());
        Unauthenticated {
            pending: self,
            number,
            eviction,
        }
    }
}

impl Unauthenticated<'_> {
    /// Returns when newer connections need the place.
    pub(super) async fn evicted(&self) {
        self.eviction.cancelled().await;
    }
}

impl Drop for Unauthenticated<'_> {
    fn drop(&mut self) {
        self.pending.queue.lock().evictions.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_past_the_maximum_evicts_the_oldest() {
        let pending = PendingConnections::default();
        let is_evicted = |connection: &Unauthenticated| connection.eviction.is_cancelled();
        let mut all: Vec<_> = (0..MAX_PENDING_CONNECTIONS)
            .map(|_| pending.add())
            .collect();
        assert!(!all.iter().any(is_evicted));
        drop(all.remove(0));
        all.push(pending.add());
        assert!(!is_evicted(&all[0]), "one had left");
        let last = pending.add();
        assert!(is_evicted(&all[0]));
        assert!(!is_evicted(&all[1]) && !is_evicted(&last));
        drop(all);
        drop(last);
        assert!(pending.queue.lock().evictions.is_empty());
    }
}
