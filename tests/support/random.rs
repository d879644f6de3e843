//! Random numbers that can be repeated: a test that fails shows its seed, and `OUBLIETTE_TEST_SEED`
//! repeats it.

use std::time::Duration;

const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A new sequence each time, unless `OUBLIETTE_TEST_SEED` is set.
    pub fn new() -> Self {
        Self(oubliette_test_harness::seed(None))
    }

    /// The same sequence each time, unless `OUBLIETTE_TEST_SEED` is set.
    pub fn repeatable() -> Self {
        Self(oubliette_test_harness::seed(Some(INCREMENT)))
    }

    /// The sequence of a seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // Splitmix64.
        self.0 = self.0.wrapping_add(INCREMENT);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    /// A duration below `limit`.
    pub fn duration_below(&mut self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).unwrap();
        Duration::from_micros(self.below(micros.max(1)))
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
