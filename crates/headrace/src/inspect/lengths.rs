//! How long the documents of a token column are.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::format::parquet::{PageValues, TokenSink};
use crate::index::chunks::each_length;
use crate::index::{Index, Phase, Progress};

/// The shares of all documents that [`Lengths::quantiles`] is about.
pub const QUANTILES: [f64; 5] = [0.1, 0.5, 0.9, 0.99, 0.999];

/// Bits of a length that [`Fine`] keeps: below 2^9 each length is counted alone, above it within 1 in 2^8.
const BITS: u32 = 8;
const CELLS: usize = (64 - BITS as usize + 1) << BITS;

/// A column's documents by their length in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Lengths {
    /// Documents, with those that have no token.
    pub documents: u64,
    /// Their tokens.
    pub tokens: u64,
    /// The shortest; 0 if there is none.
    pub min: u64,
    /// The longest.
    pub max: u64,
    /// For each of [`QUANTILES`], a length that this share of the documents does not exceed: exact below 512, else
    /// at most 1 in 256 too low.
    pub quantiles: [u64; QUANTILES.len()],
    /// Documents without tokens, of 1, of 2 to 3, of 4 to 7 and so on, to the longest.
    pub buckets: Vec<Bucket>,
}

/// Documents whose lengths lie in one range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The shortest length that counts here.
    pub from: u64,
    /// The longest.
    pub to: u64,
    /// How many documents.
    pub documents: u64,
    /// Their tokens.
    pub tokens: u64,
}

/// Reads the lengths of all documents of a column, which every file must have.
pub fn lengths(index: &Index, column: &str, cancel: &Cancel, progress: &Progress) -> Result<Lengths> {
    let number = index.check_column(column, cancel)?;
    let groups: Vec<usize> = (0..index.row_groups.len()).collect();
    progress.begin(Phase::Levels, groups.len() as u64);
    let all = Mutex::new(Fine::default());
    let merge = |mut one: Fine| {
        one.close();
        all.lock().unwrap_or_else(PoisonError::into_inner).merge(&one);
    };
    let (_, result) = each_length(index, number, &groups, cancel, progress, |_| Fine::default(), merge);
    result?;
    progress.begin(Phase::Done, 0);
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(all.finish())
}

/// Counts by length; what it counts does not depend on the order in which chunks are merged.
#[derive(Debug)]
struct Fine {
    cells: Box<[u64]>,
    tokens: [u64; 65],
    /// The document in progress, if there is one.
    open: Option<u64>,
    min: u64,
    max: u64,
}

impl Default for Fine {
    fn default() -> Self {
        Self { cells: vec![0; CELLS].into_boxed_slice(), tokens: [0; 65], open: None, min: u64::MAX, max: 0 }
    }
}

/// The bucket of a length: 0 for 0, else one more than the position of its highest bit.
fn bucket(len: u64) -> usize {
    (u64::BITS - len.leading_zeros()) as usize
}

/// The cell of a length.
fn cell(len: u64) -> usize {
    let shift = (u64::BITS - len.leading_zeros()).saturating_sub(BITS + 1);
    ((u64::from(shift) << BITS) + (len >> shift)) as usize
}

/// The shortest length of a cell.
fn first_of(cell: usize) -> u64 {
    let shift = (cell >> BITS).saturating_sub(1);
    ((cell - (shift << BITS)) as u64) << shift
}

impl Fine {
    fn add(&mut self, len: u64) {
        self.cells[cell(len)] += 1;
        self.tokens[bucket(len)] += len;
        self.min = self.min.min(len);
        self.max = self.max.max(len);
    }

    /// Ends the document in progress.
    fn close(&mut self) {
        if let Some(len) = self.open.take() {
            self.add(len);
        }
    }

    fn merge(&mut self, other: &Self) {
        if other.min > other.max {
            return;
        }
        for cell in cell(other.min)..=cell(other.max) {
            self.cells[cell] += other.cells[cell];
        }
        for (mine, theirs) in self.tokens.iter_mut().zip(other.tokens) {
            *mine += theirs;
        }
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn finish(&self) -> Lengths {
        let documents = self.cells.iter().sum();
        let mut buckets = Vec::new();
        if documents > 0 {
            let range =
                |at: usize| if at == 0 { (0, 0) } else { (1 << (at - 1), (1 << (at - 1)) - 1 + (1 << (at - 1))) };
            buckets.extend((0..=bucket(self.max)).map(|at| {
                let (from, to) = range(at);
                Bucket { from, to, documents: 0, tokens: self.tokens[at] }
            }));
            for (at, count) in self.cells.iter().enumerate().filter(|(_, count)| **count > 0) {
                buckets[bucket(first_of(at))].documents += count;
            }
        }
        let min = if documents == 0 { 0 } else { self.min };
        Lengths {
            documents,
            tokens: self.tokens.iter().sum(),
            min,
            max: self.max,
            quantiles: QUANTILES.map(|share| self.quantile(share, documents)),
            buckets,
        }
    }

    fn quantile(&self, share: f64, documents: u64) -> u64 {
        let wanted = ((documents as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (at, count) in self.cells.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return first_of(at).clamp(self.min, self.max);
            }
        }
        self.max
    }
}

impl TokenSink for Fine {
    fn wants(&mut self, _tokens: Range<u64>) -> bool {
        false
    }

    fn documents(&mut self, continued: bool, lengths: &[u64], _values: &mut PageValues<'_>) -> Result<()> {
        self.count(continued, lengths);
        Ok(())
    }
}

impl Fine {
    /// Counts documents, the first of which may go on with the last before.
    fn count(&mut self, continued: bool, lengths: &[u64]) {
        for (number, len) in lengths.iter().enumerate() {
            if number == 0 && continued {
                self.open = Some(self.open.unwrap_or_default() + len);
            } else {
                self.close();
                self.open = Some(*len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_document_over_several_pages_counts_once() {
        let mut fine = Fine::default();
        for (continued, lengths) in [(false, vec![2, 0]), (true, vec![3, 1]), (true, vec![]), (true, vec![4, 600])] {
            fine.count(continued, &lengths);
        }
        fine.close();
        let found = fine.finish();
        // 2 | 0+3 | 1+4 | 600
        assert_eq!((found.documents, found.tokens, found.min, found.max), (4, 610, 2, 600));
        assert_eq!(found.quantiles, [2, 3, 600, 600, 600]);
        let counts: Vec<_> = found.buckets.iter().map(|b| (b.from, b.to, b.documents, b.tokens)).collect();
        assert_eq!(counts[..4], [(0, 0, 0, 0), (1, 1, 0, 0), (2, 3, 2, 5), (4, 7, 1, 5)]);
        assert_eq!(counts.last(), Some(&(512, 1023, 1, 600)));
    }

    #[test]
    fn nothing_is_nothing() {
        let found = Fine::default().finish();
        assert_eq!((found.documents, found.min, found.max, found.buckets), (0, 0, 0, vec![]));
    }

    proptest! {
        #[test]
        fn cells_keep_the_highest_bits(len in prop_oneof![0_u64..2000, any::<u64>()]) {
            let first = first_of(cell(len));
            prop_assert!(cell(len) < CELLS);
            prop_assert!(first <= len && len - first <= len >> BITS, "{} {}", len, first);
            prop_assert!(len >= 512 || first == len);
            prop_assert_eq!(bucket(first), bucket(len));
        }

        #[test]
        fn merging_is_counting_all(lens in prop::collection::vec(0_u64..5000, 0..40), cut in 0_usize..40) {
            let count = |lens: &[u64]| {
                let mut fine = Fine::default();
                lens.iter().for_each(|len| fine.add(*len));
                fine
            };
            let (front, back) = lens.split_at(cut.min(lens.len()));
            let mut merged = count(back);
            merged.merge(&count(front));
            prop_assert_eq!(merged.finish(), count(&lens).finish());
            let mut sorted = lens.clone();
            sorted.sort_unstable();
            for (share, found) in QUANTILES.iter().zip(merged.finish().quantiles) {
                if let Some(last) = sorted.len().checked_sub(1) {
                    let exact = sorted[((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1).min(last)];
                    prop_assert!(found <= exact && exact - found <= exact >> BITS, "{} {}", found, exact);
                }
            }
        }
    }
}
