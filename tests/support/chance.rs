//! Numbers that look random and can be drawn again: the seed is printed, and a failure is repeated
//! with `OUBLIETTE_TEST_SEED`.

use std::time::Duration;

const USUAL: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new() -> Self {
        let given = std::env::var("OUBLIETTE_TEST_SEED").ok();
        let seed = given.map_or(USUAL, |seed| seed.parse().expect("a seed is a number"));
        eprintln!("OUBLIETTE_TEST_SEED={seed}");
        Self(seed)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // Splitmix64.
        self.0 = self.0.wrapping_add(USUAL);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    pub fn within(&mut self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).unwrap();
        Duration::from_micros(self.below(micros))
    }
}

impl Default for Chance {
    fn default() -> Self {
        Self::new()
    }
}
