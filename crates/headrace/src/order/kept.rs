//! How many rows a mixture's sources gave before its stretches, kept once they were counted.
//!
//! Not here: how they are counted ([`super::mixture`]).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that are kept of one mixture: 8 MiB.
const MOST_KEPT: usize = 1 << 20;
/// What was not counted yet.
const UNKNOWN: u64 = u64::MAX;

/// For each source, and each of its lanes, the rows that were given before every so many stretches.
#[derive(Debug)]
pub struct Kept {
    /// So many stretches lie between two marks, the first of which is behind the first stretches.
    every: usize,
    marks: usize,
    /// For each source its first counter: that of all its rows, then those of its lanes.
    first: Vec<usize>,
    /// By counter, and by mark. All threads that count one come to the same.
    rows: Box<[AtomicU64]>,
}

impl Kept {
    /// For so many stretches, and sources with so many lanes each.
    pub fn new(stretches: usize, source_lanes: &[u64]) -> Self {
        Self::with_at_most(MOST_KEPT, stretches, source_lanes)
    }

    /// The same with at most so many numbers.
    pub fn with_at_most(numbers: usize, stretches: usize, source_lanes: &[u64]) -> Self {
        let mut counters = 0;
        let next = |&lanes: &u64| {
            let first = counters;
            counters += 1 + lanes as usize;
            first
        };
        let first = source_lanes.iter().map(next).collect();
        // Before the first stretch and behind the last one nothing needs a mark.
        let every = (stretches.saturating_sub(1) * counters).div_ceil(numbers).max(1);
        let marks = stretches.saturating_sub(1) / every;
        let rows = (0..marks * counters).map(|_| AtomicU64::new(UNKNOWN)).collect();
        Self { every, marks, first, rows }
    }

    /// The last mark at or before a stretch, as a stretch, and the rows that a source, or a lane of it, gave before it.
    /// `count` counts them in some stretches.
    pub fn before(
        &self,
        source: usize,
        lane: Option<u64>,
        stretch: usize,
        count: impl Fn(Range<usize>) -> u64,
    ) -> (usize, u64) {
        let counter = self.first[source] + lane.map_or(0, |lane| 1 + lane as usize);
        let marks = stretch / self.every;
        let kept = &self.rows[counter * self.marks..][..marks];
        let known = |&mark: &usize| kept[mark].load(Ordering::Relaxed) != UNKNOWN;
        let from = (0..marks).rev().find(known);
        let (from, mut rows) = from.map_or((0, 0), |mark| (mark + 1, kept[mark].load(Ordering::Relaxed)));
        for (mark, place) in kept.iter().enumerate().skip(from) {
            rows += count(mark * self.every..(mark + 1) * self.every);
            place.store(rows, Ordering::Relaxed);
        }
        (marks * self.every, rows)
    }
}
