//! Rows: how the lanes' endless streams are cut, to which epoch a row belongs, and where a finite run ends.

use std::ops::Range;

use super::lanes::{MOST_UNITS, dealt};
use super::strides::Strides;
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
    pub strides: Strides,
    /// o: tokens that a row shares with the next of its lane.
    pub overlap: u64,
    /// T: weight of a pass.
    pub total: u64,
    /// Passes in the run; `None` for no end.
    pub epochs: Option<u64>,
    /// What becomes of the rest of a finite run.
    pub remainder: Remainder,
}

impl Rows {
    /// Tokens in a row that is full.
    pub fn row_tokens(&self, row: u64) -> u64 {
        self.strides.of(row / self.lanes) + self.overlap
    }

    /// Where a row begins, in tokens of its lane's stream.
    pub fn first_token(&self, row: u64) -> u64 {
        self.strides.token(row / self.lanes)
    }

    /// The unit of the dealt line that is the first token of a row. Increases with the row.
    pub fn first_unit(&self, row: u64) -> u64 {
        self.first_token(row) * self.lanes + row % self.lanes
    }

    /// The epoch to which a row belongs: that of its first token.
    pub fn epoch_of(&self, row: u64) -> u64 {
        self.first_unit(row) / self.total
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
        let rounds = first / self.lanes + u64::from(first % self.lanes > lane);
        self.strides.token(rounds)
    }

    /// A range that holds all rows of which a token is one of the units `begin..end`.
    pub fn touching(&self, begin: u64, end: u64) -> Range<u64> {
        let first = self.strides.round((begin / self.lanes).saturating_sub(self.overlap));
        let last = self.strides.round(end / self.lanes) + 1;
        first * self.lanes..last * self.lanes
    }

    /// The first row of an epoch.
    pub fn first_row(&self, epoch: u64) -> u64 {
        let (token, rest) = (epoch * self.total / self.lanes, epoch * self.total % self.lanes);
        let round = self.strides.first_from(token);
        // A lane before `rest` has its token of that number in the epoch before.
        round * self.lanes + if self.strides.token(round) == token { rest } else { 0 }
    }

    /// Rows of a finite run (with [`Remainder::Pad`], those that hold a token); `None` for a run without end.
    ///
    /// They are rows `0..n`: a lane never has more rows than a lane before it.
    pub fn count(&self) -> Option<u64> {
        let units = self.epochs? * self.total;
        Some((0..self.lanes).map(|lane| self.lane_rows(dealt(lane, self.lanes, units))).sum())
    }

    /// Tokens of a lane's stream in a finite run.
    pub fn lane_tokens(&self, lane: u64) -> Option<u64> {
        Some(dealt(lane, self.lanes, self.epochs? * self.total))
    }

    fn lane_rows(&self, tokens: u64) -> u64 {
        let strides = tokens.saturating_sub(self.overlap);
        match self.remainder {
            Remainder::Drop => self.strides.round(strides),
            Remainder::Pad => self.strides.first_from(strides),
        }
    }

    /// How many tokens the first `rows` rows of a finite run leave out (an overlap's tokens count once).
    pub fn left_out(&self, rows: u64) -> Option<u64> {
        let mut left = 0;
        for lane in 0..self.lanes {
            let tokens = self.lane_tokens(lane)?;
            let given = (rows + self.lanes - 1 - lane) / self.lanes;
            let reached = if given == 0 { 0 } else { self.strides.token(given) + self.overlap };
            left += tokens.saturating_sub(reached);
        }
        Some(left)
    }

    /// Refuses what is beyond counting: a run of too many passes, or row `row`.
    ///
    /// # Errors
    /// [`Error::Argument`] that says where the end of counting is.
    pub fn check_countable(&self, row: u64) -> Result<()> {
        let units = u128::from(self.epochs.unwrap_or(1)) * u128::from(self.total);
        if units >= u128::from(MOST_UNITS) {
            return Err(Error::Argument(format!("a run may have less than 2^61 tokens, got {units}: fewer epochs")));
        }
        let behind = u128::from(self.first_token(row)) + 2 * u128::from(self.row_tokens(row));
        if behind * u128::from(self.lanes) >= u128::from(MOST_UNITS) {
            return Err(Error::Argument(format!("row {row} lies beyond the 2^61 tokens that can be counted")));
        }
        Ok(())
    }

    /// Tokens of the first `rows` rows, an overlap's once.
    pub fn tokens_before(&self, rows: u64) -> u64 {
        let round = rows / self.lanes;
        self.strides.token(round) * self.lanes + rows % self.lanes * self.strides.of(round)
    }

    /// Refuses data of which an epoch cannot fill a batch of rows as they are to come.
    ///
    /// # Errors
    /// [`Error::Argument`] that says what there is and what would do.
    pub fn check_enough(&self, batch: u64) -> Result<()> {
        // Rows that begin in an epoch, whatever its place in the stream: whole rounds of the lanes.
        let (stride, _) = self.strides.current();
        let fewest = self.total / stride.saturating_mul(self.lanes) * self.lanes;
        // What is refused anyway is not counted lane by lane.
        let run = if fewest < batch { u64::MAX } else { self.count().unwrap_or(u64::MAX) };
        if fewest >= batch && (run >= batch || self.remainder == Remainder::Pad && run > 0) {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "too little data: a pass holds {} tokens, which fill {} rows of {} in {} lanes; a global batch needs {batch}\n\
             hint: a smaller global batch size, fewer lanes, a smaller seq_len, or more data",
            self.total,
            fewest.min(run),
            stride + self.overlap,
            self.lanes,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn closed_forms_agree_with_counting(
            lanes in 1_u64..7, stride in 1_u64..9, changes in prop::collection::vec((1_u64..7, 1_u64..9), 0..3),
            overlap in 0_u64..3, total in 1_u64..200, epochs in 1_u64..4, pad: bool,
        ) {
            let remainder = if pad { Remainder::Pad } else { Remainder::Drop };
            let (mut strides, mut lengths, mut round) = (Strides::new(stride), vec![stride; 800], 0);
            for (rounds, stride) in changes {
                round += rounds;
                strides = strides.changed(round, stride).unwrap();
                lengths[round as usize..].fill(stride);
            }
            let starts: Vec<u64> = lengths.iter().scan(0, |at, &length| Some(std::mem::replace(at, *at + length))).collect();
            let rows = Rows { lanes, strides, overlap, total, epochs: Some(epochs), remainder };
            let mut before = 0;
            for row in 0..200 {
                let epoch = rows.epoch_of(row);
                prop_assert!(epoch >= before);
                before = epoch;
            }
            for epoch in 0..4 {
                let first = (0..).find(|&row| rows.epoch_of(row) >= epoch).unwrap();
                prop_assert_eq!(rows.first_row(epoch), first);
            }
            // Deal unit by unit.
            let mut tokens = vec![0_u64; lanes as usize];
            let mut reached = std::collections::BTreeMap::new();
            for unit in 0..epochs * total {
                let (lane, token) = (unit % lanes, tokens[(unit % lanes) as usize]);
                for (k, &start) in starts.iter().enumerate().take_while(|(_, start)| **start <= token) {
                    if token < start + lengths[k] + overlap {
                        let row = k as u64 * lanes + lane;
                        reached.entry(row).or_insert((unit, unit)).1 = unit;
                        prop_assert!(rows.touching(unit, unit + 1).contains(&row));
                    }
                }
                tokens[lane as usize] += 1;
            }
            let count = rows.count().unwrap();
            for row in 0..count + 2 * lanes {
                let units = rows.last_unit(row).map(|last| (rows.first_unit(row), last));
                prop_assert_eq!(rows.first_token(row), starts[(row / lanes) as usize]);
                prop_assert_eq!(rows.tokens_before(row), (0..row).map(|row| lengths[(row / lanes) as usize]).sum::<u64>());
                let more_than_shared = tokens[(row % lanes) as usize] > starts[(row / lanes) as usize] + overlap;
                prop_assert_eq!(units, reached.get(&row).copied().filter(|_| more_than_shared), "row {}", row);
            }
            for row in 0..count + lanes {
                let (lane, k) = ((row % lanes) as usize, (row / lanes) as usize);
                let there = match remainder {
                    Remainder::Drop => starts[k] + lengths[k] + overlap <= tokens[lane],
                    Remainder::Pad => starts[k] + overlap < tokens[lane],
                };
                prop_assert_eq!(there, row < count, "row {}", row);
            }
            let mut left = epochs * total;
            for lane in 0..lanes {
                let given = (0..count).filter(|row| row % lanes == lane).count() as u64;
                let reached = if given == 0 { 0 } else { starts[given as usize] + overlap };
                left -= reached.min(tokens[lane as usize]);
            }
            prop_assert_eq!(rows.left_out(count), Some(left));
        }
    }

    #[test]
    fn too_little_data_is_refused_with_the_numbers() {
        let strides = Strides::new(10);
        let rows = Rows { lanes: 4, strides, overlap: 0, total: 39, epochs: None, remainder: Remainder::Drop };
        let message = rows.check_enough(4).unwrap_err().to_string();
        assert!(message.contains("39 tokens") && message.contains("needs 4"), "{message}");
        let rows = Rows { total: 40, ..rows };
        assert!(rows.check_enough(4).is_ok());
        assert!(rows.check_enough(8).is_err());
        assert!(Rows { strides: Strides::new(5).changed(1, 11).unwrap(), ..rows.clone() }.check_enough(4).is_err());
        assert!(Rows { overlap: 1, epochs: Some(1), ..rows }.check_enough(4).is_err());
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let strides = Strides::new(8192);
        let rows = Rows { lanes: 4096, strides, overlap: 1, total: 1 << 44, epochs: None, remainder: Remainder::Drop };
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
