//! How documents leave a decoder: a sink is told of them, and pulls those tokens that it wants into memory of its own.

use std::ops::Range;

use crate::error::{Error, Result};

/// Receives a chunk's documents in storage order, page by page.
pub trait TokenSink {
    /// Whether any token is wanted of those that a page holds.
    ///
    /// Tokens are numbered from the chunk's first on. How many a page holds shows only in its levels, so that the end
    /// of the range is an upper bound. If none is wanted, the page's values are neither read nor decompressed nor
    /// decoded, and its documents come without them. Asked for the whole chunk before a dictionary page is decoded:
    /// if nothing is wanted then, nothing may be wanted later. It may be asked more than once for the same page.
    fn wants(&mut self, tokens: Range<u64>) -> bool;

    /// The documents of a page, or of a part of one.
    ///
    /// How many tokens they have is what the levels claim, and shows to be true only when the tokens are read: a sink
    /// that allocates for them does so piece by piece.
    ///
    /// `lengths[i]` tokens belong to the i-th document (0: an empty or null one); if `continued`, the first is the
    /// rest of the document that the page before ended with. The tokens of all, one after another, are in `values`;
    /// those that are left there are skipped.
    fn documents(&mut self, continued: bool, lengths: &[u64], values: &mut PageValues<'_>) -> Result<()>;
}

/// Where tokens are put.
#[derive(Debug)]
pub enum TokensMut<'a> {
    /// Tokens of any chunk.
    I32(&'a mut [i32]),
    /// Tokens of a chunk that is [`super::TokenChunk::narrow`].
    U16(&'a mut [u16]),
}

impl TokensMut<'_> {
    /// How many tokens there is room for.
    pub fn len(&self) -> usize {
        match self {
            Self::I32(tokens) => tokens.len(),
            Self::U16(tokens) => tokens.len(),
        }
    }

    /// Whether there is no room.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What gives the tokens of a [`PageValues`].
pub(super) trait Pull {
    /// Skips `skip` tokens and reads as many as `out` holds.
    ///
    /// The error is complete: it says in which file, column and row the fault is.
    fn pull(&mut self, skip: u64, out: TokensMut<'_>) -> Result<()>;
}

/// The tokens that belong to some documents, to be read or skipped from the first to the last.
///
/// What is skipped costs little and is not checked.
pub struct PageValues<'a> {
    source: &'a mut dyn Pull,
    /// Tokens neither skipped nor read.
    left: u64,
    /// Tokens that were skipped since the last read.
    skipped: u64,
    narrow: bool,
    failed: Option<Error>,
}

impl<'a> PageValues<'a> {
    /// `count` tokens of a source; with `narrow` they may be read as 16-bit numbers.
    pub(super) fn new(source: &'a mut dyn Pull, count: u64, narrow: bool) -> Self {
        Self { source, left: count, skipped: 0, narrow, failed: None }
    }

    /// How many there are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Passes over `count` tokens.
    pub fn skip(&mut self, count: usize) -> Result<()> {
        self.take(count as u64)?;
        self.skipped += count as u64;
        Ok(())
    }

    /// Reads as many tokens as `out` holds.
    ///
    /// # Errors
    /// [`Error::Data`] for a value that is no token and for bytes that are no values; after an error nothing more
    /// can be read, and what `out` holds is of no use.
    pub fn read(&mut self, out: TokensMut<'_>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if matches!(out, TokensMut::U16(_)) && !self.narrow {
            return Err(Error::Internal("16-bit tokens were asked for of a chunk that has wider ones".to_owned()));
        }
        self.take(out.len() as u64)?;
        if out.is_empty() {
            return Ok(());
        }
        let done = self.source.pull(std::mem::take(&mut self.skipped), out);
        if let Err(error) = &done {
            self.failed = Some(error.clone());
        }
        done
    }

    fn take(&mut self, count: u64) -> Result<()> {
        let left = self.left;
        self.left = left
            .checked_sub(count)
            .ok_or_else(|| Error::Internal(format!("{count} tokens were asked for where {left} are left")))?;
        Ok(())
    }

    /// How many tokens were passed over since the last read, once the sink is done: none of a fault is lost.
    pub(super) fn finish(self) -> Result<u64> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.skipped + self.left),
        }
    }
}

/// The values of a page of which the sink said that it wants none.
pub(super) struct Unwanted;

impl Pull for Unwanted {
    fn pull(&mut self, _skip: u64, _out: TokensMut<'_>) -> Result<()> {
        Err(Error::Internal("tokens were asked for of a page of which none was wanted".to_owned()))
    }
}
