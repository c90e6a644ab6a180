//! Rows: how the lanes' endless streams are cut, to which epoch a row belongs, and where a finite run ends.

use std::ops::Range;

use super::lanes::{MOST_UNITS, dealt};
use super::passes::Passes;
use super::strides::{LaneStrides, Strides};
use crate::error::{Error, Result};

/// What becomes of the tokens after a finite run's last whole row or batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remainder {
    /// They are left out, and counted.
    #[default]
    Drop,
    /// They are given in rows that are filled up with padding.
    Pad,
}

/// The arithmetic of rows over a lane order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// N.
    pub lanes: u64,
    /// L: tokens from one row's start to the next in a lane.
    pub strides: LaneStrides,
    /// o: tokens that a row shares with the next of its lane.
    pub overlap: u64,
    /// T: weights of passes, and where each begins.
    pub passes: Passes,
    /// Passes in the run; `None` for no end.
    pub epochs: Option<u64>,
    /// What becomes of the rest of a finite run.
    pub remainder: Remainder,
}

impl Rows {
    /// L of a row.
    pub fn stride(&self, row: u64) -> u64 {
        self.strides.lane(row % self.lanes).of(row / self.lanes)
    }

    /// Tokens in a row that is full.
    pub fn row_tokens(&self, row: u64) -> u64 {
        self.stride(row) + self.overlap
    }

    /// Where a row begins, in tokens of its lane's stream.
    pub fn first_token(&self, row: u64) -> u64 {
        self.strides.lane(row % self.lanes).token(row / self.lanes)
    }

    /// The unit of the dealt line that is the first token of a row. Increases with the row if all lanes are alike.
    pub fn first_unit(&self, row: u64) -> u64 {
        self.first_token(row) * self.lanes + row % self.lanes
    }

    /// The epoch to which a row belongs: that of its first token.
    pub fn epoch_of(&self, row: u64) -> u64 {
        self.passes.of(self.first_unit(row))
    }

    /// Tokens in a row; fewer than [`Rows::row_tokens`] only at a padded run's end. A row that would hold nothing but
    /// what it shares with the row before holds nothing.
    pub fn tokens_of(&self, row: u64) -> u64 {
        let left = self.lane_tokens(row % self.lanes).unwrap_or(u64::MAX).saturating_sub(self.first_token(row));
        if left > self.overlap { left.min(self.row_tokens(row)) } else { 0 }
    }

    /// The unit that is the last token of a row; `None` if it holds none.
    pub fn last_unit(&self, row: u64) -> Option<u64> {
        let tokens = self.tokens_of(row);
        (tokens > 0).then(|| (self.first_token(row) + tokens - 1) * self.lanes + row % self.lanes)
    }

    /// Where a lane's first row at or behind row `first` begins, in tokens of the lane's stream.
    pub fn lane_token(&self, lane: u64, first: u64) -> u64 {
        self.strides.lane(lane).token(dealt(lane, self.lanes, first))
    }

    /// The first pass of which no token lies in a row, or before it in its lane.
    pub fn pass_after(&self, row: u64) -> u64 {
        let behind = self.strides.lane(row % self.lanes).token(row / self.lanes + 1) + self.overlap;
        self.passes.first_from((behind - 1) * self.lanes + row % self.lanes + 1)
    }

    /// A range that holds all rows of which a token is one of the units `begin..end`.
    pub fn touching(&self, begin: u64, end: u64) -> Range<u64> {
        let (begin, end) = ((begin / self.lanes).saturating_sub(self.overlap), end / self.lanes);
        let first = self.strides.iter().map(|lane| lane.round(begin)).min().unwrap_or(0);
        let last = self.strides.iter().map(|lane| lane.round(end)).max().unwrap_or(0);
        first * self.lanes..(last + 1) * self.lanes
    }

    /// The first row of an epoch.
    pub fn first_row(&self, epoch: u64) -> u64 {
        let units = self.passes.first_unit(epoch);
        let first = |lane| self.strides.lane(lane).first_from(dealt(lane, self.lanes, units)) * self.lanes + lane;
        (0..self.lanes).map(first).min().unwrap_or(0)
    }

    /// Rows of a finite run (with [`Remainder::Pad`], those that hold a token); `None` for a run without end.
    ///
    /// They are rows `0..n` if all lanes are alike: none has more rows than a lane before it then.
    pub fn count(&self) -> Option<u64> {
        (0..self.lanes).map(|lane| self.lane_rows(lane)).sum()
    }

    /// Tokens of a lane's stream in a finite run.
    pub fn lane_tokens(&self, lane: u64) -> Option<u64> {
        Some(dealt(lane, self.lanes, self.units()?))
    }

    /// Units of a finite run.
    fn units(&self) -> Option<u64> {
        self.epochs.map(|epochs| self.passes.first_unit(epochs))
    }

    fn lane_rows(&self, lane: u64) -> Option<u64> {
        let tokens = self.lane_tokens(lane)?.saturating_sub(self.overlap);
        let strides = self.strides.lane(lane);
        Some(match self.remainder {
            Remainder::Drop => strides.round(tokens),
            Remainder::Pad => strides.first_from(tokens),
        })
    }

    /// How many tokens the first `rows` rows of a finite run leave out (an overlap's tokens count once).
    pub fn left_out(&self, rows: u64) -> Option<u64> {
        let mut left = 0;
        for lane in 0..self.lanes {
            let tokens = self.lane_tokens(lane)?;
            let given = dealt(lane, self.lanes, rows);
            let reached = if given == 0 { 0 } else { self.strides.lane(lane).token(given) + self.overlap };
            left += tokens.saturating_sub(reached);
        }
        Some(left)
    }

    /// Refuses what is beyond counting: a run of too many passes, or row `row`.
    ///
    /// # Errors
    /// [`Error::Argument`] that says where the end of counting is.
    pub fn check_countable(&self, row: u64) -> Result<()> {
        if let Some(epochs) = self.epochs.filter(|&epochs| self.passes.first_unit(epochs) >= MOST_UNITS) {
            return Err(Error::Argument(format!("a run may have less than 2^61 tokens, got {epochs} epochs: fewer")));
        }
        let round = row / self.lanes;
        let behind = |lane: &Strides| u128::from(lane.token(round)) + 2 * u128::from(lane.of(round) + self.overlap);
        let behind = self.strides.iter().map(behind).max().unwrap_or(0);
        if behind * u128::from(self.lanes) >= u128::from(MOST_UNITS) {
            return Err(Error::Argument(format!("row {row} lies beyond the 2^61 tokens that can be counted")));
        }
        Ok(())
    }

    /// Tokens of the first `rows` rows, an overlap's once.
    pub fn tokens_before(&self, rows: u64) -> u64 {
        (0..self.lanes).map(|lane| self.lane_token(lane, rows)).sum()
    }

    /// Refuses data of which an epoch cannot fill a batch of rows as they are to come.
    ///
    /// # Errors
    /// [`Error::Argument`] that says what there is and what would do.
    pub fn check_enough(&self, batch: u64) -> Result<()> {
        // Rows that begin in an epoch, whatever its place in the stream: whole rounds of the lanes.
        let stride = self.strides.current();
        let fewest = self.passes.total() / stride.saturating_mul(self.lanes) * self.lanes;
        // What is refused anyway is not counted lane by lane.
        let run = if fewest < batch { u64::MAX } else { self.count().unwrap_or(u64::MAX) };
        if fewest >= batch && (run >= batch || self.remainder == Remainder::Pad && run > 0) {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "too little data: a pass holds {} tokens, which fill {} rows of {} in {} lanes; a global batch needs {batch}\n\
             hint: a smaller global batch size, fewer lanes, a smaller seq_len, or more data",
            self.passes.total(),
            fewest.min(run),
            stride + self.overlap,
            self.lanes,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::passes::Extent;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn closed_forms_agree_with_counting(
            lanes in 1_u64..7, stride in 1_u64..9, changes in prop::collection::vec((1_u64..7, 1_u64..9), 0..3),
            behind in prop::option::of(prop::collection::vec(0_u64..5, 6)),
            overlap in 0_u64..3, total in 1_u64..120, epochs in 1_u64..4, pad: bool,
            added in prop::collection::vec((0_u64..3, 0_u64..40), 0..3),
        ) {
            let remainder = if pad { Remainder::Pad } else { Remainder::Drop };
            // Each lane of a mixture's source has given another number of rows when L changes.
            let lane = |lane: u64| {
                let behind = behind.as_ref().map_or(0, |behind| behind[lane as usize]);
                let (mut strides, mut lengths, mut round) = (Strides::new(stride), vec![stride; 800], 0);
                for &(rounds, stride) in &changes {
                    round += rounds + behind;
                    strides = strides.changed(round, stride).unwrap();
                    lengths[round as usize..].fill(stride);
                }
                (strides, lengths)
            };
            let (all, lengths): (Vec<_>, Vec<_>) = (0..lanes).map(lane).unzip();
            let starts: Vec<Vec<u64>> = lengths.iter().map(|lengths| {
                lengths.iter().scan(0, |at, &length| Some(std::mem::replace(at, *at + length))).collect()
            }).collect();
            let is_alike = behind.is_none();
            let strides = if is_alike { LaneStrides::alike(all[0].clone()) } else { LaneStrides::each(all) };
            let (mut passes, mut totals, mut at) = (passes(total), vec![total; 9], 0);
            for (later, more) in added {
                at += later;
                totals[at as usize..].iter_mut().for_each(|total| *total += more);
                passes = passes.changed(at, extent(totals[at as usize])).unwrap();
            }
            let rows = Rows { lanes, strides, overlap, passes, epochs: Some(epochs), remainder };
            let units: u64 = totals[..epochs as usize].iter().sum();
            let mut before = 0;
            for row in 0..200 {
                let epoch = rows.epoch_of(row);
                prop_assert!(epoch >= before || !is_alike);
                before = epoch;
            }
            for epoch in 0..4 {
                let first = (0..).find(|&row| rows.epoch_of(row) >= epoch).unwrap();
                prop_assert_eq!(rows.first_row(epoch), first);
            }
            // Deal unit by unit.
            let mut tokens = vec![0_u64; lanes as usize];
            let mut reached = std::collections::BTreeMap::new();
            for unit in 0..units {
                let lane = (unit % lanes) as usize;
                let token = tokens[lane];
                for (k, &start) in starts[lane].iter().enumerate().take_while(|(_, start)| **start <= token) {
                    if token < start + lengths[lane][k] + overlap {
                        let row = k as u64 * lanes + lane as u64;
                        reached.entry(row).or_insert((unit, unit)).1 = unit;
                        prop_assert!(rows.touching(unit, unit + 1).contains(&row));
                    }
                }
                tokens[lane] += 1;
            }
            // The first pass that has none of the tokens up to a row's.
            for row in 0..200 {
                let used = rows.first_unit(row) + (rows.row_tokens(row) - 1) * lanes;
                let after = rows.pass_after(row);
                prop_assert!(rows.passes.first_unit(after) > used);
                prop_assert!(after == 0 || rows.passes.first_unit(after - 1) <= used);
                prop_assert!(row == 0 || rows.pass_after(row - 1) <= after || !is_alike);
            }
            let count = rows.count().unwrap();
            let (mut tokens_before, mut full) = (0, 0);
            // More than there are in any lane.
            for row in 0..lanes * 610 {
                let (lane, k) = ((row % lanes) as usize, (row / lanes) as usize);
                let (start, length) = (starts[lane][k], lengths[lane][k]);
                prop_assert_eq!(rows.first_token(row), start);
                prop_assert_eq!(rows.row_tokens(row), length + overlap);
                prop_assert_eq!(rows.tokens_before(row), tokens_before);
                tokens_before += length;
                for lane in 0..lanes {
                    let next = (row..).find(|row| row % lanes == lane).unwrap();
                    prop_assert_eq!(rows.lane_token(lane, row), rows.first_token(next));
                }
                let units = rows.last_unit(row).map(|last| (rows.first_unit(row), last));
                let more_than_shared = tokens[lane] > start + overlap;
                prop_assert_eq!(units, reached.get(&row).copied().filter(|_| more_than_shared), "row {}", row);
                let there = match remainder {
                    Remainder::Drop => start + length + overlap <= tokens[lane],
                    Remainder::Pad => start + overlap < tokens[lane],
                };
                full += u64::from(there);
                prop_assert!(there == (row < count) || !is_alike, "row {}", row);
            }
            prop_assert_eq!(full, count);
            for given in [0, count / 2, count] {
                let left = (0..lanes).map(|lane| {
                    let rows = (0..given).filter(|row| row % lanes == lane).count();
                    let reached = if rows == 0 { 0 } else { starts[lane as usize][rows] + overlap };
                    tokens[lane as usize].saturating_sub(reached)
                });
                prop_assert_eq!(rows.left_out(given), Some(left.sum::<u64>()));
            }
        }
    }

    fn extent(total: u64) -> Extent {
        Extent { chunks: 1, total, windows: 1 }
    }

    fn passes(total: u64) -> Passes {
        Passes::new(extent(total))
    }

    #[test]
    fn too_little_data_is_refused_with_the_numbers() {
        let strides = LaneStrides::alike(Strides::new(10));
        let rows = Rows { lanes: 4, strides, overlap: 0, passes: passes(39), epochs: None, remainder: Remainder::Drop };
        let message = rows.check_enough(4).unwrap_err().to_string();
        assert!(message.contains("39 tokens") && message.contains("needs 4"), "{message}");
        let rows = Rows { passes: passes(40), ..rows };
        assert!(rows.check_enough(4).is_ok());
        assert!(rows.check_enough(8).is_err());
        let longer = LaneStrides::alike(Strides::new(5).changed(1, 11).unwrap());
        assert!(Rows { strides: longer, ..rows.clone() }.check_enough(4).is_err());
        assert!(Rows { overlap: 1, epochs: Some(1), ..rows }.check_enough(4).is_err());
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let strides = LaneStrides::alike(Strides::new(8192));
        let (passes, remainder) = (passes(1 << 44), Remainder::Drop);
        let rows = Rows { lanes: 4096, strides, overlap: 1, passes, epochs: None, remainder };
        assert!(rows.check_countable(1 << 40).is_ok());
        assert!(rows.first_unit(1 << 40) < MOST_UNITS);
        assert!(rows.check_countable(1 << 50).is_err());
        assert!(rows.check_countable(u64::MAX).is_err());
        for (epochs, is_countable) in [(1000, true), (1 << 20, false), (u64::MAX, false)] {
            let rows = Rows { epochs: Some(epochs), ..rows.clone() };
            assert_eq!(rows.check_countable(0).is_ok(), is_countable);
        }
    }
}
