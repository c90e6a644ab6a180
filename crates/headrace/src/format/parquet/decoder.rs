//! The streaming decoder of a token column's chunk: bytes in, documents out, page by page.
//!
//! It reads every page of a chunk of which its sink wants tokens, only the levels of others, and checks each count that
//! it meets against what is there. Checksums are compared for pages that are read whole. Memory is bounded by
//! [`Limits::page_bytes`] and by batches of fixed size, whatever the data declares. What it does not know (an
//! encoding or codec that came later) it names in [`Unsupported`]; [`super::fallback`] then goes on from
//! where it stopped.

use super::codec::Codecs;
use super::cpu::Cpu;
use super::data::Fault;
use super::dictionary::Dictionary;
use super::documents::{Batch, Counts};
use super::flaw::{Flaw, flaw};
use super::front::Fronts;
use super::page::{MAX_HEADER_BYTES, PageHeader, PageKind, parse_header};
use super::{TokenChunk, TokenSink};
use crate::error::{Error, Place, Result};

/// What a decoder may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest page, compressed or not, that may be taken into memory; a larger one is [`Error::Memory`].
    pub page_bytes: u64,
}

/// What a decoder has handed to its sink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Documents begun.
    pub rows: u64,
    /// Tokens.
    pub tokens: u64,
}

/// A chunk that this decoder cannot read to its end, though it may be sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// What is not known here, for messages.
    pub what: String,
    /// What the sink has got already: [`super::fallback::decode`] goes on behind it.
    pub delivered: Delivered,
}

/// How far a call of [`ChunkDecoder::push`] came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Need {
        /// Bytes that are done with. They may be more than the input had: those beyond it need not be read.
        consumed: usize,
        /// Bytes that must be there, from after `consumed`, before there is more to do. Never more than the chunk has.
        want: usize,
    },
    /// The chunk was read to its end.
    Done,
    /// The chunk cannot be read further by this decoder.
    Unsupported(Unsupported),
}

/// How [`decode_stream`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// All documents went to the sink.
    Complete,
    /// The rest has to be read by [`super::fallback::decode`].
    Unsupported(Unsupported),
}

/// Decodes chunks one after another, and keeps its buffers between them.
pub struct ChunkDecoder {
    pub(super) cpu: Cpu,
    pub(super) limits: Limits,
    pub(super) chunk: TokenChunk,
    pub(super) place: Place,
    /// Bytes of the chunk consumed so far.
    pub(super) offset: u64,
    pub(super) counts: Counts,
    pub(super) has_dictionary: bool,
    /// Whether the sink wants nothing of the chunk, so that its dictionary was passed over.
    pub(super) unwanted: bool,
    pub(super) dictionary: Dictionary,
    pub(super) codecs: Codecs,
    pub(super) fronts: Fronts,
    /// The current page, decompressed.
    pub(super) body: Vec<u8>,
    /// The front of a page of which only the levels are wanted.
    pub(super) front: Vec<u8>,
    pub(super) batch: Batch,
}

impl ChunkDecoder {
    /// A decoder that is not yet given a chunk.
    pub fn new(limits: Limits) -> Self {
        let shape = super::TokenShape { value_bytes: 4, bits: 32, signed: true, max_def: 1, list_def: 1 };
        Self {
            cpu: Cpu::detect(),
            limits,
            chunk: TokenChunk { shape, codec: 0, encodings: 0, start: 0, len: 0, levels: 0, rows: 0, narrow: false },
            place: Place::default(),
            offset: 0,
            counts: Counts::default(),
            has_dictionary: false,
            unwanted: false,
            dictionary: Dictionary::default(),
            codecs: Codecs::default(),
            fronts: Fronts::default(),
            front: Vec::new(),
            body: Vec::new(),
            batch: Batch::default(),
        }
    }

    /// The same decoder, for another kind of processor.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Self {
        Self { cpu, ..self }
    }

    /// Begins a chunk; `place` (file, column, row group) is for messages.
    pub fn begin(&mut self, chunk: &TokenChunk, place: Place) {
        self.chunk = *chunk;
        self.place = place;
        self.offset = 0;
        self.counts = Counts::default();
        self.has_dictionary = false;
        self.unwanted = false;
        self.dictionary.clear();
    }

    /// What the sink has got of the current chunk.
    pub fn delivered(&self) -> Delivered {
        Delivered { rows: self.counts.rows, tokens: self.counts.tokens }
    }

    /// Consumes as many whole pages as `input` holds and passes their documents to `sink`.
    ///
    /// `input` begins with the first byte of the chunk that was not consumed before. After an error the chunk cannot
    /// be gone on with.
    pub fn push(&mut self, input: &[u8], sink: &mut dyn TokenSink) -> Result<Progress> {
        super::check_shape(&self.chunk, &self.place)?;
        let mut consumed = 0;
        loop {
            let left = self.chunk.len.saturating_sub(self.offset);
            if left == 0 {
                return self.finish();
            }
            let rest = input.get(consumed..).unwrap_or_default();
            let rest = &rest[..rest.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            let counts = self.counts;
            match self.page(rest, left, sink) {
                Ok(Step::Page(taken)) => {
                    consumed += taken;
                    self.offset += taken as u64;
                }
                Ok(Step::Want(want)) => return Ok(Progress::Need { consumed, want }),
                Err(Fault::Unsupported(what)) => {
                    // Nothing of this page went to the sink: what is not known shows before the first batch.
                    self.counts = counts;
                    return Ok(Progress::Unsupported(Unsupported { what, delivered: self.delivered() }));
                }
                Err(fault) => return Err(self.error(fault)),
            }
        }
    }

    /// Decompresses all pages of a chunk and makes nothing of them: their bytes. To measure what that costs.
    pub fn decompress_pages(&mut self, chunk: &TokenChunk, place: Place, input: &[u8]) -> Result<u64> {
        self.begin(chunk, place);
        let (mut rest, mut sum) = (input, 0);
        while !rest.is_empty() {
            let size = self.decompress_page(rest).map_err(|fault| self.error(fault))?;
            sum += size.1 as u64;
            self.offset += size.0 as u64;
            rest = &rest[size.0..];
        }
        Ok(sum)
    }

    fn finish(&self) -> Result<Progress> {
        for (name, wanted, found) in
            [("levels", self.chunk.levels, self.counts.levels), ("rows", self.chunk.rows, self.counts.rows)]
        {
            if wanted != found {
                let what = format!("expected {wanted} {name} in the column chunk, found {found}");
                return Err(Error::data(self.place.clone(), what));
            }
        }
        Ok(Progress::Done)
    }

    /// The error for a fault in the current page.
    fn error(&self, fault: Fault) -> Error {
        let at = self.chunk.start.saturating_add(self.offset);
        match fault {
            Fault::Error(error) => error,
            Fault::Flaw(flaw, row) => in_page(&self.place, at, flaw, row),
            Fault::Unsupported(what) => {
                in_page(&self.place, at, flaw!("expected what is known here, found {what}"), None)
            }
        }
    }

    /// Does one page, of which `input` holds the front at least.
    fn page(&mut self, input: &[u8], left: u64, sink: &mut dyn TokenSink) -> Result<Step, Fault> {
        let Some((header, header_len)) = parse_header(&input[..input.len().min(MAX_HEADER_BYTES)])? else {
            if input.len() as u64 == left {
                return Err(
                    flaw!("expected a page header, found the end of the column chunk after {left} bytes").into()
                );
            }
            if input.len() >= MAX_HEADER_BYTES {
                return Err(flaw!("expected a page header of at most {MAX_HEADER_BYTES} bytes, found more").into());
            }
            // Headers take some tens of bytes; ask for twice as much whenever that was too little.
            let want = (input.len() * 2).max(64).min(usize::try_from(left).unwrap_or(usize::MAX));
            return Ok(Step::Want(want));
        };
        let PageHeader { kind, compressed, uncompressed, crc } = header;
        let whole = header_len + compressed;
        if whole as u64 > left {
            return Err(flaw!(
                "expected a page within the {left} bytes left of the column chunk, found one of {whole}"
            )
            .into());
        }
        let unread = match kind {
            PageKind::Other => true,
            PageKind::Dictionary { .. } => !self.wants_dictionary(sink)?,
            PageKind::DataV1 { .. } | PageKind::DataV2 { .. } => false,
        };
        if unread {
            return Ok(Step::Page(whole));
        }
        let needed = compressed.max(uncompressed) as u64;
        if needed > self.limits.page_bytes {
            let purpose = format!("a page of {}", self.place);
            return Err(Fault::Error(Error::Memory { purpose, needed, available: self.limits.page_bytes }));
        }
        let wanted = match kind {
            PageKind::DataV1 { levels, encoding, .. } | PageKind::DataV2 { levels, encoding, .. } => {
                self.wants_page(levels, encoding, sink)?
            }
            _ => true,
        };
        if !wanted {
            let there = &input[header_len..input.len().min(whole)];
            let mut front = std::mem::take(&mut self.front);
            let done = self.levels_alone(there, &header, &mut front, sink);
            // It may be as long as a page: beside others that is not kept.
            if front.capacity() <= LARGEST_FRONT {
                self.front = front;
            }
            return Ok(match done? {
                Some(want) => Step::Want(header_len + want),
                None => Step::Page(whole),
            });
        }
        let Some(bytes) = input.get(header_len..whole) else {
            return Ok(Step::Want(whole));
        };
        if let Some(wanted) = crc {
            let found = crc32fast::hash(bytes);
            if wanted != found {
                return Err(flaw!("expected the checksum {wanted:08x}, found {found:08x}").into());
            }
        }
        if let PageKind::Dictionary { values, encoding } = kind {
            self.dictionary_page(bytes, uncompressed, values, encoding)?;
            return Ok(Step::Page(whole));
        }
        let mut body = std::mem::take(&mut self.body);
        let done = match kind {
            PageKind::DataV1 { .. } => self.data_v1(bytes, uncompressed, kind, &mut body, sink),
            _ => self.data_v2(bytes, uncompressed, kind, &mut body, sink),
        };
        self.body = body;
        done?;
        Ok(Step::Page(whole))
    }
}

/// Bytes of a front that are kept between pages. Scope: a decoder.
const LARGEST_FRONT: usize = 256 << 10;

/// The error for a flaw in the page at byte `at` of the file.
pub(super) fn in_page(place: &Place, at: u64, Flaw(what): Flaw, row: Option<u64>) -> Error {
    Error::data(Place { row, ..place.clone() }, format!("page at byte {at}: {what}"))
}

/// What became of a page.
enum Step {
    /// It was read: bytes that it took.
    Page(usize),
    /// It is not whole: bytes that it needs.
    Want(usize),
}

/// Gives the bytes of a chunk: `fill(buffer, skip, want)` passes over `skip` bytes that come next (there are some only if
/// `buffer` is empty) and appends those that follow until `buffer` holds at least `want`, or fails.
pub type Fill<'a> = dyn FnMut(&mut Vec<u8>, usize, usize) -> Result<()> + 'a;

/// Decodes a whole chunk, asking `fill` for bytes as they are needed.
///
/// `buffer` may hold the first bytes of the chunk already; it is left empty.
pub fn decode_stream(
    decoder: &mut ChunkDecoder,
    chunk: &TokenChunk,
    place: Place,
    fill: &mut Fill<'_>,
    buffer: &mut Vec<u8>,
    sink: &mut dyn TokenSink,
) -> Result<Outcome> {
    decoder.begin(chunk, place);
    loop {
        match decoder.push(buffer, sink)? {
            Progress::Done => {
                buffer.clear();
                return Ok(Outcome::Complete);
            }
            Progress::Unsupported(unsupported) => {
                buffer.clear();
                return Ok(Outcome::Unsupported(unsupported));
            }
            Progress::Need { consumed, want } => {
                let skip = consumed.saturating_sub(buffer.len());
                buffer.drain(..consumed - skip);
                fill(buffer, skip, want)?;
                if buffer.len() < want {
                    let found = buffer.len();
                    let at = decoder.chunk.start.saturating_add(decoder.offset);
                    let what = format!("page at byte {at}: expected {want} bytes, found {found}");
                    return Err(Error::data(decoder.place.clone(), what));
                }
            }
        }
    }
}
