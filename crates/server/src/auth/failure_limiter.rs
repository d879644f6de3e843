//! Limits how many wrong keys one source, an address or a container, may show: a burst at once, then
//! one every few seconds.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const MAX_BURST_FAILURES: u32 = 20;
const REFILL_INTERVAL: Duration = Duration::from_secs(3);
/// Past this number, the half of the sources whose last failure is oldest is forgotten.
const MAX_TRACKED_SOURCES: usize = 10_000;

#[derive(Debug)]
pub(crate) struct FailureLimiter<Source> {
    buckets: Mutex<HashMap<Source, Bucket>>,
    total: AtomicU64,
}

impl<Source> Default for FailureLimiter<Source> {
    fn default() -> Self {
        Self {
            buckets: Mutex::default(),
            total: AtomicU64::default(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    spent: u32,
    refilled_at: Instant,
}

impl<Source: Eq + Hash> FailureLimiter<Source> {
    /// Records a failure. The error is how long to wait after too many.
    pub(crate) fn record(&self, source: Source, now: Instant) -> Result<(), Duration> {
        self.total.fetch_add(1, Ordering::Relaxed);
        let mut buckets = self.buckets.lock();
        if buckets.len() >= MAX_TRACKED_SOURCES && !buckets.contains_key(&source) {
            remove_older_half(&mut buckets);
        }
        let bucket = buckets.entry(source).or_insert(Bucket {
            spent: 0,
            refilled_at: now,
        });
        let intervals =
            now.duration_since(bucket.refilled_at).as_millis() / REFILL_INTERVAL.as_millis();
        let refilled = u32::try_from(intervals).map_or(bucket.spent, |n| n.min(bucket.spent));
        if refilled > 0 {
            bucket.spent -= refilled;
            bucket.refilled_at = now;
        }
        if bucket.spent >= MAX_BURST_FAILURES {
            return Err(REFILL_INTERVAL);
        }
        if bucket.spent == 0 {
            bucket.refilled_at = now;
        }
        bucket.spent += 1;
        Ok(())
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

fn remove_older_half<Source>(buckets: &mut HashMap<Source, Bucket>) {
    let mut times: Vec<Instant> = buckets.values().map(|bucket| bucket.refilled_at).collect();
    let middle = times.len() / 2;
    let median = *times.select_nth_unstable(middle).1;
    buckets.retain(|_, bucket| bucket.refilled_at > median);
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn failures_past_the_burst_are_limited_and_refill_with_time() {
        let failures = FailureLimiter::default();
        let address = IpAddr::from([127, 0, 0, 1]);
        let other_address = IpAddr::from([127, 0, 0, 2]);
        let start = Instant::now();
        for _ in 0..MAX_BURST_FAILURES {
            assert!(failures.record(address, start).is_ok());
        }
        assert!(failures.record(address, start).is_err());
        assert!(failures.record(other_address, start).is_ok());
        assert!(failures.record(address, start + REFILL_INTERVAL).is_ok());
        assert!(failures.record(address, start + REFILL_INTERVAL).is_err());
        assert_eq!(failures.total(), u64::from(MAX_BURST_FAILURES) + 4);
    }

    #[test]
    fn the_number_of_tracked_sources_is_bounded() {
        let failures = FailureLimiter::default();
        let start = Instant::now();
        for n in 0..30_000u32 {
            let address = IpAddr::from(n.to_be_bytes());
            let _ = failures.record(address, start + Duration::from_micros(n.into()));
        }
        assert!(failures.buckets.lock().len() <= MAX_TRACKED_SOURCES);
    }
}
