//! When a mixture's sources end: at the first round in which a lane of one has no row left.
//!
//! Between changes of L, and of which sources are left, what a lane gives is counted in closed form, and what it holds is a
//! number of rows.

use std::ops::Range;
use std::sync::Arc;

use super::super::lanes::dealt;
use super::super::moves::POINTS;
use super::{Exhausted, MOST_ROUNDS, Mixture, Stretch};
use crate::error::Result;

/// A source that has an end, while it is found out when that comes.
#[derive(Debug)]
struct Limited {
    source: usize,
    /// What each of its lanes holds for the rows of the length of now: tokens, an overlap apart.
    tokens: Vec<u64>,
    /// The rows that each gave before those, from where the last source left.
    before: Vec<u64>,
    /// The rows that each has, those included.
    rows: Vec<u64>,
    /// How many of them are given before the round `counted`.
    taken: Vec<u64>,
    counted: Option<u64>,
}

impl Mixture {
    /// Ends the mixture, or goes on without a source, at the first round in which a lane of a source has no row left.
    /// `limits` are the tokens that the lanes of each source are dealt; `None` for one without end. With the last
    /// `overlap` of each lane no row begins.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] if there are too many rows to be counted.
    pub fn limit(&mut self, limits: &[Option<u64>], overlap: u64, exhausted: Exhausted) -> Result<()> {
        let limited = limits.iter().enumerate().filter_map(|(source, &tokens)| Some((source, tokens?)));
        let limited = limited.map(|(source, tokens)| Limited::new(source, tokens, self.source_lanes[source], overlap));
        let mut left: Vec<Limited> = limited.collect();
        // The stretch from which on rows are counted, and the round up to which all is known.
        let (mut base, mut from) = (0, 0);
        loop {
            let (stride, end) = (self.lengths.of(from), self.end.unwrap_or(MOST_ROUNDS));
            let until = self.lengths.next_change(from).map_or(end, |change| change.min(end));
            left.iter_mut().for_each(|one| one.cut(stride));
            let short = self.first_short(&mut left, base, from..until);
            from = match short {
                None if until == end => return Ok(()),
                None => until,
                Some((round, _)) if exhausted == Exhausted::Stop => {
                    self.end = Some(round);
                    return Ok(());
                }
                Some((round, source)) => {
                    left.retain(|other| other.source != source);
                    round
                }
            };
            for one in &mut left {
                self.count(one, base, from);
                one.go_on(stride);
            }
            if let Some((_, source)) = short {
                self.leave(source, from)?;
                base = self.stretch_of(from);
                left.iter_mut().for_each(Limited::count_anew);
            }
        }
    }

    /// The first of some rounds in which a source is short of a row, and the first such source; rows are counted from a
    /// stretch on.
    fn first_short(&self, limited: &mut [Limited], base: usize, rounds: Range<u64>) -> Option<(u64, usize)> {
        if rounds.is_empty() {
            return None;
        }
        // Those that end first come first: then of most others one round is looked at, and counted for good.
        let stretch = &self.stretches[self.stretch_of(rounds.start)];
        limited.sort_by_cached_key(|one| one.expected(stretch));
        let mut found: Option<(u64, usize)> = None;
        for one in limited {
            let most = found.map_or(rounds.end, |(round, _)| round);
            self.count(one, base, most);
            if one.is_short(|_| 0) {
                found = Some((self.short_round(one, base, rounds.start..most), one.source));
            } else if found.is_some_and(|(_, source)| one.source < source)
                && one.is_short(|lane| self.takes(one.source, most, self.takers(one.source, lane)).count() as u64)
            {
                // Of two that are short in the same round the first one counts.
                found = Some((most, one.source));
            }
        }
        found
    }

    /// The first of some rounds in which a source is short of a row; in the last one it is.
    fn short_round(&self, one: &Limited, stretch: usize, rounds: Range<u64>) -> u64 {
        // From one short round on all are.
        let (mut low, mut high) = (rounds.start, rounds.start + 1);
        while high < rounds.end && !self.is_short(one, stretch, high - 1) {
            (low, high) = (high, rounds.start + (high - rounds.start) * 2);
        }
        high = high.min(rounds.end) - 1;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.is_short(one, stretch, middle) { high = middle } else { low = middle + 1 }
        }
        low
    }

    /// Whether a lane of a source has too few rows for all that is taken from a stretch on and up to a round's end.
    fn is_short(&self, one: &Limited, stretch: usize, round: u64) -> bool {
        let mut lanes = one.rows.iter().enumerate();
        lanes.any(|(lane, &rows)| self.given_since(stretch, one.source, lane as u64, round + 1) > rows)
    }

    /// Counts what the lanes of a source give from a stretch on and before a round, unless that was done.
    fn count(&self, one: &mut Limited, stretch: usize, round: u64) {
        if one.counted != Some(round) {
            let lanes = 0..self.source_lanes[one.source];
            one.taken = lanes.map(|lane| self.given_since(stretch, one.source, lane, round)).collect();
            one.counted = Some(round);
        }
    }

    /// Goes on without a source from a round on, up to where no other has a weight.
    fn leave(&mut self, source: usize, round: u64) -> Result<()> {
        self.left[source] = Some(round);
        self.kept = Arc::default();
        let at = self.stretch_of(round);
        let mut later = self.stretches.split_off(at);
        if later[0].phase.round < round {
            self.stretches.push(later[0].clone());
            let Stretch { phase: first, into, .. } = &mut later[0];
            let rounds = *into + round - first.round;
            (first.draw, *into, first.round) = (first.draw + rounds / first.every, rounds % first.every, round);
        }
        for Stretch { mut phase, bounds, step, into } in later {
            let weight = std::mem::take(&mut phase.weights[source]);
            if phase.weights.iter().all(|&weight| weight == 0.0) {
                self.end = Some(phase.round);
                if self.stretches.is_empty() {
                    phase.weights[source] = weight;
                    self.stretches.push(Stretch { phase, bounds, step, into });
                }
                return Ok(());
            }
            self.stretches.push(Stretch { into, ..Stretch::new(phase, step)? });
        }
        Ok(())
    }
}

impl Limited {
    fn new(source: usize, tokens: u64, lanes: u64, overlap: u64) -> Self {
        let tokens = (0..lanes).map(|lane| dealt(lane, lanes, tokens).saturating_sub(overlap)).collect();
        let none = vec![0; lanes as usize];
        Self { source, tokens, before: none.clone(), rows: none, taken: Vec::new(), counted: None }
    }

    /// Cuts what its lanes hold into rows.
    fn cut(&mut self, stride: u64) {
        for ((rows, before), tokens) in self.rows.iter_mut().zip(&self.before).zip(&self.tokens) {
            *rows = before + tokens / stride;
        }
    }

    /// Goes on behind the rows that were counted.
    fn go_on(&mut self, stride: u64) {
        for ((tokens, before), &taken) in self.tokens.iter_mut().zip(&mut self.before).zip(&self.taken) {
            *tokens -= (taken - *before) * stride;
            *before = taken;
        }
    }

    /// Counts from here on what it gives.
    fn count_anew(&mut self) {
        self.before.fill(0);
        self.counted = None;
    }

    /// Whether a lane has too few rows for those that were counted, and some more of each lane.
    fn is_short(&self, more: impl Fn(u64) -> u64) -> bool {
        let mut lanes = self.rows.iter().zip(&self.taken).zip(0..);
        lanes.any(|((&rows, &taken), lane)| taken + more(lane) > rows)
    }

    /// After how much of a stretch it is about at its end.
    fn expected(&self, stretch: &Stretch) -> u128 {
        let share = stretch.bounds[self.source + 1] - stretch.bounds[self.source];
        let fewest = self.rows.iter().zip(&self.before).map(|(rows, before)| rows - before).min().unwrap_or(0);
        let each = u128::from(POINTS) * self.rows.len() as u128;
        (u128::from(fewest) * each).checked_div(share.into()).unwrap_or(u128::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::strides::Strides;
    use super::super::Phase;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sources_end_where_a_lane_is_short(
            weights in prop::collection::vec(0.05..1.0_f64, 3),
            later in prop::collection::vec(prop_oneof![4 => 0.05..1.0_f64, 1 => Just(0.0)], 3)
                .prop_filter("one is positive", |all| all.iter().any(|&one| one > 0.0)),
            tokens in prop::collection::vec(prop::option::of(0_u64..60), 3), change in 1_u64..20, seed: u64, stop: bool,
            lengths in prop::collection::vec((0_u64..8, 1_u64..6), 1..4), overlap in 0_u64..2,
            together: bool, every in 1_u64..4,
        ) {
            let own = vec![6, 3, 1];
            let exhausted = if stop { Exhausted::Stop } else { Exhausted::Leave };
            let phase = |draw, weights: &[f64]| Phase { round: draw * every, draw, every, weights: weights.to_vec() };
            let phases = vec![phase(0, &weights), phase(change, &later)];
            let (mut strides, mut of_rounds, mut first) = (Strides::new(lengths[0].1), vec![lengths[0].1; 400], 0);
            for &(rounds, stride) in &lengths[1..] {
                first += rounds;
                strides = strides.changed(first, stride).unwrap();
                of_rounds[first as usize..].fill(stride);
            }
            let whole = Mixture::new(seed, 6, together, own.clone(), phases, strides).unwrap();
            let mut mixture = whole.clone();
            mixture.limit(&tokens, overlap, exhausted).unwrap();
            // Row by row: a source goes when a lane has taken all that it has.
            let mut gone = vec![false; 3];
            let mut used = own.iter().map(|&own| vec![0_u64; own as usize]).collect::<Vec<_>>();
            let mut rows = own.iter().map(|&own| vec![vec![]; own as usize]).collect::<Vec<_>>();
            let (mut end, mut left_at) = (None, vec![None; 3]);
            'rounds: for round in 0..400 {
                let length = of_rounds[round as usize];
                let drawn = loop {
                    let weights = if round < change * every { &weights } else { &later };
                    let left: Vec<f64> =
                        weights.iter().zip(&gone).map(|(&weight, &gone)| if gone { 0.0 } else { weight }).collect();
                    if left.iter().all(|&weight| weight == 0.0) {
                        end = Some(round);
                        break 'rounds;
                    }
                    let mut now = whole.clone();
                    now.stretches = vec![Stretch::new(phase(0, &left), whole.stretches[0].step).unwrap()];
                    let drawn: Vec<usize> = (0..6).map(|lane| now.source(round * 6 + lane)).collect();
                    let mut after = used.clone();
                    for (lane, &source) in drawn.iter().enumerate() {
                        after[source][lane * own[source] as usize / 6] += length;
                    }
                    let short = (0..3).find(|&source| tokens[source].is_some_and(|tokens| {
                        let dealt = |lane: u64| ((tokens + own[source] - 1 - lane) / own[source]).saturating_sub(overlap);
                        (0..own[source]).any(|lane| after[source][lane as usize] > dealt(lane))
                    }));
                    match short {
                        None => { used = after; break drawn; }
                        Some(_) if stop => { end = Some(round); break 'rounds; }
                        Some(source) => (gone[source], left_at[source]) = (true, Some(round)),
                    }
                };
                for (lane, source) in drawn.into_iter().enumerate() {
                    prop_assert_eq!(mixture.source(round * 6 + lane as u64), source, "round {}", round);
                    rows[source][lane * own[source] as usize / 6].push(length);
                }
            }
            prop_assert_eq!(mixture.rows(), end.map(|round| round * 6));
            for (source, left) in left_at.into_iter().enumerate() {
                for row in 0..2400 {
                    prop_assert_eq!(mixture.has_left(source, row), left.is_some_and(|round| round * 6 < row));
                }
            }
            for (source, lanes) in rows.iter().enumerate() {
                let strides = mixture.strides(source).unwrap();
                for (lane, lengths) in lanes.iter().enumerate() {
                    let found: Vec<u64> = (0..lengths.len()).map(|row| strides.lane(lane as u64).of(row as u64)).collect();
                    prop_assert_eq!(&found, lengths);
                }
            }
        }
    }
}
