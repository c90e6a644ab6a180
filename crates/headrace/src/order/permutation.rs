//! A permutation of any size, computed number by number: for data of which any item is as cheap to read as the next.
//!
//! A Feistel network over as few bits as hold the size, walked along its cycle until it gives a number below it. See
//! "Permutation" in `docs/order.md`.

use std::ops::Range;

use super::draws::{Draws, Purpose};
use super::lanes::MOST_UNITS;
use crate::error::{Error, Result};

/// Rounds of the network. Evidence: with 8 of them, pairs of fewer than twenty items are not uniform; with 12 nothing is
/// seen in millions of them. Even, so that both halves are turned equally often. Part of the order: never change it.
const ROUNDS: usize = 12;

/// Numbers that go through the network side by side, so that a processor has something to do between two steps of one.
const ABREAST: usize = 64;

/// Numbers that are walked together: enough that those which have to go on fill the network again.
const BLOCK: usize = 1024;

/// A bijection on `0..size` that depends on size, seed and epoch alone.
#[derive(Debug, Clone)]
pub struct Permutation {
    size: u64,
    keys: [u32; ROUNDS],
    /// Bits of the upper half, and of the lower, which has as many or one less.
    bits: [u32; 2],
}

impl Permutation {
    /// The permutation of an epoch.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `size` is from 1 to 2^61.
    pub fn new(size: u64, seed: u64, epoch: u64) -> Result<Self> {
        if size == 0 || size > MOST_UNITS {
            return Err(Error::Argument(format!("a permutation is of 1 to 2^61 items, got {size}")));
        }
        let mut draws = Draws::new(seed, Purpose::Permutation, epoch, 0, 0);
        let bits = match u64::BITS - (size - 1).leading_zeros() {
            0 | 1 => 2,
            // With halves of two bits and one, twelve rounds do not make all orders equally likely.
            3 => 4,
            needed => needed,
        };
        Ok(Self { size, keys: std::array::from_fn(|_| draws.word()), bits: [bits.div_ceil(2), bits / 2] })
    }

    /// How many numbers are permuted.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What stands at `place`, which must be below the size.
    pub fn at(&self, place: u64) -> u64 {
        debug_assert!(place < self.size);
        let mut number = [place];
        loop {
            self.turn(&mut number);
            if number[0] < self.size {
                return number[0];
            }
        }
    }

    /// Appends what stands at `places`, in order.
    ///
    /// # Errors
    /// [`Error::Argument`] if they do not lie below the size.
    pub fn take(&self, places: Range<u64>, out: &mut Vec<i64>) -> Result<()> {
        let Range { start, end } = places;
        if start > end || end > self.size {
            let size = self.size;
            return Err(Error::Argument(format!("expected places of the {size} that there are, got {start}..{end}")));
        }
        let mut next = start;
        let mut walking = [(0, 0); BLOCK];
        while next < end {
            // (where it goes, the number so far); those that have arrived leave the front part.
            let mut count = (end - next).min(BLOCK as u64) as usize;
            for (index, walker) in walking[..count].iter_mut().enumerate() {
                *walker = (index, next + index as u64);
            }
            next += count as u64;
            let before = out.len();
            out.resize(before + count, 0);
            let out = &mut out[before..];
            while count > 0 {
                let mut on = 0;
                for first in (0..count).step_by(ABREAST) {
                    let last = count.min(first + ABREAST);
                    // A loop of known length is a faster one: what lies beyond goes along and is not looked at.
                    let mut numbers = [0; ABREAST];
                    for (number, walker) in numbers.iter_mut().zip(&walking[first..last]) {
                        *number = walker.1;
                    }
                    self.turn(&mut numbers);
                    for (at, &number) in (first..last).zip(&numbers) {
                        let index = walking[at].0;
                        if number < self.size {
                            out[index] = number as i64;
                        } else {
                            walking[on] = (index, number);
                            on += 1;
                        }
                    }
                }
                count = on;
            }
        }
        Ok(())
    }

    /// Sends numbers through the network once.
    fn turn<const N: usize>(&self, numbers: &mut [u64; N]) {
        let shift = self.bits[1];
        let [upper, lower] = self.bits.map(|bits| ((1_u64 << bits) - 1) as u32);
        let (mut high, mut low) = ([0; N], [0; N]);
        for i in 0..N {
            high[i] = (numbers[i] >> shift) as u32;
            low[i] = numbers[i] as u32 & lower;
        }
        for keys in self.keys.chunks_exact(2) {
            for i in 0..N {
                high[i] ^= mix(low[i] ^ keys[0]) & upper;
            }
            for i in 0..N {
                low[i] ^= mix(high[i] ^ keys[1]) & lower;
            }
        }
        for i in 0..N {
            numbers[i] = u64::from(high[i]) << shift | u64::from(low[i]);
        }
    }
}

/// The finaliser of MurmurHash3's 32-bit variant (Austin Appleby, public domain).
#[inline(always)]
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x85eb_ca6b);
    x ^= x >> 13;
    x = x.wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(size: u64, seed: u64, epoch: u64) -> Vec<i64> {
        let mut out = Vec::new();
        Permutation::new(size, seed, epoch).unwrap().take(0..size, &mut out).unwrap();
        out
    }

    #[test]
    fn every_small_size_is_permuted() {
        for size in (1..300).chain([1023, 1024, 1025, 65_535, 65_536, 65_537]) {
            let mut numbers = all(size, 1, 2);
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..size as i64), "{size}");
        }
    }

    #[test]
    fn the_largest_size_and_those_beyond() {
        let permutation = Permutation::new(1 << 61, 0, 0).unwrap();
        let mut out = Vec::new();
        permutation.take((1 << 61) - 2..1 << 61, &mut out).unwrap();
        assert!(out.iter().all(|&number| (0..1 << 61).contains(&number)) && out[0] != out[1]);
        assert!(permutation.take(0..(1 << 61) + 1, &mut out).is_err());
        assert!(permutation.take(Range { start: 2, end: 1 }, &mut out).is_err());
        assert!(Permutation::new(0, 0, 0).is_err());
        assert!(Permutation::new((1 << 61) + 1, 0, 0).is_err());
    }

    /// Chi-square over `cells` counts that should be equal, as the distance from its mean in standard deviations.
    fn deviation(counts: &[u64]) -> f64 {
        let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let chi: f64 = counts.iter().map(|&count| (count as f64 - mean).powi(2) / mean).sum();
        let freedom = counts.len() as f64 - 1.0;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn positions_and_pairs_are_uniform() {
        const SEEDS: u64 = 6_000;
        for size in [2, 3, 4, 5, 7, 8, 9, 16, 17, 31] {
            let n = size as usize;
            let (mut places, mut pairs, mut neighbours) = (vec![0; n * n], vec![0; n * n], vec![0; n]);
            for seed in 0..SEEDS {
                let numbers = all(size, seed, seed % 3);
                for (place, &number) in numbers.iter().enumerate() {
                    places[place * n + number as usize] += 1;
                }
                pairs[numbers[0] as usize * n + numbers[n - 1] as usize] += 1;
                neighbours[(numbers[1] - numbers[0]).rem_euclid(size as i64) as usize] += 1;
            }
            let unequal: Vec<u64> = (0..n * n).filter(|i| i / n != i % n).map(|i| pairs[i]).collect();
            // As many numbers stand at each place, so that the places together have (n - 1)^2 degrees of freedom.
            let freedom = ((n - 1) * (n - 1)) as f64;
            let mean = SEEDS as f64 / n as f64;
            let chi: f64 = places.iter().map(|&count| (count as f64 - mean).powi(2) / mean).sum();
            let places = (chi - freedom) / (2.0 * freedom).sqrt();
            assert!(places < 5.0, "places of {size}: {places}");
            let found = deviation(&unequal);
            assert!(found < 5.0, "pairs of {size}: {found}");
            let found = if n > 2 { deviation(&neighbours[1..]) } else { 0.0 };
            assert!(found < 5.0, "neighbours of {size}: {found}");
        }
    }

    /// `cargo test --release -p headrace permutation -- --ignored --nocapture`
    #[test]
    #[ignore = "measures"]
    #[allow(clippy::print_stderr, reason = "what it is for")]
    fn speed() {
        for size in [1 << 24, (1 << 24) + 1, 3 << 23] {
            let started = std::time::Instant::now();
            let numbers = all(size, 1, 0);
            eprintln!("{size}: {:.1} M/s", numbers.len() as f64 / started.elapsed().as_secs_f64() / 1e6);
        }
    }

    #[test]
    fn all_orders_of_four_are_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..12_000 {
            *counts.entry(all(4, seed, 0)).or_insert(0_u64) += 1;
        }
        let counts: Vec<u64> = counts.into_values().collect();
        assert_eq!(counts.len(), 24);
        assert!(deviation(&counts) < 5.0, "{counts:?}");
    }

    #[test]
    fn a_large_size_looks_random_along_its_places() {
        let size = 1_000_003;
        let numbers = all(size, 9, 0);
        // Sixteenths of the places against sixteenths of the numbers, and of each number against the next.
        let (mut cells, mut steps) = (vec![0; 256], vec![0; 256]);
        let part = |number: i64| (number as u64 * 16 / size) as usize;
        for (place, &number) in numbers.iter().enumerate() {
            cells[part(place as i64) * 16 + part(number)] += 1;
        }
        for pair in numbers.windows(2) {
            steps[part(pair[0]) * 16 + part(pair[1])] += 1;
        }
        assert!(deviation(&cells) < 4.0 && deviation(&steps) < 4.0, "{} {}", deviation(&cells), deviation(&steps));
        let fixed = numbers.iter().enumerate().filter(|(place, number)| *place as i64 == **number).count();
        assert!(fixed < 8, "{fixed} fixed points where one is expected");
    }

    proptest! {
        #[test]
        fn one_place_is_as_many(size in 1_u64..5000, seed: u64, epoch: u64, start in 0_u64..5000, len in 0_u64..300) {
            let (start, end) = (start.min(size), (start + len).min(size));
            let permutation = Permutation::new(size, seed, epoch).unwrap();
            let mut out = Vec::new();
            permutation.take(start..end, &mut out).unwrap();
            let single: Vec<i64> = (start..end).map(|place| permutation.at(place) as i64).collect();
            prop_assert_eq!(out, single);
        }

        #[test]
        fn it_is_a_bijection(size in 1_u64..20_000, seed: u64, epoch: u64) {
            let mut numbers = all(size, seed, epoch);
            numbers.sort_unstable();
            prop_assert!(numbers.into_iter().eq(0..size as i64));
        }

        #[test]
        fn seeds_epochs_and_sizes_differ(size in 30_u64..1000, seed: u64, epoch in 0_u64..1 << 63) {
            let own = all(size, seed, epoch);
            prop_assert!(own != all(size, seed ^ 1, epoch));
            prop_assert!(own != all(size, seed, epoch + 1));
        }
    }
}
