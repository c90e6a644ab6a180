//! Where a run is: steps and rows through changes of the batch size.
//!
//! The position of a counted pipeline is one integer, the rows given so far. Steps are numbered through the whole
//! run, so with batch sizes that change a short history says which row each step begins with.
//!
//! Not here: the saved form of a state, which is a plain dict and lives on the Python side.

use crate::error::{Error, Result};
use crate::order::{Remainder, Rows};

/// From step `step`, which begins with row `row`, global batches hold `batch` rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First step of the segment.
    pub step: u64,
    /// First row of that step.
    pub row: u64,
    /// Rows in a global batch.
    pub batch: u64,
}

/// The steps of a run: how rows are grouped to global batches, past and to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps(Vec<Segment>);

impl Steps {
    /// A run whose first batches hold `batch` rows.
    pub fn new(batch: u64) -> Result<Self> {
        Self::from_segments(vec![Segment { step: 0, row: 0, batch }])
    }

    /// A run with the given history.
    ///
    /// # Errors
    /// [`Error::Argument`] unless the segments begin at step 0 and row 0, increase, and each begins on a step.
    pub fn from_segments(segments: Vec<Segment>) -> Result<Self> {
        let wrong = |what: String| Err(Error::Argument(format!("history of batch sizes: {what}")));
        match segments.first() {
            Some(Segment { step: 0, row: 0, .. }) => {}
            first => return wrong(format!("must begin at step 0 and row 0, got {first:?}")),
        }
        for segment in &segments {
            if segment.batch == 0 {
                return wrong(format!("a global batch must hold at least one row, got {segment:?}"));
            }
        }
        for pair in segments.windows(2) {
            let row = pair[1].step.checked_sub(pair[0].step).filter(|&steps| steps > 0);
            let row =
                row.and_then(|steps| steps.checked_mul(pair[0].batch)).and_then(|rows| rows.checked_add(pair[0].row));
            if row != Some(pair[1].row) {
                return wrong(format!("{:?} cannot be followed by {:?}", pair[0], pair[1]));
            }
        }
        Ok(Self(segments))
    }

    /// Changes the batch size from `step` on; what was said about later steps is forgotten.
    pub fn set_batch(&mut self, step: u64, batch: u64) -> Result<()> {
        if batch == 0 {
            return Err(Error::Argument("a global batch must hold at least one row, got 0".to_owned()));
        }
        let row = self.row_of(step);
        self.0.retain(|segment| segment.step < step);
        if self.0.last().is_none_or(|last| last.batch != batch) {
            self.0.push(Segment { step, row, batch });
        }
        Ok(())
    }

    /// All segments, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// The first row of a step; the largest number where that cannot be counted.
    pub fn row_of(&self, step: u64) -> u64 {
        let segment = self.segment_of(step);
        segment.row.saturating_add((step - segment.step).saturating_mul(segment.batch))
    }

    /// The batch size of a step.
    pub fn batch_of(&self, step: u64) -> u64 {
        self.segment_of(step).batch
    }

    /// The first step that begins with row `row` or a later one.
    pub fn first_step_at(&self, row: u64) -> u64 {
        let at = self.0.partition_point(|segment| segment.row <= row);
        let segment = self.0[at.saturating_sub(1)];
        let step = segment.step + (row - segment.row).div_ceil(segment.batch);
        self.0.get(at).map_or(step, |next| step.min(next.step))
    }

    /// The largest batch of the run.
    pub fn largest_batch(&self) -> u64 {
        self.0.iter().map(|segment| segment.batch).max().unwrap_or(1)
    }

    /// The largest batch from a step on.
    pub fn largest_batch_from(&self, step: u64) -> u64 {
        let later = self.0.iter().filter(|segment| segment.step > step).map(|segment| segment.batch);
        later.fold(self.batch_of(step), u64::max)
    }

    /// The first step of an epoch, not beyond the run's end.
    pub fn first_step_of_epoch(&self, rows: &Rows, epoch: u64) -> u64 {
        let epoch = rows.epochs.map_or(epoch, |epochs| epoch.min(epochs));
        let step = self.first_step_at(rows.first_row(epoch));
        self.end(rows).map_or(step, |end| step.min(end))
    }

    /// The number of steps of a finite run.
    pub fn end(&self, rows: &Rows) -> Option<u64> {
        let count = rows.count()?;
        Some(match rows.remainder {
            Remainder::Pad => self.first_step_at(count),
            Remainder::Drop => self.whole(count),
        })
    }

    /// The number of steps that the first `rows` rows fill.
    pub fn whole(&self, rows: u64) -> u64 {
        let step = self.first_step_at(rows);
        // The step before may be one that they do not fill.
        if step > 0 && self.row_of(step) > rows { step - 1 } else { step }
    }

    /// The epoch of a step; the number of epochs for steps at or after a finite run's end.
    pub fn epoch_of(&self, rows: &Rows, step: u64) -> u64 {
        match (rows.epochs, self.end(rows)) {
            (Some(epochs), Some(end)) if step >= end => epochs,
            _ => rows.epoch_of(self.row_of(step)),
        }
    }

    fn segment_of(&self, step: u64) -> Segment {
        let at = self.0.partition_point(|segment| segment.step <= step);
        self.0[at.saturating_sub(1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Extent, LaneStrides, Passes, Strides};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn closed_forms_agree_with_walking(
            changes in prop::collection::vec((0_u64..30, 1_u64..9), 0..4),
            first in 1_u64..9, lanes in 1_u64..5, stride in 1_u64..5, overlap in 0_u64..2, total in 20_u64..90,
            added in 0_u64..15, pad: bool,
        ) {
            let mut steps = Steps::new(first).unwrap();
            let mut sizes = vec![first; 200];
            for (step, batch) in changes {
                steps.set_batch(step, batch).unwrap();
                sizes[step as usize..].fill(batch);
            }
            let mut row = 0;
            let mut starts = Vec::new();
            for (step, &batch) in sizes.iter().enumerate() {
                prop_assert_eq!(steps.row_of(step as u64), row);
                prop_assert_eq!(steps.batch_of(step as u64), batch);
                starts.push(row);
                row += batch;
            }
            for row in 0..150 {
                prop_assert_eq!(steps.first_step_at(row), starts.iter().position(|&start| start >= row).unwrap() as u64);
            }
            prop_assert_eq!(&Steps::from_segments(steps.segments().to_vec()).unwrap(), &steps);
            let remainder = if pad { Remainder::Pad } else { Remainder::Drop };
            let strides = LaneStrides::alike(Strides::new(stride));
            let extent = |total| Extent { chunks: 1, total, windows: 1 };
            let passes = Passes::new(extent(total)).changed(1, extent(total + added)).unwrap();
            let rows = Rows { lanes, strides, overlap, passes, epochs: Some(2), remainder };
            let count = rows.count().unwrap();
            let end = (0_u64..).find(|&step| {
                let (start, batch) = (starts[step as usize], sizes[step as usize]);
                if pad { start >= count } else { start + batch > count }
            }).unwrap();
            prop_assert_eq!(steps.end(&rows), Some(end));
            for epoch in 0..=2 {
                let first = (0..end).find(|&step| rows.epoch_of(starts[step as usize]) >= epoch).unwrap_or(end);
                let expected = if epoch == 2 { end } else { first };
                prop_assert_eq!(steps.first_step_of_epoch(&rows, epoch), expected);
            }
        }
    }

    #[test]
    fn broken_histories_are_refused() {
        let segment = |step, row, batch| Segment { step, row, batch };
        assert!(Steps::from_segments(vec![]).is_err());
        assert!(Steps::from_segments(vec![segment(1, 4, 4)]).is_err());
        assert!(Steps::from_segments(vec![segment(0, 0, 0)]).is_err());
        assert!(Steps::from_segments(vec![segment(0, 0, 4), segment(2, 7, 4)]).is_err());
        assert!(Steps::from_segments(vec![segment(0, 0, 4), segment(0, 0, 2)]).is_err());
        assert!(Steps::from_segments(vec![segment(0, 0, 4), segment(2, 8, 2)]).is_ok());
    }
}
