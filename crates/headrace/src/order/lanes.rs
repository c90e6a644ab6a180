//! Lanes: the order for chunked stores. Chunks are permuted, windowed and dealt to lanes as contiguous slices.

use std::ops::Range;
use std::sync::Arc;

use super::draws::{Draws, Purpose};
use super::passes::{Extent, Passes};
use crate::error::{Error, Result};

/// Tokens that a default window holds at least, on average.
const WINDOW_TOKENS: u64 = 64 << 20;
/// Tokens that a default window holds for each lane at least, on average.
const WINDOW_TOKENS_PER_LANE: u64 = 256 << 10;
/// Documents that a slice of a default lane holds at least, on average: fewer lanes before documents are shredded.
const DOCUMENTS_PER_SLICE: u64 = 8;

/// Units of the dealt line that can be counted: far beyond any run, and far enough below 2^64 for sums of a few.
pub(super) const MOST_UNITS: u64 = 1 << 61;

/// What, beside the data's weights, the order depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderSpec {
    /// The seed; plays no part in a sequential order.
    pub seed: u64,
    /// `false`: storage order, in one lane.
    pub shuffle: bool,
    /// N, at least 1; 1 if not shuffled.
    pub lanes: u64,
    /// W, at least 1.
    pub window: u64,
}

/// The chunks that a window holds by default: see "Defaults" in `docs/order.md`.
pub fn default_window(chunks: u64, weight: u64, lanes: u64) -> u64 {
    let target = WINDOW_TOKENS.max(lanes.saturating_mul(WINDOW_TOKENS_PER_LANE));
    let chunks = chunks.max(1);
    let needed = (u128::from(target) * u128::from(chunks)).div_ceil(u128::from(weight.max(1)));
    u64::try_from(needed).unwrap_or(u64::MAX).clamp(1, chunks)
}

/// The lanes that a run has by default: see "Defaults" in `docs/order.md`.
pub fn default_lanes(batch: u64, documents: u64, chunks: u64, window: u64) -> u64 {
    let in_window = u128::from(documents) * u128::from(window.min(chunks)) / u128::from(chunks.max(1));
    let most = u64::try_from(in_window / u128::from(DOCUMENTS_PER_SLICE)).unwrap_or(u64::MAX).clamp(1, batch.max(1));
    (1..=most).rev().find(|&lanes| batch.is_multiple_of(lanes)).unwrap_or(1)
}

/// The order of a dataset's tokens: a pure function of the chunks' weights and an [`OrderSpec`].
#[derive(Debug, Clone)]
pub struct LaneOrder {
    spec: OrderSpec,
    weights: Arc<[u64]>,
    passes: Passes,
}

/// One pass over all chunks that the data has then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// Which pass, from 0.
    pub epoch: u64,
    /// Its chunks, in this pass's order.
    pub chunks: Vec<u32>,
    /// Units of all passes before it.
    begin: u64,
    /// Weight of the pass before each window, and of all: one more entry than windows.
    starts: Vec<u64>,
}

/// One window of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSpan {
    /// The pass.
    pub epoch: u64,
    /// The window's number in its pass, from 0.
    pub number: u64,
    /// Which of [`Pass::chunks`] it holds.
    pub chunks: Range<usize>,
    /// S0: units dealt before the window, over all passes.
    pub begin: u64,
    /// Units in the window.
    pub weight: u64,
    lanes: u64,
}

impl LaneOrder {
    /// An order over chunks of the given weights.
    ///
    /// # Errors
    /// [`Error::Argument`] if `spec` is out of range, or if there is nothing to order.
    pub fn new(spec: OrderSpec, weights: Arc<[u64]>) -> Result<Self> {
        Self::grown(spec, weights, &[])
    }

    /// The same where the last of the chunks came in the course of the run. `added` says from which pass on the data is
    /// the first so many chunks, in order and from pass 0 on; empty for all of them in each pass.
    ///
    /// # Errors
    /// [`Error::Argument`] as of [`LaneOrder::new`], or if `added` does not fit.
    pub fn grown(spec: OrderSpec, weights: Arc<[u64]>, added: &[(u64, u64)]) -> Result<Self> {
        if spec.lanes == 0 || spec.window == 0 {
            return Err(Error::Argument(format!(
                "lanes and window must be at least 1, got lanes={}, window={}",
                spec.lanes, spec.window
            )));
        }
        if !spec.shuffle && spec.lanes != 1 {
            return Err(Error::Argument(format!("lanes must be 1 with shuffle=False, got {}", spec.lanes)));
        }
        if u32::try_from(weights.len()).is_err() {
            return Err(Error::Argument(format!("at most 2^32 - 1 chunks can be ordered, got {}", weights.len())));
        }
        let extent = |chunks: u64| {
            let held = usize::try_from(chunks).ok().and_then(|chunks| weights.get(..chunks));
            let total = match held.map(|held| held.iter().try_fold(0_u64, |sum, &weight| sum.checked_add(weight))) {
                None => {
                    return Err(Error::Argument(format!("there are {} chunks, not {chunks} or more", weights.len())));
                }
                Some(Some(0)) => return Err(Error::Argument("the dataset holds no token".to_owned())),
                Some(Some(total)) if total < MOST_UNITS => total,
                _ => return Err(Error::Argument("a pass over the dataset has 2^61 tokens or more".to_owned())),
            };
            Ok(Extent { chunks, total, windows: chunks.div_ceil(spec.window) })
        };
        let all = [(0, weights.len() as u64)];
        let mut eras = if added.is_empty() { all.iter() } else { added.iter() };
        let first = eras.next().filter(|first| first.0 == 0);
        let &(_, chunks) =
            first.ok_or_else(|| Error::Argument(format!("expected data from pass 0 on, got {added:?}")))?;
        let passes = eras.try_fold(Passes::new(extent(chunks)?), |passes, &(epoch, chunks)| {
            passes.changed(epoch, extent(chunks)?)
        })?;
        Ok(Self { spec, weights, passes })
    }

    /// What this order was made with.
    pub fn spec(&self) -> OrderSpec {
        self.spec
    }

    /// What its passes hold, and where they begin.
    pub fn passes(&self) -> &Passes {
        &self.passes
    }

    /// Weight of each chunk, in storage order.
    pub fn weights(&self) -> &[u64] {
        &self.weights
    }

    /// The chunk order and windows of one pass: O(chunks).
    pub fn pass(&self, epoch: u64) -> Pass {
        let mut chunks: Vec<u32> = (0..self.passes.chunks(epoch) as u32).collect();
        if self.spec.shuffle {
            Draws::new(self.spec.seed, Purpose::Chunks, epoch, 0, 0).shuffle(&mut chunks);
        }
        let window = usize::try_from(self.spec.window).unwrap_or(usize::MAX);
        let mut starts = vec![0];
        let mut sum = 0;
        for group in chunks.chunks(window) {
            sum += group.iter().map(|&chunk| self.weights[chunk as usize]).sum::<u64>();
            starts.push(sum);
        }
        Pass { epoch, chunks, begin: self.passes.first_unit(epoch), starts }
    }

    /// A window of a pass.
    pub fn window(&self, pass: &Pass, number: u64) -> WindowSpan {
        let size = usize::try_from(self.spec.window).unwrap_or(usize::MAX);
        let at = number as usize;
        let first = at * size;
        let starts = &pass.starts[at..at + 2];
        WindowSpan {
            epoch: pass.epoch,
            number,
            chunks: first..first.saturating_add(size).min(pass.chunks.len()),
            begin: pass.begin + starts[0],
            weight: starts[1] - starts[0],
            lanes: self.spec.lanes,
        }
    }

    /// The window that holds a unit of the dealt line, counted through all passes; `pass` must be the one that holds it.
    pub fn ordinal_of(&self, pass: &Pass, unit: u64) -> u64 {
        self.passes.first_window(pass.epoch) + pass.window_of(unit)
    }

    /// Puts the pieces of a slice, `0..pieces.len()`, in their order.
    pub fn order_pieces(&self, window: &WindowSpan, lane: u64, pieces: &mut [u32]) {
        for (number, piece) in pieces.iter_mut().enumerate() {
            *piece = number as u32;
        }
        if self.spec.shuffle {
            Draws::new(self.spec.seed, Purpose::Pieces, window.epoch, window.number, lane).shuffle(pieces);
        }
    }
}

/// How many of the first `units` units are dealt to a lane.
pub(super) fn dealt(lane: u64, lanes: u64, units: u64) -> u64 {
    (units + lanes - 1 - lane) / lanes
}

/// How many of the first `units` units are dealt to lanes before `lane`.
fn dealt_before(lane: u64, lanes: u64, units: u64) -> u64 {
    units / lanes * lane + (units % lanes).min(lane)
}

impl Pass {
    /// Windows.
    pub fn windows(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    /// The number of the window that holds a unit of the dealt line, which the pass must hold.
    pub fn window_of(&self, unit: u64) -> u64 {
        let unit = unit - self.begin;
        self.starts.partition_point(|&start| start <= unit) as u64 - 1
    }
}

impl WindowSpan {
    /// Units dealt up to the window's end, over all passes.
    pub fn end(&self) -> u64 {
        self.begin + self.weight
    }

    /// A lane's slice, as a stretch of the window's chunks laid end to end.
    pub fn slice(&self, lane: u64) -> Range<u64> {
        self.before(lane)..self.before(lane + 1)
    }

    /// Which tokens of the lane's stream the slice holds.
    pub fn lane_tokens(&self, lane: u64) -> Range<u64> {
        dealt(lane, self.lanes, self.begin)..dealt(lane, self.lanes, self.begin + self.weight)
    }

    fn before(&self, lane: u64) -> u64 {
        dealt_before(lane, self.lanes, self.begin + self.weight) - dealt_before(lane, self.lanes, self.begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(lanes: u64, window: u64, weights: &[u64]) -> LaneOrder {
        LaneOrder::new(OrderSpec { seed: 3, shuffle: true, lanes, window }, weights.into()).unwrap()
    }

    proptest! {
        #[test]
        fn lanes_stay_within_one_unit_and_slices_tile_the_window(
            lanes in 1_u64..9,
            window in 1_u64..6,
            weights in prop::collection::vec(0_u64..50, 1..20).prop_filter("some", |w| w.iter().sum::<u64>() > 0),
            added in prop::collection::vec(0_u64..50, 0..4), changed_at in 1_u64..3,
        ) {
            // Chunks of which the last ones are added, at a pass or at two.
            let first = weights.len() as u64;
            let all: Vec<u64> = weights.iter().copied().chain(added.iter().copied()).collect();
            let changes = [(0, first), (changed_at, first + added.len() as u64 / 2), (2, all.len() as u64)];
            let spec = OrderSpec { seed: 3, shuffle: true, lanes, window };
            let order = LaneOrder::grown(spec, all.as_slice().into(), &changes).unwrap();
            let alone = self::order(lanes, window, &weights);
            let (weights, mut received, mut ordinal, mut begin) = (all, vec![0; lanes as usize], 0, 0);
            for epoch in 0..4 {
                let pass = order.pass(epoch);
                let held = changes.iter().rev().find(|one| one.0 <= epoch).unwrap().1;
                if held == first {
                    prop_assert_eq!(&pass.chunks, &alone.pass(epoch).chunks);
                }
                let mut seen = pass.chunks.clone();
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..held as u32).collect::<Vec<_>>());
                prop_assert_eq!(pass.windows(), held.div_ceil(window));
                for number in 0..pass.windows() {
                    let span = order.window(&pass, number);
                    let held: u64 = pass.chunks[span.chunks.clone()].iter().map(|&c| weights[c as usize]).sum();
                    prop_assert_eq!(held, span.weight);
                    let mut end = 0;
                    for lane in 0..lanes {
                        let (slice, tokens) = (span.slice(lane), span.lane_tokens(lane));
                        prop_assert_eq!(slice.start, end);
                        prop_assert_eq!(slice.end - slice.start, tokens.end - tokens.start);
                        prop_assert_eq!(tokens.start, received[lane as usize]);
                        for token in tokens.clone() {
                            let unit = token * lanes + lane;
                            prop_assert_eq!(order.passes().of(unit), epoch);
                            prop_assert_eq!(order.ordinal_of(&pass, unit), ordinal);
                        }
                        received[lane as usize] = tokens.end;
                        end = slice.end;
                    }
                    prop_assert_eq!(end, span.weight);
                    prop_assert_eq!((span.begin, order.passes().of_window(ordinal)), (begin, (epoch, number)));
                    begin += span.weight;
                    ordinal += 1;
                    let (least, most) = (received.iter().min().unwrap(), received.iter().max().unwrap());
                    prop_assert!(most - least <= 1);
                }
            }
        }
    }

    #[test]
    fn defaults_follow_the_page() {
        // 100 chunks of 1 M tokens: 64 Mi tokens take 68 of them.
        assert_eq!(default_window(100, 100_000_000, 1), 68);
        assert_eq!(default_window(100, 100, 1), 100);
        assert_eq!(default_window(1, u64::MAX, 1), 1);
        assert_eq!(default_window(0, 0, 1), 1);
        assert_eq!(default_lanes(512, 1_000_000, 100, 68), 512);
        assert_eq!(default_lanes(12, 40, 1, 1), 4);
        assert_eq!(default_lanes(12, 3, 1, 1), 1);
        assert_eq!(default_lanes(7, 40, 1, 1), 1);
    }

    #[test]
    fn what_cannot_be_ordered_is_refused() {
        let spec = OrderSpec { seed: 0, shuffle: true, lanes: 1, window: 1 };
        assert!(LaneOrder::new(spec, [0, 0].as_slice().into()).is_err());
        assert!(LaneOrder::new(spec, [u64::MAX, 1].as_slice().into()).is_err());
        assert!(LaneOrder::new(OrderSpec { lanes: 0, ..spec }, [1].as_slice().into()).is_err());
        assert!(LaneOrder::new(OrderSpec { shuffle: false, lanes: 2, ..spec }, [1].as_slice().into()).is_err());
        for added in [[(0, 1), (1, 3)], [(1, 1), (1, 2)], [(0, 2), (1, 1)], [(0, 0), (1, 2)]] {
            assert!(LaneOrder::grown(spec, [1, 1].as_slice().into(), &added).is_err());
        }
    }
}
