//! Counting tokens and documents where footers do not tell: reading the levels of column chunks once.

use std::ops::Range;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::format::parquet::{PageValues, TokenSink};
use crate::index::chunks::each_length;
use crate::index::{Index, Progress};

/// What one chunk holds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) tokens: u64,
    /// Documents with at least one token.
    pub(crate) documents: u64,
    /// Whether the document that the last page ended with has been counted.
    open: bool,
}

impl TokenSink for Count {
    fn wants(&mut self, _tokens: Range<u64>) -> bool {
        false
    }

    fn documents(&mut self, continued: bool, lengths: &[u64], _values: &mut PageValues<'_>) -> Result<()> {
        self.add(continued, lengths);
        Ok(())
    }
}

impl Count {
    /// Counts documents, the first of which may go on with the last before.
    pub(crate) fn add(&mut self, continued: bool, lengths: &[u64]) {
        for (number, len) in lengths.iter().enumerate() {
            if number > 0 || !continued {
                self.open = false;
            }
            self.tokens += len;
            if *len > 0 && !self.open {
                self.documents += 1;
                self.open = true;
            }
        }
    }
}

/// Counts the given row groups of a column; the results that there are, by row group, and how it ended.
pub(crate) fn count_chunks(
    index: &Index,
    column: usize,
    groups: &[usize],
    cancel: &Cancel,
    progress: &Progress,
) -> (Vec<(usize, Count)>, Result<()>) {
    each_length(index, column, groups, cancel, progress, |_| Count::default(), |count| count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_over_several_pages_counts_once() {
        let mut count = Count::default();
        for (continued, lengths) in
            [(false, vec![2, 0, 0]), (true, vec![3, 1]), (true, vec![4]), (true, vec![0, 0, 5]), (true, vec![])]
        {
            count.add(continued, &lengths);
        }
        count.add(true, &[1]);
        // Documents: 2 | 0 | 0+3 | 1+4+0 | 0 | 5+1.
        assert_eq!((count.tokens, count.documents), (16, 4));
    }
}
