//! A column without some of its documents: counts that leave them out, and which they are, for those that read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::format::parquet::{PageValues, TokenSink};
use crate::index::chunks::each_length;
use crate::index::{Index, Phase, Progress, UNKNOWN};

/// Documents by the number of their chunk: their rows in it, ascending, each once.
pub type Documents = BTreeMap<u32, Arc<[u32]>>;

impl Index {
    /// The same index, in which some documents of a column are as empty ones. Its other columns are as they were.
    ///
    /// The lengths of all documents of their chunks are read. The column must be counted; where its documents were not,
    /// they are not then. Nothing of it is saved.
    pub fn without(&self, column: &str, documents: &Documents, cancel: &Cancel, progress: &Progress) -> Result<Self> {
        let number = self.check_column(column, cancel)?;
        let groups: Vec<usize> = documents.keys().map(|&chunk| chunk as usize).collect();
        if let Some(group) = groups.iter().find(|&&group| group >= self.row_groups.len()) {
            let found = self.row_groups.len();
            return Err(Error::Argument(format!("there is no row group {group}: the dataset has {found}")));
        }
        progress.begin(Phase::Levels, groups.len() as u64);
        let new = |group: usize| {
            let rows = documents.get(&(group as u32)).cloned().unwrap_or_default();
            LeftOut { rows, next: 0, begun: 0, is_filled: false, tokens: 0, documents: 0 }
        };
        let (counts, result) =
            each_length(self, number, &groups, cancel, progress, new, |sink| (sink.tokens, sink.documents));
        result?;
        progress.begin(Phase::Done, 0);
        let mut index = self.clone();
        let column = Arc::make_mut(&mut index.columns[number]);
        let (all_tokens, all_documents) = (Arc::make_mut(&mut column.tokens), Arc::make_mut(&mut column.documents));
        for (group, (tokens, documents)) in counts {
            all_tokens[group] = all_tokens[group].saturating_sub(tokens);
            if all_documents[group] != UNKNOWN {
                all_documents[group] = all_documents[group].saturating_sub(documents);
            }
        }
        column.left_out = Arc::new(documents.clone());
        Ok(index)
    }
}

/// Counts what some documents of a chunk hold.
struct LeftOut {
    rows: Arc<[u32]>,
    /// The first of `rows` that is not behind, and how many rows of the chunk were begun.
    next: usize,
    begun: u64,
    /// Whether the document in progress has been counted.
    is_filled: bool,
    tokens: u64,
    documents: u64,
}

impl TokenSink for LeftOut {
    fn wants(&mut self, _tokens: Range<u64>) -> bool {
        false
    }

    fn documents(&mut self, continued: bool, lengths: &[u64], _values: &mut PageValues<'_>) -> Result<()> {
        self.count(continued, lengths);
        Ok(())
    }
}

impl LeftOut {
    /// Counts documents, the first of which may go on with the last before.
    fn count(&mut self, continued: bool, lengths: &[u64]) {
        for (number, &length) in lengths.iter().enumerate() {
            if number > 0 || !continued {
                self.begun += 1;
                self.is_filled = false;
            }
            while self.rows.get(self.next).is_some_and(|&row| u64::from(row) + 1 < self.begun) {
                self.next += 1;
            }
            if self.rows.get(self.next).is_some_and(|&row| u64::from(row) + 1 == self.begun) {
                self.tokens += length;
                if length > 0 && !self.is_filled {
                    self.documents += 1;
                    self.is_filled = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_over_several_pages_counts_once() {
        let rows = Arc::from([1, 3, 4, 9].as_slice());
        let mut out = LeftOut { rows, next: 0, begun: 0, is_filled: false, tokens: 0, documents: 0 };
        for (continued, lengths) in [(false, vec![2, 0]), (true, vec![3, 1]), (true, vec![4, 7, 0]), (true, vec![])] {
            out.count(continued, &lengths);
        }
        // Documents: 2 | 0+3 | 1+4 | 7 | 0.
        assert_eq!((out.tokens, out.documents), (10, 2));
    }
}
