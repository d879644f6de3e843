//! The limits of HTTP connections. A connection that has not shown a valid key is pending: when too
//! many are, the oldest makes room for the newest. With a key, it counts for its token, and no token
//! can use the places of all others.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oubliette_model::{Scope, TokenId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ServerSettings;
use crate::connection_counts::{ConnectionCounts, OpenConnection};

/// A pending connection is not evicted before this age: many honest ones may arrive at once.
const MIN_EVICTION_AGE: Duration = Duration::from_millis(250);
/// Request bodies of unknown or large size that one token's connections read at once.
const MAX_LARGE_BODIES_PER_TOKEN: usize = 8;

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    Network(IpAddr),
    /// The socket in the data directory.
    Local,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Local => f.write_str("local"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ConnectionLimits {
    pending_permits: Arc<Semaphore>,
    pending: Mutex<Pending>,
    shares: Mutex<Shares>,
    max_authenticated: usize,
    /// Of those, the ones that only admin tokens can use.
    kept_for_admins: usize,
    max_per_token: usize,
    counts: ConnectionCounts,
}

#[derive(Debug, Default)]
struct Pending {
    next_number: u64,
    by_address: HashMap<IpAddr, BTreeMap<u64, PendingEntry>>,
}

#[derive(Debug)]
struct PendingEntry {
    since: Instant,
    eviction: CancellationToken,
}

#[derive(Debug, Default)]
struct Shares {
    total: usize,
    by_token: HashMap<TokenId, Share>,
}

#[derive(Debug)]
struct Share {
    connections: usize,
    large_bodies: Arc<Semaphore>,
}

/// Why a connection cannot count for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The token has as many connections as it may have.
    Token(usize),
    /// All tokens together have.
    Server,
}

impl ConnectionLimits {
    pub(crate) fn new(settings: &ServerSettings, counts: ConnectionCounts) -> Arc<Self> {
        let max_pending = (settings.max_connections / 4).max(1);
        let max_authenticated = settings.max_connections.saturating_sub(max_pending).max(1);
        Arc::new(Self {
            pending_permits: Arc::new(Semaphore::new(max_pending)),
            pending: Mutex::default(),
            shares: Mutex::default(),
            max_authenticated,
            kept_for_admins: settings.max_connections / 16,
            max_per_token: settings.max_connections_per_token.max(1),
            counts,
        })
    }

    /// Takes a place for a new connection, if need be that of a pending one: the oldest from the address
    /// that has most of them.
    pub(crate) async fn admit(self: &Arc<Self>, address: IpAddr) -> Arc<Connection> {
        let permit = loop {
            if let Ok(permit) = self.pending_permits.clone().try_acquire_owned() {
                break Some(permit);
            }
            let Some(oldest) = self.pending.lock().next_eviction() else {
                break self.pending_permits.clone().acquire_owned().await.ok();
            };
            tokio::select! {
                permit = self.pending_permits.clone().acquire_owned() => break permit.ok(),
                () = tokio::time::sleep_until(oldest) => {}
            }
            if self.pending.lock().evict_one() {
                break self.pending_permits.clone().acquire_owned().await.ok();
            }
        };
        let eviction = CancellationToken::new();
        let number = self.pending.lock().add(address, eviction.clone());
        Arc::new(Connection {
            origin: Origin::Network(address),
            place: Mutex::new(Place::Pending {
                limits: self.clone(),
                address,
                number,
                _permit: permit,
            }),
            eviction,
            counts: self.counts.clone(),
            open: OnceLock::new(),
        })
    }

    fn take_share(self: &Arc<Self>, token: TokenId, scope: Scope) -> Result<TokenPlace, Refusal> {
        let mut shares = self.shares.lock();
        let max = match scope {
            Scope::Admin => self.max_authenticated,
            _ => self.max_authenticated.saturating_sub(self.kept_for_admins),
        };
        if shares.total >= max {
            return Err(Refusal::Server);
        }
        let share = shares.by_token.entry(token).or_default();
        if share.connections >= self.max_per_token {
            return Err(Refusal::Token(self.max_per_token));
        }
        share.connections += 1;
        let large_bodies = share.large_bodies.clone();
        shares.total += 1;
        Ok(TokenPlace {
            limits: self.clone(),
            token,
            large_bodies,
        })
    }
}

impl Pending {
    fn add(&mut self, address: IpAddr, eviction: CancellationToken) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let entry = PendingEntry {
            since: Instant::now(),
            eviction,
        };
        let of_address = self.by_address.entry(address).or_default();
        of_address.insert(number, entry);
        number
    }

    fn remove(&mut self, address: IpAddr, number: u64) {
        if let Some(of_address) = self.by_address.get_mut(&address) {
            of_address.remove(&number);
            if of_address.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }

    /// The connection to evict next.
    fn oldest(&self) -> Option<(IpAddr, u64)> {
        let (address, most) = self.by_address.iter().max_by_key(|(_, all)| all.len())?;
        most.first_key_value()
            .map(|(number, _)| (*address, *number))
    }

    /// When the next connection may be evicted.
    fn next_eviction(&self) -> Option<Instant> {
        let (address, number) = self.oldest()?;
        let entry = self.by_address.get(&address)?.get(&number)?;
        Some(entry.since + MIN_EVICTION_AGE)
    }

    /// Evicts a connection that is old enough; whether there was one.
    fn evict_one(&mut self) -> bool {
        let Some((address, number)) = self.oldest() else {
            return false;
        };
        let entry = self
            .by_address
            .get(&address)
            .and_then(|all| all.get(&number));
        let Some(entry) = entry.filter(|entry| entry.since.elapsed() >= MIN_EVICTION_AGE) else {
            return false;
        };
        entry.eviction.cancel();
        self.remove(address, number);
        true
    }
}

impl Default for Share {
    fn default() -> Self {
        Self {
            connections: 0,
            large_bodies: Arc::new(Semaphore::new(MAX_LARGE_BODIES_PER_TOKEN)),
        }
    }
}

/// An open connection and the place it takes. Requests carry it in their extensions.
#[derive(Debug)]
pub(crate) struct Connection {
    origin: Origin,
    place: Mutex<Place>,
    eviction: CancellationToken,
    counts: ConnectionCounts,
    /// From the first valid key on.
    open: OnceLock<OpenConnection>,
}

#[derive(Debug)]
enum Place {
    Pending {
        limits: Arc<ConnectionLimits>,
        address: IpAddr,
        number: u64,
        _permit: Option<OwnedSemaphorePermit>,
    },
    Token(TokenPlace),
    /// Connections of the local socket have their own bound.
    Local,
}

#[derive(Debug)]
struct TokenPlace {
    limits: Arc<ConnectionLimits>,
    token: TokenId,
    large_bodies: Arc<Semaphore>,
}

impl Connection {
    pub(crate) fn local(counts: ConnectionCounts) -> Arc<Self> {
        Arc::new(Self {
            origin: Origin::Local,
            place: Mutex::new(Place::Local),
            eviction: CancellationToken::new(),
            counts,
            open: OnceLock::new(),
        })
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn is_local(&self) -> bool {
        self.origin == Origin::Local
    }

    /// Returns when a newer connection needs the place.
    pub(crate) async fn evicted(&self) {
        self.eviction.cancelled().await;
    }

    /// Counts the connection for the token that its newest request came with, and as use of the server.
    pub(crate) fn assign(&self, token: TokenId, scope: Scope) -> Result<(), Refusal> {
        self.open.get_or_init(|| self.counts.begin());
        let mut place = self.place.lock();
        let limits = match &*place {
            Place::Local => return Ok(()),
            Place::Token(own) if own.token == token => return Ok(()),
            Place::Token(other) => other.limits.clone(),
            Place::Pending { limits, .. } => limits.clone(),
        };
        *place = Place::Token(limits.take_share(token, scope)?);
        Ok(())
    }

    /// A permit to read a large body; none if the connection needs none.
    pub(crate) async fn large_body(&self) -> Option<OwnedSemaphorePermit> {
        let permits = match &*self.place.lock() {
            Place::Token(place) => place.large_bodies.clone(),
            Place::Pending { .. } | Place::Local => return None,
        };
        permits.acquire_owned().await.ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Pending {
            limits,
            address,
            number,
            ..
        } = self
        {
            limits.pending.lock().remove(*address, *number);
        }
    }
}

impl Drop for TokenPlace {
    fn drop(&mut self) {
        let mut shares = self.limits.shares.lock();
        shares.total = shares.total.saturating_sub(1);
        if let Some(share) = shares.by_token.get_mut(&self.token) {
            share.connections = share.connections.saturating_sub(1);
            if share.connections == 0 {
                shares.by_token.remove(&self.token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt;
    use oubliette_model::Mode;

    use super::*;

    fn limits(max_connections: usize, max_connections_per_token: usize) -> Arc<ConnectionLimits> {
        ConnectionLimits::new(
            &ServerSettings {
                max_connections,
                max_connections_per_token,
                ..ServerSettings::default()
            },
            ConnectionCounts::default(),
        )
    }

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn token(n: u128) -> TokenId {
        TokenId::new(uuid::Uuid::from_u128(n))
    }

    fn project() -> Scope {
        Scope::Project(
            oubliette_model::ProjectId::new(uuid::Uuid::from_u128(1)),
            Mode::Read,
        )
    }

    fn is_evicted(connection: &Connection) -> bool {
        connection.eviction.is_cancelled()
    }

    #[tokio::test]
    async fn the_oldest_pending_connection_of_the_busiest_address_makes_room() {
        let limits = limits(16, 4);
        let quiet = limits.admit(address(1)).await;
        let busy = [
            limits.admit(address(2)).await,
            limits.admit(address(2)).await,
            limits.admit(address(2)).await,
        ];
        // Waits until the oldest may be evicted, and then for its end.
        let waiting = limits.clone();
        let next = tokio::spawn(async move { waiting.admit(address(3)).await });
        busy[0].evicted().await;
        assert!(!is_evicted(&quiet) && !is_evicted(&busy[1]));
        drop(busy);
        let next = next.await.unwrap();
        assert!(!is_evicted(&next));
        drop((quiet, next));
        assert!(limits.pending.lock().by_address.is_empty());
    }

    #[tokio::test]
    async fn a_token_has_a_share_and_the_last_places_are_for_admins() {
        // 4 pending, 12 authenticated, 1 of these for admins.
        let limits = limits(16, 8);
        let mut open = Vec::new();
        for n in 0..12 {
            let connection = limits.admit(address(1)).await;
            let token = token(if n < 9 { 1 } else { 2 });
            let refusal = connection.assign(token, project()).err();
            assert_eq!(refusal, (n == 8).then_some(Refusal::Token(8)), "{n}");
            if refusal.is_none() {
                // A later request of the same token takes no second place.
                connection.assign(token, project()).unwrap();
                open.push(connection);
            }
        }
        assert_eq!(open.len(), 11);
        let last = limits.admit(address(1)).await;
        assert_eq!(last.assign(token(3), project()), Err(Refusal::Server));
        last.assign(token(4), Scope::Admin).unwrap();
        let more = limits.admit(address(1)).await;
        assert_eq!(more.assign(token(4), Scope::Admin), Err(Refusal::Server));
        open.clear();
        more.assign(token(3), project()).unwrap();
        drop((last, more));
        assert_eq!(limits.shares.lock().total, 0);
        assert!(limits.shares.lock().by_token.is_empty());
    }

    #[tokio::test]
    async fn a_token_reads_few_large_bodies_at_once_whatever_connections_it_has() {
        let limits = limits(64, 32);
        let mut open = Vec::new();
        for _ in 0..=MAX_LARGE_BODIES_PER_TOKEN {
            let connection = limits.admit(address(1)).await;
            connection.assign(token(1), project()).unwrap();
            open.push(connection);
        }
        let last = open.pop().unwrap();
        let mut reading = Vec::new();
        for connection in &open {
            reading.push(connection.large_body().now_or_never().unwrap().unwrap());
        }
        let mut ninth = Box::pin(last.large_body());
        assert!(ninth.as_mut().now_or_never().is_none(), "it does not wait");
        // Another token has its own, and the local socket needs none.
        let other = limits.admit(address(1)).await;
        other.assign(token(2), project()).unwrap();
        assert!(other.large_body().now_or_never().unwrap().is_some());
        let local = Connection::local(ConnectionCounts::default())
            .large_body()
            .now_or_never();
        assert!(local.unwrap().is_none());
        reading.pop();
        assert!(ninth.now_or_never().unwrap().is_some());
    }
}
