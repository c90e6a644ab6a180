//! Mixtures: which source each row comes from, and how many rows of a source came before.
//!
//! Rows are drawn lane by lane: row t of lane i takes the source in whose interval of a circle the point lies that has
//! moved t times by the same part of it from the lane's phase. Phases are spread evenly, so that one row of each lane is
//! within a row of the weights, and so is each lane, but for a few rows, however long it runs. How many points of a lane
//! fell into an interval is a difference of two sums of Euclid's kind, so any row can be the first.
//!
//! Where rows become longer or shorter in a round, each lane of a source has given another number of rows by then. So of a
//! source L changes lane by lane, and so do the rows that it has left.
//!
//! Not here: when sources end ([`ends`]), by which part lanes move ([`super::moves`]), which tokens a source's rows hold
//! ([`super::lanes`]), and what weights a schedule means in rounds.

mod ends;

use std::ops::Range;
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::draws::{Draws, Purpose};
use super::floor_sum::floor_sum;
use super::kept::Kept;
use super::moves::{POINTS, best_move, even_blocks, spread};
use super::ring::Ring;
use super::strides::{LaneStrides, Strides};
use crate::error::{Error, Result};

/// Weights are compared with the largest one in units of this part of it: 2^62.
const SCALE: f64 = 4_611_686_018_427_387_904.0;
/// Rounds of a mixture that can be counted.
pub const MOST_ROUNDS: u64 = 1 << 40;

/// What holds in a mixture from a round on, until the next phase begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// Its first round.
    pub round: u64,
    /// The number of the draw that decides that round.
    pub draw: u64,
    /// How many rounds a draw decides, at least 1.
    pub every: u64,
    /// The weight of each source.
    pub weights: Vec<f64>,
}

/// What becomes of a mixture when a source has no row for a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// It ends before that round.
    Stop,
    /// It goes on from that round without the source.
    Leave,
}

/// Where each row of a mixture comes from: a pure function of the seed, the lanes and the weights.
#[derive(Debug, Clone)]
pub struct Mixture {
    lanes: u64,
    /// The place of each lane among N places, and where on the circle it begins.
    places: Arc<[u64]>,
    starts: Arc<[u64]>,
    /// Aligned blocks of so many lanes lie at equal distances.
    even: Vec<u64>,
    /// Where they all are moved to, and whether they all begin there.
    offset: u64,
    together: bool,
    /// The lanes that each source has.
    source_lanes: Vec<u64>,
    stretches: Vec<Stretch>,
    /// L of each round.
    lengths: Strides,
    /// The round before which it ends.
    end: Option<u64>,
    /// The round before which each source left.
    left: Vec<Option<u64>>,
    /// What was counted of the stretches as they are.
    kept: Arc<OnceBox<Kept>>,
}

/// A phase, with its weights as intervals: source s has the points from `bounds[s]` to before `bounds[s + 1]`.
#[derive(Debug, Clone)]
struct Stretch {
    phase: Phase,
    bounds: Vec<u64>,
    /// A: how far lanes move from draw to draw.
    step: u64,
    /// Rounds of its first draw that lie before it.
    into: u64,
}

/// Weights as whole points of the circle, which they sum to: each rounded down, and the points that are left given to
/// the largest remainders, of equal ones to the first.
///
/// # Errors
/// [`Error::Argument`] if a weight is negative or not finite, or none is positive.
pub fn shares(weights: &[f64]) -> Result<Vec<u64>> {
    if let Some((source, weight)) = weights.iter().enumerate().find(|(_, weight)| !(0.0..).contains(*weight)) {
        return Err(Error::Argument(format!("the weight of source {source} must be 0 or more, got {weight}")));
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 || largest.is_infinite() {
        return Err(Error::Argument(format!("weights must be finite and one of them positive, got {weights:?}")));
    }
    let scaled: Vec<u128> = weights.iter().map(|weight| (weight / largest * SCALE) as u128).collect();
    let total: u128 = scaled.iter().sum();
    let parts = scaled.iter().map(|part| (part * u128::from(POINTS) / total, part * u128::from(POINTS) % total));
    let (mut shares, remainders): (Vec<u64>, Vec<u128>) = parts.map(|(share, rest)| (share as u64, rest)).unzip();
    let left = POINTS - shares.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&source| std::cmp::Reverse(remainders[source]));
    for &source in &order[..left as usize] {
        shares[source] += 1;
    }
    Ok(shares)
}

impl Mixture {
    /// A mixture of sources with the given numbers of lanes, each a divisor of `lanes`.
    ///
    /// With `together`, all lanes take their row of a round from the same source. `lengths` are those of the rows of
    /// each round, all of one token where rows are counted.
    ///
    /// # Errors
    /// [`Error::Argument`] if lanes, phases or weights do not fit.
    pub fn new(
        seed: u64,
        lanes: u64,
        together: bool,
        source_lanes: Vec<u64>,
        phases: Vec<Phase>,
        lengths: Strides,
    ) -> Result<Self> {
        let fits = |own: &u64| *own > 0 && lanes.is_multiple_of(*own);
        if lanes == 0 || !source_lanes.iter().all(fits) {
            let message = format!("the lanes of each source must divide lanes={lanes}, got {source_lanes:?}");
            return Err(Error::Argument(message));
        }
        if phases.first().is_none_or(|phase| phase.round != 0)
            || !phases.is_sorted_by(|one, next| one.round < next.round)
            || phases.iter().any(|phase| phase.every == 0 || phase.weights.len() != source_lanes.len())
        {
            return Err(Error::Argument("phases must begin with round 0, follow one another and fit".to_owned()));
        }
        let mut words = Draws::new(seed, Purpose::Mixture, 0, 0, 0);
        let offset = (u64::from(words.word()) | u64::from(words.word()) << 32) % POINTS;
        let places: Arc<[u64]> = if together { vec![0; lanes as usize].into() } else { spread(lanes).collect() };
        let start = |&place: &u64| {
            let point = u128::from(place) * u128::from(POINTS) / u128::from(lanes);
            (point as u64 + offset) % POINTS
        };
        let starts = places.iter().map(start).collect();
        let even = even_blocks(lanes);
        let step = best_move(if together { &[1] } else { &even });
        let stretches = phases.into_iter().map(|phase| Stretch::new(phase, step)).collect::<Result<_>>()?;
        let left = vec![None; source_lanes.len()];
        Ok(Self {
            lanes,
            places,
            starts,
            even,
            offset,
            together,
            source_lanes,
            stretches,
            lengths,
            end: None,
            left,
            kept: Arc::default(),
        })
    }

    /// N.
    pub fn lanes(&self) -> u64 {
        self.lanes
    }

    /// The number of sources.
    pub fn len(&self) -> usize {
        self.source_lanes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.source_lanes.is_empty()
    }

    /// The lanes of a source.
    pub fn source_lanes(&self, source: usize) -> u64 {
        self.source_lanes[source]
    }

    /// The lane of a source that a lane of the mixture takes its rows from.
    pub fn source_lane(&self, source: usize, lane: u64) -> u64 {
        lane / (self.lanes / self.source_lanes[source])
    }

    /// The lanes of the mixture that take rows from a lane of a source.
    pub fn takers(&self, source: usize, source_lane: u64) -> Range<u64> {
        let each = self.lanes / self.source_lanes[source];
        source_lane * each..(source_lane + 1) * each
    }

    /// The rows of the mixture; `None` for one without end.
    pub fn rows(&self) -> Option<u64> {
        self.end.map(|round| round * self.lanes)
    }

    /// L of the rows of each round.
    pub fn lengths(&self) -> &Strides {
        &self.lengths
    }

    /// L in the lanes of a source.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are too many tokens to be counted.
    pub fn strides(&self, source: usize) -> Result<LaneStrides> {
        if self.lengths.stretches().len() == 1 {
            return Ok(LaneStrides::alike(self.lengths.clone()));
        }
        let lane = |lane| {
            let mut changes = self.lengths.stretches().skip(1);
            changes.try_fold(Strides::new(self.lengths.of(0)), |strides, (round, stride)| {
                strides.changed(self.given(source, lane, round), stride)
            })
        };
        Ok(LaneStrides::each((0..self.source_lanes(source)).map(lane).collect::<Result<_>>()?))
    }

    /// The largest share of the rows that a source has in any phase from a round on, from 0 to 1.
    pub fn largest_share(&self, source: usize, round: u64) -> f64 {
        let later = self.stretches.iter().enumerate().filter(|(at, _)| self.until(*at) > round);
        let share = |stretch: &Stretch| stretch.bounds[source + 1] - stretch.bounds[source];
        later.map(|(_, stretch)| share(stretch)).max().unwrap_or(0) as f64 / POINTS as f64
    }

    /// The weights in a round.
    pub fn weights(&self, round: u64) -> &[f64] {
        &self.stretches[self.stretch_of(round)].phase.weights
    }

    /// The source of a row.
    pub fn source(&self, row: u64) -> usize {
        let round = row / self.lanes;
        let stretch = &self.stretches[self.stretch_of(round)];
        let start = self.starts[(row % self.lanes) as usize];
        stretch.source(stretch.point(start, round - stretch.phase.round))
    }

    /// Which of some lanes take their row of a round from a source, in order.
    pub fn takes(&self, source: usize, round: u64, lanes: Range<u64>) -> impl Iterator<Item = u64> {
        let stretch = &self.stretches[self.stretch_of(round)];
        let own = stretch.bounds[source]..stretch.bounds[source + 1];
        let moved = stretch.point(0, round - stretch.phase.round);
        lanes.filter(move |&lane| own.contains(&((self.starts[lane as usize] + moved) % POINTS)))
    }

    /// Some lanes as they lie on the circle, for [`Mixture::taking`].
    pub fn ring(&self, lanes: impl IntoIterator<Item = u64>) -> Ring {
        Ring::new(POINTS, lanes.into_iter().map(|lane| (self.starts[lane as usize], lane)))
    }

    /// Which lanes of a ring take their row of a round from a source, in any order. It takes no time for those that do
    /// not.
    pub fn taking<'a>(&self, source: usize, round: u64, ring: &'a Ring) -> impl Iterator<Item = u64> + 'a {
        let stretch = &self.stretches[self.stretch_of(round)];
        let (start, end) = (stretch.bounds[source], stretch.bounds[source + 1]);
        // Instead of the lanes the interval is moved, back.
        let moved = stretch.point(0, round - stretch.phase.round);
        ring.stretch((start + POINTS - moved) % POINTS, end - start)
    }

    /// How many rows a lane of a source has given before a round.
    pub fn given(&self, source: usize, source_lane: u64, round: u64) -> u64 {
        self.kept(source, Some(source_lane), round, |stretch, round| {
            self.given_since(stretch, source, source_lane, round)
        })
    }

    /// Rows of a source, or a lane of it, before a round, where `count` counts them from a stretch on: those before the
    /// stretch once only.
    fn kept(&self, source: usize, lane: Option<u64>, round: u64, count: impl Fn(usize, u64) -> u64) -> u64 {
        let kept = self.kept.get_or_init(|| Box::new(Kept::new(self.stretches.len(), &self.source_lanes)));
        let between = |stretches: Range<usize>| count(stretches.start, self.stretches[stretches.end].phase.round);
        let (stretch, before) = kept.before(source, lane, self.stretch_of(round), between);
        before + count(stretch, round)
    }

    /// The same from a stretch on.
    fn given_since(&self, stretch: usize, source: usize, source_lane: u64, round: u64) -> u64 {
        let takers = self.takers(source, source_lane);
        let lanes = takers.end - takers.start;
        if self.together || !self.even.contains(&lanes) {
            return takers.map(|lane| self.taken(stretch, source, lane..lane + 1, round)).sum();
        }
        self.taken(stretch, source, takers, round)
    }

    /// How many rows lanes that lie evenly on the circle have taken from a source, from a stretch on and before a round.
    fn taken(&self, stretch: usize, source: usize, lanes: Range<u64>, round: u64) -> u64 {
        let later = self.stretches.iter().enumerate().skip(stretch);
        let before = later.take_while(|(_, stretch)| stretch.phase.round < round);
        let taken = before.map(|(at, stretch)| {
            let until = self.until(at).min(round);
            let (rounds, every) = (stretch.into + until - stretch.phase.round, stretch.phase.every);
            let whole = self.hits(stretch, source, &lanes, rounds / every) * every;
            let of = |rounds, round| match rounds {
                0 => 0,
                _ => rounds * self.takes(source, round, lanes.clone()).count() as u64,
            };
            whole + of(rounds % every, until - 1) - of(stretch.into, stretch.phase.round)
        });
        taken.sum()
    }

    /// How often evenly lying lanes come to a source's interval in the first `draws` draws of a stretch.
    ///
    /// A point x of the endless line lies in the interval if floor((x + M - start) / M) is one more than
    /// floor((x + M - end) / M). The lanes' points lie apart by M / m, so their sum is floor(m * (x + ...) / M) by Hermite's
    /// identity, for the first of them.
    fn hits(&self, stretch: &Stretch, source: usize, lanes: &Range<u64>, draws: u64) -> u64 {
        let own = stretch.bounds[source]..stretch.bounds[source + 1];
        if own.is_empty() {
            return 0;
        }
        let (m, points) = (u128::from(lanes.end - lanes.start), u128::from(POINTS));
        let place = u128::from(self.places[lanes.start as usize]);
        let first = m * place * points / u128::from(self.lanes) + m * u128::from(stretch.point(self.offset, 0));
        // Whole circles of a move are the same in both sums.
        let step = (m * u128::from(stretch.step) % points) as u64;
        let sum = |bound: u64| {
            let begin = first + m * u128::from(POINTS - bound);
            let circles = draws.wrapping_mul((begin / points) as u64);
            circles.wrapping_add(floor_sum(draws, POINTS, step, (begin % points) as u64))
        };
        sum(own.start).wrapping_sub(sum(own.end))
    }

    /// How many rows a source has given before a round.
    fn total(&self, source: usize, round: u64) -> u64 {
        // All lanes lie evenly, and together they do as one does.
        let (lanes, each) = if self.together { (1, self.lanes) } else { (self.lanes, 1) };
        self.kept(source, None, round, |stretch, round| self.taken(stretch, source, 0..lanes, round) * each)
    }

    /// Whether a source gives a row in a round or later.
    pub fn is_drawn(&self, source: usize, round: u64) -> bool {
        let end = self.end.unwrap_or(MOST_ROUNDS);
        round < end && self.total(source, end) > self.total(source, round)
    }

    /// How many of the first `row` rows each source has given.
    pub fn counts(&self, row: u64) -> Vec<u64> {
        let round = row / self.lanes;
        let mut counts: Vec<u64> = (0..self.len()).map(|source| self.total(source, round)).collect();
        for row in round * self.lanes..row {
            counts[self.source(row)] += 1;
        }
        counts
    }

    /// The last row of each lane of a source, of those that are among the first `row` rows; of some lanes none is.
    pub fn last_rows(&self, source: usize, row: u64) -> Vec<u64> {
        let (round, rest, lanes) = (row / self.lanes, row % self.lanes, self.source_lanes[source]);
        let last = |lane| {
            let takers = self.takers(source, lane);
            let begun = takers.start.min(rest)..takers.end.min(rest);
            let given = self.given(source, lane, round) + self.takes(source, round, begun).count() as u64;
            given.checked_sub(1).map(|before| before * lanes + lane)
        };
        (0..lanes).filter_map(last).collect()
    }

    /// Whether a source that had no row left went before the last of the first `row` rows.
    pub fn has_left(&self, source: usize, row: u64) -> bool {
        self.left[source].is_some_and(|round| round * self.lanes < row)
    }

    fn stretch_of(&self, round: u64) -> usize {
        self.stretches.partition_point(|stretch| stretch.phase.round <= round) - 1
    }

    /// The round before which a stretch ends.
    fn until(&self, stretch: usize) -> u64 {
        self.stretches.get(stretch + 1).map_or(u64::MAX, |next| next.phase.round)
    }
}

impl Stretch {
    fn new(phase: Phase, step: u64) -> Result<Self> {
        let shares = shares(&phase.weights)?;
        let ends = shares.iter().scan(0, |end, share| {
            *end += share;
            Some(*end)
        });
        Ok(Self { bounds: std::iter::once(0).chain(ends).collect(), phase, step, into: 0 })
    }

    /// Where a lane that begins at `start` is after some rounds of the stretch.
    fn point(&self, start: u64, rounds: u64) -> u64 {
        let draw = self.phase.draw + (self.into + rounds) / self.phase.every;
        ((u128::from(self.step) * u128::from(draw) + u128::from(start)) % u128::from(POINTS)) as u64
    }

    fn source(&self, point: u64) -> usize {
        self.bounds[1..].partition_point(|&end| end <= point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn phase(round: u64, weights: &[f64]) -> Phase {
        Phase { round, draw: round, every: 1, weights: weights.to_vec() }
    }

    fn mixture(seed: u64, lanes: u64, weights: &[f64]) -> Mixture {
        Mixture::new(seed, lanes, false, vec![lanes; weights.len()], vec![phase(0, weights)], Strides::new(1)).unwrap()
    }

    /// Weights of which some are 0 and some far smaller than others.
    fn any_weights(most: usize) -> impl Strategy<Value = Vec<f64>> {
        let weight = prop_oneof![3 => 0.01..1.0_f64, 1 => Just(0.0), 1 => Just(1.0), 1 => 1e-9..1e-3_f64];
        prop::collection::vec(weight, 1..most).prop_filter("one is positive", |all| all.iter().any(|&one| one > 0.0))
    }

    /// The rows of the first `rounds` rounds, source by source for each lane.
    fn counted(mixture: &Mixture, rounds: u64) -> Vec<Vec<u64>> {
        let mut counts = vec![vec![0; mixture.len()]; mixture.lanes() as usize];
        for row in 0..rounds * mixture.lanes() {
            counts[(row % mixture.lanes()) as usize][mixture.source(row)] += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn shares_are_whole_points_that_sum_to_all(weights in any_weights(40)) {
            let shares = shares(&weights).unwrap();
            prop_assert_eq!(shares.iter().sum::<u64>(), POINTS);
            let total: f64 = weights.iter().sum();
            for (&share, &weight) in shares.iter().zip(&weights) {
                prop_assert!((share as f64 - weight / total * POINTS as f64).abs() < 2.0);
                prop_assert!(weight > 0.0 || share == 0);
            }
        }

        #[test]
        fn each_round_is_within_one_row_of_the_weights_for_all_lanes_and_for_blocks_of_them(
            lanes in 1_u64..100, weights in any_weights(9), seed: u64, round in 0_u64..1 << 39,
        ) {
            let mixture = mixture(seed, lanes, &weights);
            let shares = shares(&weights).unwrap();
            for block in even_blocks(lanes) {
                for first in (0..lanes).step_by(block as usize) {
                    for (source, &share) in shares.iter().enumerate() {
                        let rows = mixture.takes(source, round, first..first + block).count() as f64;
                        let wanted = share as f64 / POINTS as f64 * block as f64;
                        prop_assert!((rows - wanted).abs() < 1.0, "{rows} rows of {block} for {wanted}");
                        prop_assert!(weights[source] > 0.0 || rows == 0.0);
                    }
                }
            }
        }

        #[test]
        fn each_doubling_of_a_batch_adds_half_a_row_to_what_it_may_err_and_a_row_to_a_part_of_it(
            lanes in 1_u64..100, weights in any_weights(9), seed: u64, first in 0_u64..1 << 39, rounds in 1_u64..=64,
        ) {
            let (mixture, shares) = (mixture(seed, lanes, &weights), shares(&weights).unwrap());
            let doublings = (rounds as f64).log2();
            for (source, &share) in shares.iter().enumerate() {
                for block in even_blocks(lanes) {
                    let off = |first_lane: u64| {
                        let lanes = first_lane..first_lane + block;
                        let before = mixture.taken(0, source, lanes.clone(), first);
                        let rows = mixture.taken(0, source, lanes, first + rounds) - before;
                        (rows as f64 - share as f64 / POINTS as f64 * (block * rounds) as f64).abs()
                    };
                    let most = (0..lanes).step_by(block as usize).map(off).fold(0.0, f64::max);
                    let within = if block == lanes { 1.0 + doublings / 2.0 } else { 1.0 + doublings };
                    prop_assert!(most <= within, "{most} rows off in {rounds} rounds of {block} lanes");
                }
            }
        }

        #[test]
        fn counts_are_what_counting_gives(
            parts in prop::sample::select(vec![(1_u64, 1_u64), (6, 1), (6, 2), (6, 3), (6, 6), (8, 4), (12, 2), (7, 1)]),
            weights in prop::collection::vec(any_weights(4).prop_map(|mut all| { all.resize(4, 0.0); all }), 1..4),
            lengths in prop::collection::vec((1_u64..30, 1_u64..4, 0_u64..50), 4),
            together: bool, seed: u64, rest in 0_u64..5,
        ) {
            let (lanes, own) = parts;
            let mut round = 0;
            let phases: Vec<Phase> = weights.iter().zip(&lengths).map(|(weights, &(length, every, draw))| {
                let phase = Phase { round, draw, every, weights: weights.clone() };
                round += length;
                phase
            }).collect();
            let mixture = Mixture::new(seed, lanes, together, vec![own; 4], phases, Strides::new(1)).unwrap();
            for rounds in [0, 1, round / 2, round + 20] {
                let counts = counted(&mixture, rounds);
                for (source, lane) in (0..4).flat_map(|source| (0..own).map(move |lane| (source, lane))) {
                        let takers = mixture.takers(source, lane);
                        prop_assert!(takers.clone().all(|taker| mixture.source_lane(source, taker) == lane));
                        let wanted: u64 = takers.map(|taker| counts[taker as usize][source]).sum();
                        prop_assert_eq!(mixture.given(source, lane, rounds), wanted);
                }
                for source in 0..4 {
                    let mut takers: Vec<u64> = mixture.taking(source, rounds, &mixture.ring(0..lanes)).collect();
                    takers.sort_unstable();
                    let wanted: Vec<u64> = mixture.takes(source, rounds, 0..lanes).collect();
                    prop_assert_eq!(&takers, &wanted);
                    prop_assert!(takers.iter().all(|lane| mixture.source(rounds * lanes + lane) == source));
                }
                let row = rounds * lanes + rest % lanes;
                let mut wanted = vec![0; 4];
                let mut last = vec![vec![None; own as usize]; 4];
                for row in 0..row {
                    let source = mixture.source(row);
                    let lane = mixture.source_lane(source, row % lanes);
                    let place: &mut Option<u64> = &mut last[source][lane as usize];
                    *place = Some(place.map_or(lane, |before| before + own));
                    wanted[source] += 1;
                }
                prop_assert_eq!(mixture.counts(row), wanted);
                for (source, last) in last.into_iter().enumerate() {
                    prop_assert_eq!(mixture.last_rows(source, row), last.into_iter().flatten().collect::<Vec<_>>());
                }
            }
            let last = mixture.weights(round).to_vec();
            for (source, &share) in shares(&last).unwrap().iter().enumerate() {
                prop_assert_eq!(mixture.is_drawn(source, round), share > 0);
            }
            if together {
                for row in 0..round * lanes {
                    prop_assert_eq!(mixture.source(row), mixture.source(row / lanes * lanes));
                }
            }
        }

        #[test]
        fn what_is_kept_of_stretches_is_what_counting_gives_in_any_order(
            weights in prop::collection::vec(prop::collection::vec(0.1..1.0_f64, 3), 1..12), together: bool, seed: u64,
            rows in 0_u64..90, numbers in 1_usize..150, rounds in prop::collection::vec(0_u64..150, 1..12),
        ) {
            let own = vec![6, 3, 1];
            let phases = weights.iter().zip(0..).map(|(weights, at)| phase(at * 7, weights)).collect();
            let mut mixture = Mixture::new(seed, 6, together, own.clone(), phases, Strides::new(1)).unwrap();
            prop_assert_eq!(mixture.counts(600).iter().sum::<u64>(), 600);
            // A source that leaves makes other stretches.
            mixture.limit(&[None, Some(rows), Some(rows / 2)], 0, Exhausted::Leave).unwrap();
            mixture.kept = Arc::new(OnceBox::with_value(Box::new(Kept::with_at_most(numbers, mixture.stretches.len(), &own))));
            for round in rounds {
                let counts = mixture.counts(round * 6);
                prop_assert_eq!(counts.iter().sum::<u64>(), round * 6);
                for (source, &own) in own.iter().enumerate() {
                    let lanes = (0..own).map(|lane| (mixture.given(source, lane, round), lane));
                    for (given, lane) in lanes.clone() {
                        prop_assert_eq!(given, mixture.given_since(0, source, lane, round));
                    }
                    prop_assert_eq!(lanes.map(|(given, _)| given).sum::<u64>(), counts[source]);
                }
            }
        }
    }

    #[test]
    fn lanes_stay_within_eight_rows_over_a_million_rounds() {
        let powers = |count: i32, base: f64| (0..count).map(|power| base.powi(power)).collect::<Vec<_>>();
        let many = [
            vec![0.7, 0.3],
            vec![0.001, 0.999],
            vec![1.0; 3],
            vec![1.0; 7],
            vec![1.0; 300],
            powers(20, 0.5),
            powers(8, 0.61),
            powers(300, 0.97),
            (1..300).map(f64::from).collect(),
        ];
        for (seed, weights) in many.iter().enumerate() {
            let (mixture, shares) = (mixture(seed as u64, 1, weights), shares(weights).unwrap());
            let mut counts = vec![0_u64; weights.len()];
            let off = |count: u64, share: u64, rounds: u64| {
                (count as f64 - share as f64 / POINTS as f64 * rounds as f64).abs()
            };
            let mut most = 0.0_f64;
            for round in 0..1_000_000 {
                // Of a source that is not drawn the count is off the most before its next row.
                let source = mixture.source(round);
                most = most.max(off(counts[source], shares[source], round + 1));
                counts[source] += 1;
                most = most.max(off(counts[source], shares[source], round + 1));
            }
            assert_eq!(mixture.counts(1_000_000), counts);
            assert!(most < 8.0, "{} sources: {most} rows", weights.len());
        }
    }

    #[test]
    fn what_cannot_be_mixed_is_refused() {
        for weights in [vec![], vec![0.0], vec![-1.0, 2.0], vec![f64::NAN, 1.0], vec![f64::INFINITY, 1.0]] {
            assert!(shares(&weights).is_err(), "{weights:?}");
        }
        assert!(shares(&[f64::MAX, f64::MAX]).is_ok());
        assert!(shares(&[f64::MIN_POSITIVE / 4.0, 0.0]).is_ok());
        let new = |lanes, own, phases| Mixture::new(0, lanes, false, own, phases, Strides::new(1));
        assert!(new(4, vec![3], vec![phase(0, &[1.0])]).is_err());
        assert!(new(0, vec![1], vec![phase(0, &[1.0])]).is_err());
        assert!(new(1, vec![1], vec![phase(1, &[1.0])]).is_err());
        assert!(new(1, vec![1], vec![]).is_err());
        assert!(new(1, vec![1], vec![phase(0, &[1.0, 1.0])]).is_err());
    }

    #[test]
    fn a_source_that_is_too_rare_is_never_drawn() {
        let mixture = mixture(5, 4, &[1.0, 1e-20]);
        assert_eq!(mixture.counts(1 << 38), [1 << 38, 0]);
    }
}
