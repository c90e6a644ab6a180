//! Documents that are left out of a chunk as it is decoded: what lies behind sees them as empty ones.

use std::ops::Range;

use super::keep::ChunkSink;
use crate::error::Result;
use crate::format::parquet::{PageValues, TokenSink};

/// Stands before a sink. To the sink the tokens of the chunk are those of the other documents, numbered from 0.
pub struct LeaveOut<'a> {
    sink: &'a mut dyn ChunkSink,
    /// Ascending, each once.
    rows: &'a [u32],
    /// Rows of the chunk that were begun.
    begun: u64,
}

impl<'a> LeaveOut<'a> {
    /// Leaves out the documents in some `rows` of the chunk that `sink` is for.
    pub fn new(sink: &'a mut dyn ChunkSink, rows: &'a [u32]) -> Self {
        Self { sink, rows, begun: 0 }
    }
}

impl ChunkSink for LeaveOut<'_> {
    fn has_all(&self) -> bool {
        self.sink.has_all()
    }

    fn restart(&mut self) {
        self.begun = 0;
        self.sink.restart();
    }
}

impl TokenSink for LeaveOut<'_> {
    fn wants(&mut self, tokens: Range<u64>) -> bool {
        // A token has no higher number behind here than before, so that the upper bound is one there too.
        self.sink.wants(tokens)
    }

    fn documents(&mut self, continued: bool, lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        if lengths.is_empty() {
            return Ok(());
        }
        // The row of the first one; there is none before it that could go on if nothing was begun.
        let first = self.begun - u64::from(continued && self.begun > 0);
        self.begun = first + lengths.len() as u64;
        let rows = self.rows.partition_point(|&row| u64::from(row) < first);
        let rows = &self.rows[rows..];
        let rows = &rows[..rows.partition_point(|&row| u64::from(row) < self.begun)];
        let (mut from, mut tokens, all) = (0, 0, values.left());
        for &row in rows {
            let number = (u64::from(row) - first) as usize;
            tokens += self.pass_on(continued && from == 0, &lengths[from..number], (tokens, all), values)?;
            // It stays a row, which holds no token.
            self.sink.documents(continued && number == 0, &[0], values)?;
            tokens += lengths[number];
            from = number + 1;
        }
        self.pass_on(continued && from == 0, &lengths[from..], (tokens, all), values)?;
        Ok(())
    }
}

impl LeaveOut<'_> {
    /// Shows documents to the sink, of which `before` of all tokens of the page lie before the first; says how many
    /// they hold.
    fn pass_on(
        &mut self,
        continued: bool,
        lengths: &[u64],
        (before, all): (u64, u64),
        values: &mut PageValues<'_>,
    ) -> Result<u64> {
        if !lengths.is_empty() {
            // The sink may have left some of those before, and nobody has read those that are left out.
            values.skip((before + values.left() - all) as usize)?;
            self.sink.documents(continued, lengths, values)?;
        }
        Ok(lengths.iter().sum())
    }
}
