//! What has to be read: the chunks of a window, and of each the stretch that own lanes need. No I/O.

use std::ops::Range;

use crate::index::TokenColumn;
use crate::order::{LaneOrder, LaneSet, Pass, WindowSpan};

/// A chunk of a window, as far as it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPlan {
    /// Its number in the index.
    pub chunk: u32,
    /// Where it begins in the window.
    pub at: u64,
    /// What is needed of its expanded tokens: from the first to the last that an own lane has.
    pub need: Range<u64>,
}

/// What own lanes need of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowPlan {
    /// The window.
    pub span: WindowSpan,
    /// The own lanes.
    pub lanes: LaneSet,
    /// The chunks that hold a token of theirs, in the window's order.
    pub chunks: Vec<ChunkPlan>,
}

impl WindowPlan {
    /// Plans one window of a pass for some lanes.
    pub fn new(order: &LaneOrder, pass: &Pass, number: u64, lanes: LaneSet) -> Self {
        let span = order.window(pass, number);
        let stretches: Vec<Range<u64>> =
            lanes.iter().map(|part| span.slice(part.start).start..span.slice(part.end - 1).end).collect();
        let mut chunks = Vec::new();
        let mut at = 0;
        for &chunk in &pass.chunks[span.chunks.clone()] {
            let end = at + order.weights()[chunk as usize];
            // Stretches are sorted: those that overlap the chunk are neighbours.
            let first = stretches.partition_point(|stretch| stretch.end <= at);
            let last = stretches.partition_point(|stretch| stretch.start < end);
            let overlap = stretches[first..last.max(first)].iter().filter(|stretch| !stretch.is_empty());
            let hull = overlap.fold(None, |hull: Option<Range<u64>>, stretch| {
                let start = hull.map_or(stretch.start.max(at), |hull| hull.start);
                Some(start..stretch.end.min(end))
            });
            if let Some(hull) = hull.filter(|hull| !hull.is_empty()) {
                chunks.push(ChunkPlan { chunk, at, need: hull.start - at..hull.end - at });
            }
            at = end;
        }
        Self { span, lanes, chunks }
    }

    /// The window's number, counted through all passes.
    pub fn ordinal(&self, order: &LaneOrder) -> u64 {
        order.passes().first_window(self.span.epoch) + self.span.number
    }

    /// Stored bytes of the chunks that are read.
    pub fn bytes(&self, column: &TokenColumn) -> u64 {
        self.chunks.iter().map(|plan| column.chunks.bytes(plan.chunk as usize)).sum()
    }

    /// The place of a lane among the own lanes, from 0.
    pub fn lane_number(&self, lane: u64) -> Option<usize> {
        let mut before = 0;
        for part in &self.lanes {
            if part.contains(&lane) {
                return Some((before + lane - part.start) as usize);
            }
            before += part.end - part.start;
        }
        None
    }
}

impl ChunkPlan {
    /// The most tokens that are kept of the chunk.
    pub fn most_tokens(&self, column: &TokenColumn) -> usize {
        self.at_most(column.tokens[self.chunk as usize])
    }

    /// The most documents of which a token is kept.
    pub fn most_documents(&self, column: &TokenColumn) -> usize {
        let (documents, rows) = (column.documents[self.chunk as usize], column.chunks.rows(self.chunk as usize));
        // Not counted is the largest number.
        self.at_most(documents.min(rows))
    }

    fn at_most(&self, count: u64) -> usize {
        usize::try_from(count.min(self.need.end - self.need.start)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::OrderSpec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn own_slices_are_covered_and_reads_stay_within_the_bound(
            weights in prop::collection::vec(0_u64..40, 1..15).prop_filter("some", |w| w.iter().sum::<u64>() > 0),
            window in 1_u64..8, share in 1_u64..4, world in 1_u64..6,
        ) {
            let lanes = share * world;
            let spec = OrderSpec { seed: 1, shuffle: true, lanes, window };
            let order = LaneOrder::new(spec, weights.as_slice().into()).unwrap();
            let pass = order.pass(2);
            for number in 0..pass.windows() {
                let mut read = 0;
                for rank in 0..world {
                    let own = share * rank..share * (rank + 1);
                    let plan = WindowPlan::new(&order, &pass, number, vec![own.clone()]);
                    for lane in own {
                        prop_assert_eq!(plan.lane_number(lane), Some((lane % share) as usize));
                        for at in plan.span.slice(lane) {
                            let covered = plan.chunks.iter().any(|c| c.need.contains(&(at.wrapping_sub(c.at))));
                            prop_assert!(covered, "lane {} at {}", lane, at);
                        }
                    }
                    prop_assert_eq!(plan.lane_number(lanes), None);
                    read += plan.chunks.iter().map(|c| weights[c.chunk as usize]).sum::<u64>();
                }
                let span = order.window(&pass, number);
                let sizes = pass.chunks[span.chunks.clone()].iter().map(|&chunk| weights[chunk as usize]);
                // Each of the R - 1 cuts between ranks has one chunk read once more.
                let bound = span.weight + (world - 1) * sizes.max().unwrap_or(0);
                prop_assert!(read <= bound, "{} > {}", read, bound);
            }
        }
    }
}
