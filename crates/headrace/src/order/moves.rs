//! Where the lanes of a mixture lie on its circle, and how far they move from one row to the next.
//!
//! Lanes at equal distances are as one lane on a circle of their distance: b of them that move by A err like one that
//! moves by b * A on the whole circle. So A has to be such that a lane errs little, and all lanes do, and a rank's part
//! of them. Any of [`candidates`] is right for a lane, as its continued fraction has small terms; which one is best for
//! blocks of lanes is found by looking at what they err ([`Sums::excess`]).
//!
//! Not here: what lies on the circle ([`super::mixture`]).

/// M, the points of the circle: 2^48. A weight is rounded to a whole number of them: over 2^40 rows that is less than
/// a hundredth of a row.
pub const POINTS: u64 = 1 << 48;
/// The terms of a candidate's continued fraction that are not all 1, and how large they may be: with these a lane is
/// within 8 rows over a million.
const TERMS: u32 = 7;
const LARGEST_TERM: u64 = 3;
/// Two Fibonacci numbers, of which the quotient is that of the terms that are all 1, 60 of them.
const LATER_TERMS: (u64, u64) = (2_504_730_781_961, 1_548_008_755_920);
/// Batches of up to 2^10 rounds are looked at.
const DOUBLINGS: usize = 10;
/// All lanes together are the batches of every rank, and count more than a rank's part of them.
const WEIGHT_OF_ALL: i64 = 2;

/// The place of each lane among N places, so that neighbouring lanes lie far apart: its digits in reverse, where the
/// lowest ones are to the odd prime factors of N, the largest first, and the others to 2. Aligned blocks of as many
/// lanes as the product of the first few digits' bases lie at equal distances.
pub fn spread(lanes: u64) -> impl Iterator<Item = u64> {
    let bases = bases(lanes);
    (0..lanes).map(move |lane| {
        let (mut rest, mut unit, mut place) = (lane, lanes, 0);
        for base in &bases {
            unit /= base;
            place += rest % base * unit;
            rest /= base;
        }
        place
    })
}

/// How many lanes the aligned blocks have that lie at equal distances, from 1 to all.
pub fn even_blocks(lanes: u64) -> Vec<u64> {
    let products = bases(lanes).into_iter().scan(1, |size, base| {
        *size *= base;
        Some(*size)
    });
    std::iter::once(1).chain(products).collect()
}

/// The prime factors of a number, the largest first.
fn bases(number: u64) -> Vec<u64> {
    let (mut rest, mut factors, mut factor) = (number, Vec::new(), 2);
    while factor * factor <= rest {
        while rest.is_multiple_of(factor) {
            factors.push(factor);
            rest /= factor;
        }
        factor += 1;
    }
    factors.extend((rest > 1).then_some(rest));
    factors.reverse();
    factors
}

/// The move of lanes of which aligned blocks of the given sizes lie at equal distances. The last block is all of them.
pub fn best_move(blocks: &[u64]) -> u64 {
    let (mut best, mut least) = (0, i64::MAX);
    for candidate in candidates() {
        let mut most = 0;
        for (&lanes, weight) in blocks.iter().rev().zip(std::iter::once(WEIGHT_OF_ALL).chain(std::iter::repeat(1))) {
            most = most.max(weight * growth(times(candidate, lanes), least / weight));
            if most >= least {
                break;
            }
        }
        if most < least {
            (best, least) = (candidate, most);
        }
    }
    best
}

/// A move on the circle of some lanes' distance, as one on the whole circle.
fn times(one: u64, lanes: u64) -> u64 {
    (u128::from(one) * u128::from(lanes) % u128::from(POINTS)) as u64
}

/// Moves by numbers whose continued fraction has small terms, and only ones from a term on. They are odd, so that a
/// lane comes to every point.
fn candidates() -> impl Iterator<Item = u64> {
    (0..LARGEST_TERM.pow(TERMS)).map(|number| {
        // Terms are put before those that there are, so the last one comes first.
        let terms = (0..TERMS).rev().map(|place| 1 + number / LARGEST_TERM.pow(place) % LARGEST_TERM);
        let (over, under) = terms.fold(LATER_TERMS, |(over, under), term| (term * over + under, over));
        (u128::from(POINTS) * u128::from(under) / u128::from(over)) as u64 | 1
    })
}

/// By how much of a row, in parts of M, each doubling of a batch of one round adds to what it may err, at most. What is
/// more than `enough` need not be exact.
fn growth(step: u64, enough: i64) -> i64 {
    let mut sums = Sums::new(step);
    let mut most = 0;
    for doublings in 1..=DOUBLINGS {
        most = most.max(sums.excess(1 << doublings) / doublings as i64);
        if most > enough {
            break;
        }
    }
    most
}

/// The sums H(k) of 2x - M over the first k points x of a lane that begins at 0, as far as they were needed.
struct Sums {
    step: u64,
    point: u64,
    last: i64,
    /// The highest and the lowest of H(1) to H(k), for each k.
    highest: Vec<i64>,
    lowest: Vec<i64>,
}

impl Sums {
    fn new(step: u64) -> Self {
        Self { step, point: 0, last: 0, highest: Vec::new(), lowest: Vec::new() }
    }

    /// How much more than a row any interval of the circle may be off its share of up to `rounds` points of a lane,
    /// wherever they begin, in parts of M.
    ///
    /// Let S(y) be the sum of x / M - 1/2 over n points, with x how far each lies ahead of y. An interval from y to z has
    /// S(z) - S(y) points more than its share. Going back with y all x grow, and S does, until a point comes to M and is
    /// at 0. There some points lie A, 2A ... ahead, k with the one at 0, and the others A, 2A ... behind, l with the same
    /// one: S is (H(k) - H(l)) / 2M - 1/2, and 1 more just before. That is lowest where, with k and l exchanged, it is
    /// highest. So the highest S is (H(k) - H(l)) / M + 1 above the lowest, for the k and l with k + l = n + 1 for which
    /// that is most.
    fn excess(&mut self, rounds: usize) -> i64 {
        while self.highest.len() < rounds {
            self.last += 2 * self.point as i64 - POINTS as i64;
            self.point = (self.point + self.step) % POINTS;
            let (highest, lowest) = (self.highest.last(), self.lowest.last());
            let (highest, lowest) = (highest.copied().unwrap_or(self.last), lowest.copied().unwrap_or(self.last));
            self.highest.push(highest.max(self.last));
            self.lowest.push(lowest.min(self.last));
        }
        let pairs = self.highest[..rounds].iter().zip(self.lowest[..rounds].iter().rev());
        pairs.map(|(high, low)| high - low).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lanes_are_spread_by_a_permutation(lanes in 1_u64..300) {
            let mut places: Vec<u64> = spread(lanes).collect();
            places.sort_unstable();
            prop_assert_eq!(places, (0..lanes).collect::<Vec<_>>());
        }

        #[test]
        fn an_interval_is_off_by_what_is_said_and_no_more(step in 0..POINTS, rounds in 1_usize..10) {
            let mut most = 0;
            for rounds in 1..=rounds as u64 {
                let points: Vec<u64> = (0..rounds).map(|round| times(step, round)).collect();
                let ends: Vec<u64> = points.iter().flat_map(|&point| [point, (point + 1) % POINTS]).collect();
                for (&start, &end) in ends.iter().flat_map(|start| ends.iter().map(move |end| (start, end))) {
                    let width = (end + POINTS - start) % POINTS;
                    let inside = points.iter().filter(|&&point| (point + POINTS - start) % POINTS < width).count();
                    let off = inside as i128 * i128::from(POINTS) - i128::from(width) * i128::from(rounds);
                    most = most.max(off.abs());
                }
            }
            let said = i128::from(POINTS) + i128::from(Sums::new(step).excess(rounds));
            // An end that is as near to a point as it can be is one point off for each of them.
            prop_assert!(most <= said && said - most <= 2 * rounds as i128, "{most} of {said}");
        }
    }

    #[test]
    fn each_doubling_adds_half_a_row_for_all_lanes_and_a_row_for_blocks_of_them() {
        for lanes in (1..=128).chain([144, 233, 256, 512, 896, 997, 1000, 1024, 3960, 4032, 4096]) {
            let blocks = even_blocks(lanes);
            let step = best_move(&blocks);
            for &block in &blocks {
                let mut sums = Sums::new(times(step, block));
                for rounds in 1..=64 {
                    let rows = sums.excess(rounds) as f64 / POINTS as f64;
                    let doublings = (rounds as f64).log2();
                    let most = if block == lanes { doublings / 2.0 } else { doublings };
                    assert!(rows <= most, "{rows} rows more than 1 for {block} of {lanes} lanes in {rounds} rounds");
                }
            }
        }
    }

    #[test]
    fn lanes_stay_within_eight_rows_over_a_million_rounds_by_any_weights() {
        let all: Vec<u64> = candidates().collect();
        assert_eq!(all.len(), 2187);
        // Terms that are all 1 are the golden ratio's, the least of all; number 2177 errs most.
        assert_eq!(best_move(&[1]), all[0]);
        for &step in all.iter().step_by(80).chain(&all[2177..]) {
            let rows = Sums::new(step).excess(1_000_000) as f64 / POINTS as f64 + 1.0;
            assert!(rows < 8.0, "{rows} rows by {step}");
        }
    }

    #[test]
    fn moves_are_pinned() {
        let moves = [1, 2, 6, 12, 256].map(|lanes| best_move(&even_blocks(lanes)));
        assert_eq!(
            moves,
            [173_961_102_589_771, 86_136_582_109_537, 122_759_610_750_559, 220_085_308_187_213, 85_358_232_082_913]
        );
    }
}
