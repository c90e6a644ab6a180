//! From a chunk's bytes to a sink, with buffers that are kept between chunks.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::keep::ChunkSink;
use super::leave_out::LeaveOut;
use super::run::Run;
use super::shares::Shares;
use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::parquet::{ChunkDecoder, Limits, Progress, TokenChunk, Unsupported, fallback};
use crate::store::ByteStream;

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

    /// Bytes that a worker holds while its pages fit `block`: input of up to two blocks, a page, another's front, a
    /// dictionary's numbers in a table of up to twice its page; and what does not grow with them.
    pub fn bytes(block: usize) -> u64 {
        Self::BLOCKS * block as u64 + (1 << 20)
    }

    /// See [`Scratch::bytes`].
    pub const BLOCKS: u64 = 6;

    /// Decodes a chunk into its sink, until that has all or to the chunk's end; says whether that was reached. A page
    /// larger than the scratch borrows the difference from the budget.
    pub fn decode(
        &mut self,
        run: &Run,
        chunk: u32,
        sink: &mut dyn ChunkSink,
        open: &mut dyn FnMut() -> ByteStream,
        loans: &Loans,
        cancel: &Cancel,
    ) -> Result<bool> {
        let place = run.place(chunk);
        let rows = run.left_out(chunk);
        let mut others;
        let sink: &mut dyn ChunkSink = if rows.is_empty() {
            sink
        } else {
            others = LeaveOut::new(sink, rows);
            &mut others
        };
        let chunk = run.chunk(chunk);
        let mut loan = None;
        loop {
            let outcome = self.decode_once(&chunk, &place, sink, open, cancel);
            match outcome {
                Err(Error::Memory { purpose, needed, .. }) if needed > self.page_bytes => {
                    loan = match loan {
                        None => Some(loans.take(needed, &purpose)?),
                        held => loans.check(needed, &purpose).map(|()| held)?,
                    };
                    self.set_page_bytes(needed);
                    sink.restart();
                }
                outcome => {
                    if loan.is_some() {
                        *self = Self::new(self.block);
                    }
                    return outcome;
                }
            }
        }
    }

    /// Has at least `want` bytes in the buffer, or all that the stream has left.
    fn refill(&mut self, stream: &mut ByteStream, want: usize) -> Result<()> {
        if self.buffer.is_empty() && stream.is_last_read() {
            // It takes over the memory that the bytes came in, rather than to copy them.
            self.buffer = Vec::new();
        } else {
            // Exactly: a buffer that doubles would hold more than it is charged for.
            let room = want.saturating_add(self.block).saturating_sub(self.buffer.len());
            let left = usize::try_from(stream.remaining()).unwrap_or(usize::MAX);
            self.buffer.reserve_exact(room.min(left));
        }
        stream.fill(&mut self.buffer, want)
    }

    /// Reads a stream to its end and keeps nothing; gives its bytes.
    pub fn drain(&mut self, mut stream: ByteStream, cancel: &Cancel) -> Result<u64> {
        let mut bytes = 0;
        loop {
            cancel.check()?;
            self.buffer = Vec::new();
            stream.fill(&mut self.buffer, 1)?;
            bytes += self.buffer.len() as u64;
            if self.buffer.is_empty() {
                return Ok(bytes);
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
        sink: &mut dyn ChunkSink,
        open: &mut dyn FnMut() -> ByteStream,
        cancel: &Cancel,
    ) -> Result<bool> {
        let mut stream = open();
        self.buffer.clear();
        self.decoder.begin(chunk, place.clone());
        loop {
            cancel.check()?;
            match self.decoder.push(&self.buffer, sink)? {
                Progress::Done => return Ok(true),
                Progress::Unsupported(rest) => {
                    return self.decode_otherwise(chunk, place, sink, &rest, open()).map(|()| true);
                }
                Progress::Need { .. } if sink.has_all() => return Ok(false),
                Progress::Need { consumed, want } => {
                    let skip = consumed.saturating_sub(self.buffer.len());
                    self.buffer.drain(..consumed - skip);
                    stream.skip(skip as u64);
                    self.refill(&mut stream, want)?;
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
        sink: &mut dyn ChunkSink,
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
        fallback::decode(chunk, place, Bytes::from(bytes), rest.delivered, limits, sink)
    }
}
