//! From a chunk's bytes to the documents that a window keeps of it.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::conductor::Shares;
use super::memory::{Slot, SlotMut};
use super::plan::ChunkPlan;
use super::run::Run;
use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::parquet::{
    ChunkDecoder, Limits, PageValues, Progress, TokenChunk, TokenSink, TokensMut, Unsupported, fallback,
};
use crate::pack::Specials;
use crate::store::ByteStream;

/// The kept documents of one chunk.
///
/// Positions are in expanded tokens of the whole chunk. Only the first and the last document can be kept in part.
#[derive(Debug)]
pub struct ChunkDocs {
    /// The chunk's number in the index.
    pub chunk: u32,
    /// What was to be kept.
    need: Range<u64>,
    /// The stored tokens of `need`, one after another.
    tokens: Slot<i32>,
    /// Where each kept document ends.
    ends: Slot<u64>,
    /// The row of each kept document in the row group.
    rows: Slot<u32>,
    /// Where the first kept document begins.
    first_start: u64,
    /// Stored tokens that are kept of the first document.
    first_tokens: u64,
}

/// One document of a [`ChunkDocs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document {
    /// Its row in the row group.
    pub row: u32,
    /// Where its expanded tokens begin in the chunk.
    pub start: u64,
    /// Where they end.
    pub end: u64,
    number: usize,
}

impl ChunkDocs {
    /// Kept documents.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The number of the kept document that holds the expanded token at `position` of the chunk.
    pub fn at(&self, position: u64) -> usize {
        self.ends.partition_point(|&end| end <= position)
    }

    /// A kept document.
    pub fn document(&self, number: usize) -> Document {
        let start = if number == 0 { self.first_start } else { self.ends[number - 1] };
        Document { row: self.rows[number], start, end: self.ends[number], number }
    }

    /// The stored tokens `range` of a document; they must lie within what is kept.
    pub fn tokens(&self, document: &Document, range: Range<u64>, specials: Specials) -> &[i32] {
        let added = specials.added();
        // Where the document's first kept token lies in `tokens`, and which of its tokens that is.
        let (at, first) = if document.number == 0 {
            let whole = document.end - document.start - added;
            (0, specials.stored(whole, self.need.start.saturating_sub(document.start), u64::MAX >> 1).start)
        } else {
            (self.first_tokens + document.start - self.ends[0] - (document.number as u64 - 1) * added, 0)
        };
        &self.tokens[(at + range.start - first) as usize..(at + range.end - first) as usize]
    }
}

/// Where a chunk's documents are put.
#[derive(Debug)]
pub struct ChunkSlots {
    /// As long as [`ChunkPlan::most_tokens`].
    pub tokens: SlotMut<i32>,
    /// As long as [`ChunkPlan::most_documents`].
    pub ends: SlotMut<u64>,
    /// As long as [`ChunkPlan::most_documents`].
    pub rows: SlotMut<u32>,
}

/// Memory for pages that are larger than workers' buffers: one page at a time, from a share that nothing else uses.
/// So whether a page can be read depends on the budget alone, never on what other threads do.
#[derive(Debug)]
pub struct Loans {
    /// Bytes of the share.
    most: u64,
    /// Bytes of the whole budget, and how many of a larger one would not be shared out between windows and loans.
    memory: u64,
    most_fixed: u64,
    turn: Mutex<()>,
}

impl Loans {
    /// Of what a budget has beside its fixed part, one part in this many is for loans, the rest for windows.
    pub const PARTS: u64 = 4;
    /// Times a page's bytes that reading it takes: input, page, numbers.
    const TIMES: u64 = 3;

    /// The loans of a budget.
    pub fn new(memory: u64, shares: &Shares) -> Self {
        let most = (memory - shares.fixed) / Self::PARTS;
        Self { most, memory, most_fixed: shares.most_fixed, turn: Mutex::new(()) }
    }

    /// Waits for its turn to read a large page.
    fn take(&self, page: u64, purpose: &str) -> Result<MutexGuard<'_, ()>> {
        self.check(page, purpose)?;
        Ok(self.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn check(&self, page: u64, purpose: &str) -> Result<()> {
        let bytes = page.saturating_mul(Self::TIMES);
        if bytes <= self.most {
            return Ok(());
        }
        let needed = bytes.saturating_mul(Self::PARTS).saturating_add(self.most_fixed);
        Err(Error::Memory { purpose: purpose.to_owned(), needed, available: self.memory })
    }
}

/// What a worker keeps between chunks.
pub struct Scratch {
    decoder: ChunkDecoder,
    buffer: Vec<u8>,
    page_bytes: u64,
    block: usize,
}

impl Scratch {
    /// Buffers for blocks and pages of up to `block` bytes.
    pub fn new(block: usize) -> Self {
        let page_bytes = block as u64;
        Self { decoder: ChunkDecoder::new(Limits { page_bytes }), buffer: Vec::new(), page_bytes, block }
    }

    /// Bytes that a worker holds while its pages fit `block`: input of up to two blocks, a page, a dictionary's page
    /// and its numbers; and what does not grow with them.
    pub fn bytes(block: usize) -> u64 {
        Self::BLOCKS * block as u64 + (1 << 20)
    }

    /// See [`Scratch::bytes`].
    pub const BLOCKS: u64 = 5;

    /// Decodes a chunk into its slots. A page larger than the scratch borrows the difference from the budget.
    pub fn decode(
        &mut self,
        run: &Run,
        plan: &ChunkPlan,
        slots: ChunkSlots,
        open: &mut dyn FnMut() -> ByteStream,
        loans: &Loans,
        cancel: &Cancel,
    ) -> Result<ChunkDocs> {
        let chunk = run.chunk(plan.chunk);
        let place = run.place(plan.chunk);
        let mut keep = Keep::new(run, plan, place.clone(), slots);
        let mut loan = None;
        loop {
            let outcome = self.decode_once(&chunk, &place, &mut keep, open, cancel);
            match outcome {
                Err(Error::Memory { purpose, needed, .. }) if needed > self.page_bytes => {
                    loan = match loan {
                        None => Some(loans.take(needed, &purpose)?),
                        held => loans.check(needed, &purpose).map(|()| held)?,
                    };
                    self.set_page_bytes(needed);
                    keep.restart();
                }
                outcome => {
                    if loan.is_some() {
                        *self = Self::new(self.block);
                    }
                    return outcome.and_then(|complete| keep.finish(complete));
                }
            }
        }
    }

    fn set_page_bytes(&mut self, page_bytes: u64) {
        self.page_bytes = page_bytes;
        self.decoder = ChunkDecoder::new(Limits { page_bytes });
    }

    /// Decodes until the end, or until all that is needed is there; says which.
    fn decode_once(
        &mut self,
        chunk: &TokenChunk,
        place: &Place,
        keep: &mut Keep,
        open: &mut dyn FnMut() -> ByteStream,
        cancel: &Cancel,
    ) -> Result<bool> {
        let mut stream = open();
        self.buffer.clear();
        self.decoder.begin(chunk, place.clone());
        loop {
            cancel.check()?;
            match self.decoder.push(&self.buffer, keep)? {
                Progress::Done => return Ok(true),
                Progress::Unsupported(rest) => {
                    return self.decode_otherwise(chunk, place, keep, &rest, open()).map(|()| true);
                }
                Progress::Need { .. } if keep.has_all() => return Ok(false),
                Progress::Need { consumed, want } => {
                    let skip = consumed.saturating_sub(self.buffer.len());
                    self.buffer.drain(..consumed - skip);
                    stream.skip(skip as u64);
                    // Exactly: a buffer that doubles would hold more than it is charged for.
                    let room = want.saturating_add(self.block).saturating_sub(self.buffer.len());
                    self.buffer.reserve_exact(room.min(chunk.len as usize));
                    stream.fill(&mut self.buffer, want)?;
                    if self.buffer.len() < want {
                        let found = self.buffer.len();
                        return Err(Error::data(
                            place.clone(),
                            format!("expected {want} more bytes of the column chunk, found {found}"),
                        ));
                    }
                }
            }
        }
    }

    /// The rest of a chunk that the fast path does not know, which takes the whole chunk into memory.
    fn decode_otherwise(
        &mut self,
        chunk: &TokenChunk,
        place: &Place,
        keep: &mut Keep,
        rest: &Unsupported,
        mut stream: ByteStream,
    ) -> Result<()> {
        if chunk.len > self.page_bytes {
            let purpose = format!("{place}: a column chunk with {}", rest.what);
            return Err(Error::Memory { purpose, needed: chunk.len, available: self.page_bytes });
        }
        let mut bytes = Vec::new();
        stream.fill(&mut bytes, chunk.len as usize)?;
        let limits = Limits { page_bytes: self.page_bytes };
        fallback::decode(chunk, place, Bytes::from(bytes), rest.delivered, limits, keep)
    }
}

/// The sink that keeps what a window needs.
struct Keep {
    place: Place,
    chunk: u32,
    need: Range<u64>,
    bos: u64,
    added: u64,
    /// Tokens and documents that the whole chunk should have.
    counts: (u64, Option<u64>),
    slots: ChunkSlots,
    /// Tokens and documents kept so far.
    tokens: usize,
    documents: usize,
    /// Seen in the whole chunk so far: rows begun, those with a token, their stored tokens.
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
    fn new(run: &Run, plan: &ChunkPlan, place: Place, slots: ChunkSlots) -> Self {
        let specials = run.specials();
        Self {
            place,
            chunk: plan.chunk,
            need: plan.need.clone(),
            bos: u64::from(specials.bos.is_some()),
            added: specials.added(),
            counts: run.counts(plan.chunk),
            slots,
            tokens: 0,
            documents: 0,
            rows: 0,
            filled: 0,
            seen: 0,
            start: 0,
            length: 0,
            first_start: 0,
            first_tokens: 0,
        }
    }

    fn restart(&mut self) {
        (self.tokens, self.documents) = (0, 0);
        (self.rows, self.filled, self.seen, self.start, self.length) = (0, 0, 0, 0, 0);
    }

    /// Whether nothing that comes later in the chunk is needed.
    fn has_all(&self) -> bool {
        self.start >= self.need.end || self.length > 0 && self.start + self.bos + self.length >= self.need.end
    }

    /// Ends the document in progress, if it has a token; `kept` tokens are kept beside those counted so far.
    fn end_document(&mut self, kept: u64) -> Result<()> {
        if self.length == 0 {
            return Ok(());
        }
        self.filled += 1;
        let end = self.start + self.length + self.added;
        if end > self.need.start && self.start < self.need.end {
            if self.documents == 0 {
                self.first_start = self.start;
                self.first_tokens = self.tokens as u64 + kept;
            }
            if self.documents == self.slots.ends.len() {
                return Err(self.miscounted());
            }
            self.slots.ends[self.documents] = end;
            self.slots.rows[self.documents] = (self.rows - 1) as u32;
            self.documents += 1;
        }
        self.start = end;
        self.length = 0;
        Ok(())
    }

    /// The documents, once the chunk was read to its end (`complete`) or as far as needed.
    fn finish(mut self, complete: bool) -> Result<ChunkDocs> {
        self.end_document(0)?;
        let (tokens, documents) = self.counts;
        let miscounted = self.seen != tokens || documents.is_some_and(|documents| documents != self.filled);
        if self.start < self.need.end || complete && miscounted {
            return Err(self.miscounted());
        }
        Ok(ChunkDocs {
            chunk: self.chunk,
            need: self.need,
            tokens: self.slots.tokens.freeze(self.tokens),
            ends: self.slots.ends.freeze(self.documents),
            rows: self.slots.rows.freeze(self.documents),
            first_start: self.first_start,
            first_tokens: self.first_tokens,
        })
    }

    fn miscounted(&self) -> Error {
        let (tokens, documents) = self.counts;
        let documents = documents.map_or_else(String::new, |documents| format!(" in {documents} documents"));
        Error::data(
            self.place.clone(),
            format!(
                "the index counts {tokens} tokens{documents}, the pages hold {} in {} documents\n\
                 hint: the statistics in the file are wrong, or the index is stale: open it with index=\"rebuild\"",
                self.seen, self.filled
            ),
        )
    }
}

impl TokenSink for Keep {
    fn wants(&mut self, tokens: Range<u64>) -> bool {
        // Where the first of them may lie, and an end that the last cannot reach: each may be a document of its own.
        let first = self.start + self.bos + self.length;
        let each = self.added.saturating_add(1);
        let most = (tokens.end - tokens.start).saturating_mul(each);
        let end = (self.start + self.length + self.added).saturating_add(most);
        first < self.need.end && self.need.start < end
    }

    fn documents(&mut self, continued: bool, lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        // What is kept of a page is one stretch of its values: documents lie next to each other in `tokens`.
        let (mut at, mut from, mut to) = (0_u64, None, 0_u64);
        for (number, &length) in lengths.iter().enumerate() {
            if number > 0 || !continued {
                self.end_document(to - from.unwrap_or(to))?;
                self.rows += 1;
            }
            let first = self.start + self.bos + self.length;
            let skip = self.need.start.saturating_sub(first).min(length);
            let stop = self.need.end.saturating_sub(first).min(length);
            if skip < stop {
                from.get_or_insert(at + skip);
                to = at + stop;
            }
            at += length;
            self.length += length;
            self.seen += length;
        }
        let Some(from) = from else { return Ok(()) };
        let kept = (to - from) as usize;
        let Some(room) = self.slots.tokens.get_mut(self.tokens..self.tokens + kept) else {
            return Err(self.miscounted());
        };
        values.skip(from as usize)?;
        values.read(TokensMut::I32(room))?;
        self.tokens += kept;
        Ok(())
    }
}
