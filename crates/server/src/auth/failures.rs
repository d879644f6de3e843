//! How many wrong keys an address may try: a handful at once, then one every few seconds.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const BURST: u32 = 20;
const REFILL: Duration = Duration::from_secs(3);
/// Addresses remembered at once. When more fail, those whose last failure is longest ago go.
const REMEMBERED: usize = 10_000;

/// Failures by whatever an address is: of the network, or a container.
#[derive(Debug)]
pub(crate) struct Failures<A> {
    by_address: Mutex<HashMap<A, Bucket>>,
    total: AtomicU64,
}

impl<A> Default for Failures<A> {
    fn default() -> Self {
        Self {
            by_address: Mutex::default(),
            total: AtomicU64::default(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    spent: u32,
    since: Instant,
}

impl<A: Eq + Hash> Failures<A> {
    /// Counts a failure; how long to wait if there have been too many.
    pub(crate) fn count(&self, address: A, now: Instant) -> Result<(), Duration> {
        self.total.fetch_add(1, Ordering::Relaxed);
        let mut buckets = self
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= REMEMBERED && !buckets.contains_key(&address) {
            make_room(&mut buckets);
        }
        let bucket = buckets.entry(address).or_insert(Bucket {
            spent: 0,
            since: now,
        });
        let healed = now.duration_since(bucket.since).as_millis() / REFILL.as_millis();
        let healed = u32::try_from(healed).unwrap_or(u32::MAX).min(bucket.spent);
        if healed > 0 {
            bucket.spent -= healed;
            bucket.since = now;
        }
        if bucket.spent >= BURST {
            return Err(REFILL);
        }
        if bucket.spent == 0 {
            bucket.since = now;
        }
        bucket.spent += 1;
        Ok(())
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

fn make_room<A>(buckets: &mut HashMap<A, Bucket>) {
    let mut ages: Vec<Instant> = buckets.values().map(|bucket| bucket.since).collect();
    let middle = ages.len() / 2;
    let (_, median, _) = ages.select_nth_unstable(middle);
    let median = *median;
    buckets.retain(|_, bucket| bucket.since > median);
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_flood_is_slowed_and_forgiven_with_time() {
        let failures = Failures::default();
        let address = IpAddr::from([127, 0, 0, 1]);
        let start = Instant::now();
        for _ in 0..BURST {
            assert!(failures.count(address, start).is_ok());
        }
        assert!(failures.count(address, start).is_err());
        assert!(failures.count(IpAddr::from([127, 0, 0, 2]), start).is_ok());
        assert!(failures.count(address, start + REFILL).is_ok());
        assert!(failures.count(address, start + REFILL).is_err());
        assert_eq!(failures.total(), u64::from(BURST) + 4);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let failures = Failures::default();
        let start = Instant::now();
        for n in 0..30_000u32 {
            let address = IpAddr::from(n.to_be_bytes());
            let _ = failures.count(address, start + Duration::from_micros(n.into()));
        }
        assert!(failures.by_address.lock().unwrap().len() <= REMEMBERED);
    }
}
