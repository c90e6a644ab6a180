//! Counter-based random numbers: ChaCha8, keyed by what they are for.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::ORDER_VERSION;

/// What a stream of random numbers is for. The numbers are part of the order: never change them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The order of the chunks of a pass.
    Chunks = 1,
    /// The order of the pieces of a slice.
    Pieces = 2,
    /// The keys of a permutation's rounds.
    Permutation = 3,
    /// Where the lanes of a mixture begin.
    Mixture = 4,
}

/// A stream of random numbers that depends on its key alone.
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// The stream for one purpose in one window of one lane (see `docs/order.md` for the key's layout).
    pub fn new(seed: u64, purpose: Purpose, epoch: u64, window: u64, lane: u64) -> Self {
        let mut key = [0; 32];
        key[0..8].copy_from_slice(&seed.to_le_bytes());
        key[8..12].copy_from_slice(&ORDER_VERSION.to_le_bytes());
        key[12..16].copy_from_slice(&(purpose as u32).to_le_bytes());
        key[16..24].copy_from_slice(&epoch.to_le_bytes());
        key[24..32].copy_from_slice(&window.to_le_bytes());
        let mut words = ChaCha8Rng::from_seed(key);
        words.set_stream(lane);
        Self(words)
    }

    /// The next word.
    pub fn word(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// A uniform number in `0..n`, by Lemire's method (ACM Trans. Model. Comput. Simul. 29(1), 2019): unbiased.
    ///
    /// `n` must not be 0.
    pub fn below(&mut self, n: u32) -> u32 {
        debug_assert!(n > 0);
        let threshold = n.wrapping_neg() % n;
        loop {
            let product = u64::from(self.0.next_u32()) * u64::from(n);
            if product as u32 >= threshold {
                return (product >> 32) as u32;
            }
        }
    }

    /// Puts `items` in a uniformly random order (Fisher and Yates, from the end). At most `u32::MAX` items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// draft-strombergson-chacha-test-vectors-01, TC1: zero key, zero IV, 8 rounds, 256 bits.
    #[test]
    fn the_words_are_chacha8() {
        let mut rng = ChaCha8Rng::from_seed([0; 32]);
        let words: Vec<u32> = (0..4).map(|_| rng.next_u32()).collect();
        assert_eq!(words, [0x2fef_003e, 0xd640_5f89, 0xe8b8_5b7f, 0xa1a5_091f]);
    }

    #[test]
    fn every_part_of_the_key_counts() {
        let first = |seed, purpose, epoch, window, lane| Draws::new(seed, purpose, epoch, window, lane).0.next_u64();
        let all = [
            first(0, Purpose::Chunks, 0, 0, 0),
            first(1, Purpose::Chunks, 0, 0, 0),
            first(u64::MAX, Purpose::Chunks, 0, 0, 0),
            first(0, Purpose::Pieces, 0, 0, 0),
            first(0, Purpose::Permutation, 0, 0, 0),
            first(0, Purpose::Chunks, 1, 0, 0),
            first(0, Purpose::Chunks, 0, 1, 0),
            first(0, Purpose::Chunks, 0, 0, 1),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut draws = Draws::new(7, Purpose::Chunks, 0, 0, 0);
        let mut seen = [0_u32; 5];
        for _ in 0..5000 {
            seen[draws.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
        assert_eq!(draws.below(1), 0);
    }
}
