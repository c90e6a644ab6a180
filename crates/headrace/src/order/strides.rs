//! How long rows are: from which of a lane's rows on, and where in its stream that row begins.

use crate::error::{Error, Result};

/// Rows of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    /// The first of them, counted in its lane.
    round: u64,
    /// Its first token, likewise.
    token: u64,
    /// Tokens from one row's start to the next.
    stride: u64,
}

/// L along a lane: lengths of rows, each of which holds from a row on. Of a mixture the same in its rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strides(Vec<Stretch>);

/// L in all lanes of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneStrides(Vec<Strides>);

impl Strides {
    /// Rows of one length.
    pub fn new(stride: u64) -> Self {
        Self(vec![Stretch { round: 0, token: 0, stride }])
    }

    /// Rows whose length becomes another one: in each lane from row `round` on. Of several changes at one row the last
    /// one holds.
    ///
    /// # Errors
    /// [`Error::Argument`] if a length is 0, changes are not in order, or beyond counting.
    pub fn changed(mut self, round: u64, stride: u64) -> Result<Self> {
        let last = self.last();
        let token = round.checked_sub(last.round).and_then(|rounds| rounds.checked_mul(last.stride));
        match token.and_then(|tokens| tokens.checked_add(last.token)) {
            Some(token) if stride > 0 => {
                if round == last.round {
                    self.0.pop();
                }
                self.0.push(Stretch { round, token, stride });
                Ok(self)
            }
            _ => Err(Error::Argument(format!("rows of {stride} tokens cannot follow {last:?} from row {round} on"))),
        }
    }

    /// The length of the rows to come, and the first of them.
    pub fn current(&self) -> (u64, u64) {
        let last = self.last();
        (last.stride, last.round)
    }

    /// The lengths, each with the first row that has it.
    pub fn stretches(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|stretch| (stretch.round, stretch.stride))
    }

    /// The first row behind one from which on there is another length.
    pub fn next_change(&self, round: u64) -> Option<u64> {
        self.0.get(self.0.partition_point(|stretch| stretch.round <= round)).map(|next| next.round)
    }

    /// L of a lane's row.
    pub fn of(&self, round: u64) -> u64 {
        self.at(round).stride
    }

    /// Where a lane's row begins, in tokens of its stream; the largest number where that cannot be counted.
    pub fn token(&self, round: u64) -> u64 {
        let stretch = self.at(round);
        stretch.token.saturating_add((round - stretch.round).saturating_mul(stretch.stride))
    }

    /// The row of a lane that a token is in, an overlap apart.
    pub fn round(&self, token: u64) -> u64 {
        let stretch = self.0[self.0.partition_point(|stretch| stretch.token <= token).saturating_sub(1)];
        stretch.round + (token - stretch.token) / stretch.stride
    }

    /// The first row of a lane that begins at a token or behind it.
    pub fn first_from(&self, token: u64) -> u64 {
        let round = self.round(token);
        round + u64::from(self.token(round) < token)
    }

    fn at(&self, round: u64) -> Stretch {
        self.0[self.0.partition_point(|stretch| stretch.round <= round).saturating_sub(1)]
    }

    fn last(&self) -> Stretch {
        self.at(u64::MAX)
    }
}

impl LaneStrides {
    /// Rows that are alike in all lanes: where one changes its length, all those of its round do.
    pub fn alike(strides: Strides) -> Self {
        Self(vec![strides])
    }

    /// Those of each lane. The rows to come must have one length.
    pub fn each(lanes: Vec<Strides>) -> Self {
        debug_assert!(lanes.windows(2).all(|pair| pair[0].current().0 == pair[1].current().0));
        Self(lanes)
    }

    /// Those of a lane.
    pub fn lane(&self, lane: u64) -> &Strides {
        if let [alike] = self.0.as_slice() { alike } else { &self.0[lane as usize] }
    }

    /// All that differ, perhaps.
    pub fn iter(&self) -> impl Iterator<Item = &Strides> {
        self.0.iter()
    }

    /// The length of the rows to come.
    pub fn current(&self) -> u64 {
        self.lane(0).current().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn closed_forms_agree_with_walking(
            first in 1_u64..9, changes in prop::collection::vec((0_u64..7, 1_u64..9), 0..4),
        ) {
            let (mut strides, mut lengths, mut round) = (Strides::new(first), vec![first; 60], 0);
            for (rounds, stride) in changes {
                round += rounds;
                strides = strides.changed(round, stride).unwrap();
                lengths[round as usize..].fill(stride);
            }
            let mut starts = vec![0];
            for (round, &length) in lengths.iter().enumerate() {
                prop_assert_eq!(strides.of(round as u64), length);
                prop_assert_eq!(strides.token(round as u64), starts[round]);
                starts.push(starts[round] + length);
            }
            for token in 0..starts[59] {
                let behind = starts.iter().position(|&start| start >= token).unwrap() as u64;
                prop_assert_eq!(strides.first_from(token), behind);
                prop_assert_eq!(strides.round(token), behind - u64::from(starts[behind as usize] > token));
            }
            prop_assert_eq!(strides.current().0, lengths[59]);
            let firsts: Vec<(u64, u64)> = strides.stretches().collect();
            prop_assert!(firsts.iter().all(|&(round, stride)| lengths[round as usize] == stride));
            for round in 0..60 {
                let later = firsts.iter().map(|&(first, _)| first).find(|&first| first > round);
                prop_assert_eq!(strides.next_change(round), later);
            }
        }
    }

    #[test]
    fn what_cannot_follow_is_refused() {
        let strides = Strides::new(4).changed(3, 8).unwrap();
        assert_eq!(strides.current(), (8, 3));
        for (round, stride) in [(2, 4), (3, 0), (u64::MAX, 4)] {
            assert!(strides.clone().changed(round, stride).is_err());
        }
        assert_eq!(strides.changed(3, 4).unwrap(), Strides::new(4).changed(3, 4).unwrap());
    }
}
