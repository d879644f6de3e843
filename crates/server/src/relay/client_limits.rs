//! The limits that the clients of one container share. Those that are attached to a session have limits
//! of their own, which no other process in the container can use up.

use std::collections::HashMap;
use std::sync::Arc;

use oubliette_model::SessionId;
use oubliette_wire::{RpcError, codes};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::eviction_queue::{EvictionQueue, Queued};
use super::replies::MAX_UNREAD_KIB_PER_CONTAINER;

/// Connections that are attached to a session. Fewer than the listener accepts: the supervisor always gets
/// a connection.
const MAX_ATTACHED_CONNECTIONS: usize = 256;
const MAX_CONNECTIONS_PER_SESSION: usize = 16;
/// Connections that have shown no session's key; a new one evicts the oldest.
const MAX_UNATTACHED_CONNECTIONS: usize = 64;
const MAX_IN_FLIGHT_ATTACHED: usize = 512;
const MAX_IN_FLIGHT_UNATTACHED: usize = 128;
const MAX_REQUEST_KIB_ATTACHED: usize = 64 << 10;
/// More than the longest line has.
const MAX_REQUEST_KIB_UNATTACHED: usize = 32 << 10;
const MAX_LONG_LINES_ATTACHED: usize = 4;
const MAX_LONG_LINES_UNATTACHED: usize = 1;

#[derive(Debug)]
pub(super) struct ClientLimits {
    unattached_connections: Arc<EvictionQueue>,
    attached_connections: Mutex<HashMap<SessionId, usize>>,
    unattached: RequestLimits,
    attached: RequestLimits,
}

/// The limits of requests and replies.
#[derive(Debug)]
pub(super) struct RequestLimits {
    in_flight: Arc<Semaphore>,
    request_kib: Arc<Semaphore>,
    pub(super) long_lines: Arc<Semaphore>,
    pub(super) unread_kib: Arc<Semaphore>,
}

/// A request's share of the limits until its reply is queued.
pub(super) struct RequestPermits {
    _permits: [OwnedSemaphorePermit; 3],
}

impl Default for ClientLimits {
    fn default() -> Self {
        let unread_kib = MAX_UNREAD_KIB_PER_CONTAINER;
        Self {
            unattached_connections: EvictionQueue::new(MAX_UNATTACHED_CONNECTIONS),
            attached_connections: Mutex::default(),
            unattached: RequestLimits {
                in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT_UNATTACHED)),
                request_kib: Arc::new(Semaphore::new(MAX_REQUEST_KIB_UNATTACHED)),
                long_lines: Arc::new(Semaphore::new(MAX_LONG_LINES_UNATTACHED)),
                unread_kib: Arc::new(Semaphore::new(unread_kib)),
            },
            attached: RequestLimits {
                in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT_ATTACHED)),
                request_kib: Arc::new(Semaphore::new(MAX_REQUEST_KIB_ATTACHED)),
                long_lines: Arc::new(Semaphore::new(MAX_LONG_LINES_ATTACHED)),
                unread_kib: Arc::new(Semaphore::new(unread_kib)),
            },
        }
    }
}

impl RequestLimits {
    /// Waits until a request may run; `own_in_flight` is the limit of its connection.
    pub(super) async fn acquire(
        &self,
        own_in_flight: &Arc<Semaphore>,
        line_bytes: usize,
    ) -> Option<RequestPermits> {
        let kib = u32::try_from(line_bytes / 1024 + 1).ok()?;
        let own = own_in_flight.clone().acquire_owned().await.ok()?;
        let container = self.in_flight.clone().acquire_owned().await.ok()?;
        let request_kib = self.request_kib.clone();
        let bytes = request_kib.acquire_many_owned(kib).await.ok()?;
        Some(RequestPermits {
            _permits: [own, container, bytes],
        })
    }
}

/// The place of a connection among those of its container, until it is dropped.
#[derive(Debug)]
pub(super) struct ClientPlace {
    limits: Arc<ClientLimits>,
    kind: PlaceKind,
}

#[derive(Debug)]
enum PlaceKind {
    Unattached(#[expect(dead_code, reason = "its drop is what matters")] Queued),
    Attached(SessionId),
}

impl ClientPlace {
    /// The place of a connection that is not attached yet. It is cancelled when a newer one needs it, and
    /// never once it is attached.
    pub(super) fn take(limits: &Arc<ClientLimits>) -> (Self, CancellationToken) {
        let queued = limits.unattached_connections.add();
        let eviction = queued.eviction();
        let place = Self {
            limits: limits.clone(),
            kind: PlaceKind::Unattached(queued),
        };
        (place, eviction)
    }

    pub(super) fn limits(&self) -> &RequestLimits {
        match self.kind {
            PlaceKind::Unattached(_) => &self.limits.unattached,
            PlaceKind::Attached(_) => &self.limits.attached,
        }
    }

    /// Takes one of the places of attached connections instead.
    pub(super) fn attach(&mut self, session: SessionId) -> Result<(), RpcError> {
        if let PlaceKind::Attached(_) = self.kind {
            return Ok(());
        }
        let mut attached = self.limits.attached_connections.lock();
        let own = attached.get(&session).copied().unwrap_or(0);
        let all: usize = attached.values().sum();
        let whose = if own >= MAX_CONNECTIONS_PER_SESSION {
            "session"
        } else if all >= MAX_ATTACHED_CONNECTIONS {
            "container"
        } else {
            attached.insert(session, own + 1);
            drop(attached);
            self.kind = PlaceKind::Attached(session);
            return Ok(());
        };
        let message = format!("too many connections from this {whose}; close some");
        Err(RpcError::new(codes::FAILED, message))
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let PlaceKind::Attached(session) = self.kind else {
            return;
        };
        let mut attached = self.limits.attached_connections.lock();
        if let Some(own) = attached.get_mut(&session) {
            *own -= 1;
            if *own == 0 {
                attached.remove(&session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(n: u128) -> SessionId {
        SessionId::new(uuid::Uuid::from_u128(n))
    }

    #[test]
    fn unattached_connections_evict_each_other_and_no_attached_one() {
        let limits = Arc::new(ClientLimits::default());
        let (mut attached, attached_eviction) = ClientPlace::take(&limits);
        attached.attach(session(1)).unwrap();
        let (_first, first_eviction) = ClientPlace::take(&limits);
        let others: Vec<_> = (0..MAX_UNATTACHED_CONNECTIONS)
            .map(|_| ClientPlace::take(&limits))
            .collect();
        assert!(first_eviction.is_cancelled());
        assert!(others.iter().all(|(_, eviction)| !eviction.is_cancelled()));
        assert!(!attached_eviction.is_cancelled());
    }

    #[test]
    fn one_session_cannot_take_the_places_of_all() {
        let limits = Arc::new(ClientLimits::default());
        let mut places = Vec::new();
        for n in 0..=MAX_CONNECTIONS_PER_SESSION {
            let (mut place, _) = ClientPlace::take(&limits);
            assert_eq!(
                place.attach(session(1)).is_ok(),
                n < MAX_CONNECTIONS_PER_SESSION
            );
            places.push(place);
        }
        let (mut other, _) = ClientPlace::take(&limits);
        other.attach(session(2)).unwrap();
        drop(places);
        drop(other);
        assert!(limits.attached_connections.lock().is_empty());
    }
}
