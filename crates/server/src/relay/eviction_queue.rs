//! Connections of a container that have not shown a key. Their number is bounded: a new one evicts the
//! oldest, so that silent connections cannot keep others out.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct EvictionQueue {
    max: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next_number: u64,
    /// By the order in which they came.
    evictions: BTreeMap<u64, CancellationToken>,
}

/// A connection in the queue, until it is dropped.
#[derive(Debug)]
pub(super) struct Queued {
    queue: Arc<EvictionQueue>,
    number: u64,
    eviction: CancellationToken,
}

impl EvictionQueue {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            queue: Mutex::default(),
        })
    }

    pub(super) fn add(self: &Arc<Self>) -> Queued {
        let mut queue = self.queue.lock();
        if queue.evictions.len() >= self.max
            && let Some((_, oldest)) = queue.evictions.pop_first()
        {
            oldest.cancel();
        }
        let number = queue.next_number;
        queue.next_number += 1;
        let eviction = CancellationToken::new();
        queue.evictions.insert(number, eviction.clone());
        Queued {
            queue: self.clone(),
            number,
            eviction,
        }
    }
}

impl Queued {
    /// Cancelled when newer connections need the place.
    pub(super) fn eviction(&self) -> CancellationToken {
        self.eviction.clone()
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.queue.queue.lock().evictions.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_past_the_maximum_evicts_the_oldest() {
        let queue = EvictionQueue::new(10);
        let is_evicted = |connection: &Queued| connection.eviction.is_cancelled();
        let mut all: Vec<_> = (0..10).map(|_| queue.add()).collect();
        assert!(!all.iter().any(is_evicted));
        drop(all.remove(0));
        all.push(queue.add());
        assert!(!is_evicted(&all[0]), "one had left");
        let last = queue.add();
        assert!(is_evicted(&all[0]));
        assert!(!is_evicted(&all[1]) && !is_evicted(&last));
        drop(all);
        drop(last);
        assert!(queue.queue.lock().evictions.is_empty());
    }
}
