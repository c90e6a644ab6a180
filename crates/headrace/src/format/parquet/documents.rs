//! Documents: the lengths of lists out of their repetition and definition levels, a bounded batch at a time.

use super::TokenShape;
use super::flaw::{Checked, Flaw, flaw};
use super::levels::Runs;

/// Documents that a batch holds at most. A page that expands to more is handed on in several batches, so that scratch
/// memory does not grow with what a page declares; large enough for the cost of a batch not to show.
const BATCH_DOCUMENTS: usize = 64 << 10;

/// What of a chunk was read so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Levels.
    pub(super) levels: u64,
    /// Rows begun.
    pub(super) rows: u64,
    /// Tokens.
    pub(super) tokens: u64,
    /// Whether the last row's document has tokens, so that more of them may follow.
    pub(super) open: bool,
}

/// Part of the documents of a page.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Tokens of each document.
    pub(super) lengths: Vec<u64>,
    /// Whether the first goes on with the document before.
    pub(super) continued: bool,
    /// Their sum.
    pub(super) tokens: u64,
}

/// Which of some documents, given by their lengths, holds the `index`-th token.
pub(super) fn row_of(lengths: &[u64], index: u64) -> u64 {
    let mut end = 0;
    for (row, length) in lengths.iter().enumerate() {
        end += length;
        if index < end {
            return row as u64;
        }
    }
    lengths.len() as u64
}

/// A fault in the levels, and the row where it was found if that is known.
#[derive(Debug)]
pub(super) struct LevelFault {
    pub(super) flaw: Flaw,
    pub(super) row: Option<u64>,
}

impl From<Flaw> for LevelFault {
    fn from(flaw: Flaw) -> Self {
        Self { flaw, row: None }
    }
}

/// The levels of one page.
#[derive(Debug)]
pub(super) struct Levels<'a> {
    rep: Runs<'a>,
    def: Runs<'a>,
    left: u64,
    list_def: u32,
    max_def: u32,
    max_rows: u64,
}

impl<'a> Levels<'a> {
    /// The levels of a page that has `count` of them, in a chunk of `max_rows` rows.
    pub(super) fn new(rep: Runs<'a>, def: Runs<'a>, count: u64, shape: &TokenShape, max_rows: u64) -> Self {
        let (list_def, max_def) = (shape.list_def as u32, shape.max_def as u32);
        Self { rep, def, left: count, list_def, max_def, max_rows }
    }

    /// Once all levels are taken: whether there is nothing left behind them.
    pub(super) fn finish(&self) -> Checked<()> {
        self.rep.finish()?;
        self.def.finish()
    }

    /// Whether all were read.
    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Whether the next level begins a row.
    pub(super) fn begins_row(&mut self) -> Result<bool, LevelFault> {
        Ok(self.rep.peek()?.0 == 0)
    }

    /// Fills `batch` with the next documents.
    pub(super) fn next_batch(&mut self, counts: &mut Counts, batch: &mut Batch) -> Result<(), LevelFault> {
        batch.lengths.clear();
        batch.tokens = 0;
        batch.continued = false;
        while self.left > 0 && batch.lengths.len() < BATCH_DOCUMENTS {
            let (rep, reps) = self.rep.peek()?;
            let (def, defs) = self.def.peek()?;
            let mut count = reps.min(defs);
            let there = def == self.max_def;
            if rep == 0 {
                count = count.min((BATCH_DOCUMENTS - batch.lengths.len()) as u64);
                if !there && def >= self.list_def {
                    return Err(self.null(def, counts.rows));
                }
                if count > self.max_rows - counts.rows {
                    let flaw = flaw!("expected {} rows in the row group, found more", self.max_rows);
                    return Err(flaw.into());
                }
                counts.rows += count;
                counts.open = there;
                batch.lengths.resize(batch.lengths.len() + count as usize, u64::from(there));
            } else {
                let row = counts.rows.saturating_sub(1);
                if !there && def >= self.list_def {
                    return Err(self.null(def, row));
                }
                if !counts.open || !there {
                    let flaw = flaw!("expected a list to begin, found levels that go on with one that has no elements");
                    return Err(LevelFault { flaw, row: Some(row) });
                }
                match batch.lengths.last_mut() {
                    Some(last) => *last += count,
                    None => {
                        batch.continued = true;
                        batch.lengths.push(count);
                    }
                }
            }
            if there {
                batch.tokens += count;
            }
            self.rep.take(count);
            self.def.take(count);
            self.left -= count;
            counts.levels += count;
        }
        counts.tokens += batch.tokens;
        Ok(())
    }

    fn null(&self, def: u32, row: u64) -> LevelFault {
        let flaw = match def > self.max_def {
            true => flaw!("expected definition levels up to {}, found {def}", self.max_def),
            false => flaw!("expected tokens, found a null inside a list"),
        };
        LevelFault { flaw, row: Some(row) }
    }
}
