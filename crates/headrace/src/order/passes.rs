//! Passes over data that grows: where each begins on the dealt line, what it weighs, and how its windows are numbered.

use crate::error::{Error, Result};

/// What a pass is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Chunks: the first ones of all there are.
    pub chunks: u64,
    /// What they weigh.
    pub total: u64,
    /// How many windows they fill.
    pub windows: u64,
}

/// Passes over the same chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Era {
    /// The first of them.
    epoch: u64,
    /// Where that begins: its first unit, and its first window counted through all passes.
    unit: u64,
    window: u64,
    /// Of each pass.
    extent: Extent,
}

/// The passes of a run, which is over more of its chunks from some pass on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passes(Vec<Era>);

impl Passes {
    /// Passes that are alike.
    pub fn new(extent: Extent) -> Self {
        Self(vec![Era { epoch: 0, unit: 0, window: 0, extent }])
    }

    /// Passes over more data from pass `epoch` on. Of several changes at one pass the last one holds.
    ///
    /// # Errors
    /// [`Error::Argument`] if changes are not in order, data goes, or it is beyond counting.
    pub fn changed(mut self, epoch: u64, extent: Extent) -> Result<Self> {
        let last = self.last();
        let Extent { chunks, total, windows } = last.extent;
        let passes = epoch.checked_sub(last.epoch).filter(|_| extent.chunks >= chunks && extent.total >= total);
        let begin = |first: u64, each: u64| passes?.checked_mul(each)?.checked_add(first);
        let Some((unit, window)) = begin(last.unit, total).zip(begin(last.window, windows)) else {
            let what = format!("{extent:?} from pass {epoch} on cannot follow {last:?}");
            return Err(Error::Argument(format!("data can only be added: {what}")));
        };
        if epoch == last.epoch {
            self.0.pop();
        }
        self.0.push(Era { epoch, unit, window, extent });
        Ok(self)
    }

    /// Weight of the passes to come.
    pub fn total(&self) -> u64 {
        self.last().extent.total
    }

    /// Windows of a pass to come.
    pub fn windows(&self) -> u64 {
        self.last().extent.windows
    }

    /// Chunks of a pass: the first ones.
    pub fn chunks(&self, epoch: u64) -> u64 {
        self.at(|era| era.epoch <= epoch).extent.chunks
    }

    /// The first unit of a pass; the largest number where that cannot be counted.
    pub fn first_unit(&self, epoch: u64) -> u64 {
        let era = self.at(|era| era.epoch <= epoch);
        era.unit.saturating_add((epoch - era.epoch).saturating_mul(era.extent.total))
    }

    /// The pass that a unit is of.
    pub fn of(&self, unit: u64) -> u64 {
        let era = self.at(|era| era.unit <= unit);
        era.epoch + (unit - era.unit) / era.extent.total
    }

    /// The first pass that begins at a unit or behind it.
    pub fn first_from(&self, unit: u64) -> u64 {
        let epoch = self.of(unit);
        epoch + u64::from(self.first_unit(epoch) < unit)
    }

    /// The first window of a pass, counted through all passes.
    pub fn first_window(&self, epoch: u64) -> u64 {
        let era = self.at(|era| era.epoch <= epoch);
        era.window.saturating_add((epoch - era.epoch).saturating_mul(era.extent.windows))
    }

    /// The pass of a window that is counted through all passes, and its number there.
    pub fn of_window(&self, ordinal: u64) -> (u64, u64) {
        let era = self.at(|era| era.window <= ordinal);
        let (windows, each) = (ordinal - era.window, era.extent.windows);
        (era.epoch + windows / each, windows % each)
    }

    /// The last era that has begun.
    fn at(&self, has_begun: impl Fn(&Era) -> bool) -> Era {
        self.0[self.0.partition_point(has_begun).saturating_sub(1)]
    }

    fn last(&self) -> Era {
        self.at(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn closed_forms_agree_with_walking(
            first in (1_u64..5, 1_u64..9), changes in prop::collection::vec((0_u64..4, 0_u64..3, 0_u64..9), 0..4),
        ) {
            let (mut extent, mut epoch) = (extent(first.0, first.1), 0);
            let mut passes = Passes::new(extent);
            let mut each = vec![extent; 20];
            for (later, chunks, total) in changes {
                (epoch, extent) = (epoch + later, self::extent(extent.chunks + chunks, extent.total + total));
                passes = passes.changed(epoch, extent).unwrap();
                each[epoch as usize..].fill(extent);
            }
            let (mut units, mut ordinals) = (Vec::new(), Vec::new());
            for (epoch, extent) in (0..).zip(&each) {
                prop_assert_eq!(passes.first_unit(epoch), units.len() as u64);
                prop_assert_eq!(passes.first_window(epoch), ordinals.len() as u64);
                prop_assert_eq!(passes.chunks(epoch), extent.chunks);
                units.extend((0..extent.total).map(|_| epoch));
                ordinals.extend((0..extent.windows).map(|number| (epoch, number)));
            }
            for (unit, &epoch) in (0..).zip(&units) {
                prop_assert_eq!(passes.of(unit), epoch);
                let from = (0..).find(|&epoch| passes.first_unit(epoch) >= unit).unwrap();
                prop_assert_eq!(passes.first_from(unit), from);
            }
            for (ordinal, &place) in (0..).zip(&ordinals) {
                prop_assert_eq!(passes.of_window(ordinal), place);
            }
            prop_assert_eq!((passes.total(), passes.windows()), (each[19].total, each[19].windows));
        }
    }

    /// A window for each chunk but one.
    fn extent(chunks: u64, total: u64) -> Extent {
        Extent { chunks, total, windows: chunks.max(2) - 1 }
    }

    #[test]
    fn what_cannot_follow_is_refused() {
        let passes = Passes::new(extent(4, 100)).changed(3, extent(5, 120)).unwrap();
        for (epoch, chunks, total) in [(2, 5, 120), (4, 4, 120), (4, 5, 119), (u64::MAX, 5, 120)] {
            assert!(passes.clone().changed(epoch, extent(chunks, total)).is_err());
        }
        let more = extent(6, 130);
        assert_eq!(passes.changed(3, more).unwrap(), Passes::new(extent(4, 100)).changed(3, more).unwrap());
    }
}
