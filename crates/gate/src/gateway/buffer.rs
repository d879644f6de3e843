//! The memory of requests that are read before they are sent: each container has a share of what the gate may take.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::container::{ContainerGate, Gate};

/// Of all containers.
const MAX_GATE_KIB: usize = 512 << 10;
const MAX_CONTAINER_KIB: usize = 64 << 10;

/// Memory that can be taken, in KiB.
#[derive(Debug, Clone)]
pub(crate) struct BufferPool(Arc<Semaphore>);

impl BufferPool {
    pub(crate) fn of_gate() -> Self {
        Self(Arc::new(Semaphore::new(MAX_GATE_KIB)))
    }

    pub(crate) fn of_container() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CONTAINER_KIB)))
    }

    #[cfg(test)]
    pub(crate) fn free_kib(&self) -> usize {
        self.0.available_permits()
    }
}

/// The memory of one request, until it is dropped.
pub(crate) struct Buffered {
    pools: [BufferPool; 2],
    held: Vec<OwnedSemaphorePermit>,
    held_kib: usize,
}

impl Buffered {
    pub(crate) fn new(gate: &Gate, container: &ContainerGate) -> Self {
        Self {
            pools: [container.buffered.clone(), gate.gateway.buffered.clone()],
            held: Vec::new(),
            held_kib: 0,
        }
    }

    /// Takes what this many bytes need; returns whether there was room.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let needed = (bytes >> 10) + 1;
        let Ok(missing) = u32::try_from(needed.saturating_sub(self.held_kib)) else {
            return false;
        };
        if missing == 0 {
            return true;
        }
        for pool in &self.pools {
            let Ok(taken) = pool.0.clone().try_acquire_many_owned(missing) else {
                return false;
            };
            self.held.push(taken);
        }
        self.held_kib = needed;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(container: &BufferPool, gate: &BufferPool) -> Buffered {
        Buffered {
            pools: [container.clone(), gate.clone()],
            held: Vec::new(),
            held_kib: 0,
        }
    }

    #[test]
    fn a_container_leaves_room_for_others() {
        let gate = BufferPool::of_gate();
        let (one, two) = (BufferPool::of_container(), BufferPool::of_container());
        let mut held = Vec::new();
        for _ in 0..10 {
            let mut large = request(&one, &gate);
            if large.grow_to(16 << 20) {
                held.push(large);
            }
        }
        assert_eq!(held.len(), 3, "64 MiB without a byte more");
        let mut other = request(&two, &gate);
        assert!(other.grow_to(32 << 20) && other.grow_to(33 << 20) && other.grow_to(1));
        held.pop();
        assert!(request(&one, &gate).grow_to(16 << 20));
    }
}
