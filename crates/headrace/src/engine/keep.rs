//! What becomes of a chunk's documents as they are decoded: the sinks of the engine.

use std::ops::Range;

use super::documents::{Documents, Stretches, TokenSlotMut, Tokens, tokens_of};
use super::memory::SlotMut;
use super::plan::ChunkPlan;
use super::run::Run;
use crate::error::{Error, Place, Result};
use crate::format::parquet::{PageValues, TokenSink};

/// A sink that knows when it has all that it is for.
pub trait ChunkSink: TokenSink {
    /// Whether the rest of the chunk need not be read.
    fn has_all(&self) -> bool;
    /// Begins again with the chunk's first document.
    fn restart(&mut self);
}

/// Where a chunk's documents are put.
#[derive(Debug)]
pub struct ChunkSlots {
    /// As long as [`ChunkPlan::most_tokens`]; `None` if only the documents' lengths are wanted.
    pub tokens: Option<TokenSlotMut>,
    /// As long as [`ChunkPlan::most_documents`].
    pub ends: SlotMut<u64>,
    /// As long as [`ChunkPlan::most_documents`].
    pub rows: SlotMut<u32>,
}

/// Keeps what a window needs of a chunk.
pub struct Keep {
    place: Place,
    chunk: u32,
    need: Range<u64>,
    bos: u64,
    added: u64,
    /// Tokens and documents that the whole chunk should have.
    counts: (u64, Option<u64>),
    slots: ChunkSlots,
    so_far: SoFar,
}

#[derive(Default)]
struct SoFar {
    /// Tokens and documents kept.
    tokens: usize,
    documents: usize,
    /// Stored tokens seen before the first that is kept.
    skipped: u64,
    /// Seen in the whole chunk: rows begun, those with a token, their stored tokens.
    rows: u64,
    filled: u64,
    seen: u64,
    /// The document in progress: where it begins, and how many of its stored tokens were seen.
    start: u64,
    length: u64,
    first_start: u64,
    first_tokens: u64,
}

impl Keep {
    /// A sink for a planned chunk.
    pub fn new(run: &Run, plan: &ChunkPlan, place: Place, slots: ChunkSlots) -> Self {
        let specials = run.specials();
        Self {
            place,
            chunk: plan.chunk,
            need: plan.need.clone(),
            bos: u64::from(specials.bos.is_some()),
            added: specials.added(),
            counts: run.counts(plan.chunk),
            slots,
            so_far: SoFar::default(),
        }
    }

    /// Ends the document in progress, if it has a token; `kept` tokens are kept beside those counted so far.
    fn end_document(&mut self, kept: u64) -> Result<()> {
        let so_far = &mut self.so_far;
        if so_far.length == 0 {
            return Ok(());
        }
        so_far.filled += 1;
        let end = so_far.start + so_far.length + self.added;
        if end > self.need.start && so_far.start < self.need.end {
            if so_far.documents == 0 {
                so_far.first_start = so_far.start;
                so_far.first_tokens = so_far.tokens as u64 + kept;
                if so_far.first_tokens == 0 {
                    // Kept for the token that was added behind it.
                    so_far.skipped = so_far.seen;
                }
            }
            if so_far.documents == self.slots.ends.len() {
                return Err(self.miscounted());
            }
            self.slots.ends[so_far.documents] = end;
            self.slots.rows[so_far.documents] = (so_far.rows - 1) as u32;
            so_far.documents += 1;
        }
        so_far.start = end;
        so_far.length = 0;
        Ok(())
    }

    /// The documents and their tokens, once the chunk was read to its end (`is_complete`) or as far as needed.
    pub fn finish(mut self, is_complete: bool) -> Result<(Documents, Tokens)> {
        self.end_document(0)?;
        let (tokens, documents) = self.counts;
        let so_far = &self.so_far;
        let miscounted = so_far.seen != tokens || documents.is_some_and(|documents| documents != so_far.filled);
        if so_far.start < self.need.end || is_complete && miscounted {
            return Err(self.miscounted());
        }
        let first = so_far.skipped;
        let tokens = match self.slots.tokens {
            Some(slot) => Tokens::new(slot.freeze(so_far.tokens), vec![first..first + so_far.tokens as u64]),
            None => Tokens::default(),
        };
        let documents = Documents {
            chunk: self.chunk,
            need: self.need,
            ends: self.slots.ends.freeze(so_far.documents),
            rows: self.slots.rows.freeze(so_far.documents),
            first_start: so_far.first_start,
            first_tokens: so_far.first_tokens,
            skipped: first,
        };
        Ok((documents, tokens))
    }

    fn miscounted(&self) -> Error {
        let (tokens, documents) = self.counts;
        let documents = documents.map_or_else(String::new, |documents| format!(" in {documents} documents"));
        Error::data(
            self.place.clone(),
            format!(
                "the index counts {tokens} tokens{documents}, the pages hold {} in {} documents\n\
                 hint: the statistics in the file are wrong, or the index is stale: open it with index=\"rebuild\"",
                self.so_far.seen, self.so_far.filled
            ),
        )
    }
}

impl ChunkSink for Keep {
    fn has_all(&self) -> bool {
        let SoFar { start, length, .. } = self.so_far;
        start >= self.need.end || length > 0 && start + self.bos + length >= self.need.end
    }

    fn restart(&mut self) {
        self.so_far = SoFar::default();
    }
}

impl TokenSink for Keep {
    fn wants(&mut self, tokens: Range<u64>) -> bool {
        let SoFar { start, length, seen, .. } = self.so_far;
        // Behind the last of `tokens`, were each of them a document with all that is added to one.
        let most = tokens.end.saturating_sub(seen).saturating_mul(1 + self.added);
        let end = (start + length + self.added).saturating_add(most);
        self.slots.tokens.is_some() && end > self.need.start && !self.has_all()
    }

    fn documents(&mut self, is_continued: bool, lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        // What is kept of a page is one stretch of its tokens: documents lie next to each other.
        let seen = self.so_far.seen;
        let (mut at, mut from, mut to) = (0_u64, None, 0_u64);
        for (number, &length) in lengths.iter().enumerate() {
            if number > 0 || !is_continued {
                self.end_document(to - from.unwrap_or(to))?;
                self.so_far.rows += 1;
            }
            let first = self.so_far.start + self.bos + self.so_far.length;
            let skip = self.need.start.saturating_sub(first).min(length);
            let stop = self.need.end.saturating_sub(first).min(length);
            if skip < stop {
                from.get_or_insert(at + skip);
                to = at + stop;
            }
            at += length;
            self.so_far.length += length;
            self.so_far.seen += length;
        }
        let Some(from) = from else { return Ok(()) };
        let kept = (to - from) as usize;
        if self.so_far.tokens == 0 {
            self.so_far.skipped = seen + from;
        }
        if let Some(slot) = &mut self.slots.tokens {
            let Some(room) = slot.get_mut(self.so_far.tokens..self.so_far.tokens + kept) else {
                return Err(self.miscounted());
            };
            values.skip(from as usize)?;
            values.read(room)?;
        }
        self.so_far.tokens += kept;
        Ok(())
    }
}

/// Picks some stretches of a chunk's tokens.
pub struct Pick {
    place: Place,
    wanted: Stretches,
    slot: TokenSlotMut,
    /// Stretches that are done with, tokens that were picked, tokens seen in the whole chunk.
    done: usize,
    picked: usize,
    seen: u64,
}

impl Pick {
    /// A sink for `wanted`, for which `slot` has room.
    pub fn new(place: Place, wanted: Stretches, slot: TokenSlotMut) -> Self {
        Self { place, wanted, slot, done: 0, picked: 0, seen: 0 }
    }

    /// The tokens.
    pub fn finish(self) -> Result<Tokens> {
        if !self.has_all() {
            let what = format!("expected {} tokens that were counted, found {}", tokens_of(&self.wanted), self.picked);
            return Err(Error::data(self.place, what));
        }
        Ok(Tokens::new(self.slot.freeze(self.picked), self.wanted))
    }
}

impl ChunkSink for Pick {
    fn has_all(&self) -> bool {
        self.done == self.wanted.len()
    }

    fn restart(&mut self) {
        (self.done, self.picked, self.seen) = (0, 0, 0);
    }
}

impl TokenSink for Pick {
    fn wants(&mut self, tokens: Range<u64>) -> bool {
        self.wanted.get(self.done).is_some_and(|wanted| wanted.start < tokens.end)
    }

    fn documents(&mut self, _is_continued: bool, lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        let end = self.seen + lengths.iter().sum::<u64>();
        while let Some(wanted) = self.wanted.get(self.done).filter(|wanted| wanted.start < end) {
            let part = wanted.start.max(self.seen)..wanted.end.min(end);
            let count = (part.end - part.start) as usize;
            values.skip((part.start - self.seen) as usize)?;
            let missing = || Error::Internal("stretches of tokens without room".to_owned());
            values.read(self.slot.get_mut(self.picked..self.picked + count).ok_or_else(missing)?)?;
            self.picked += count;
            self.seen = part.end;
            if part.end < wanted.end {
                break;
            }
            self.done += 1;
        }
        self.seen = end;
        Ok(())
    }
}
