//! The streaming decoder of a token column's chunk: bytes in, documents out, page by page.
//!
//! It reads every page of a chunk and checks each count that it meets against what is there. Memory is bounded by
//! [`Limits::page_bytes`] and by batches of fixed size, whatever the data declares. What it does not know (an
//! encoding or codec that came later) it names in [`Unsupported`]; [`super::fallback`] then goes on from
//! where it stopped.

use std::borrow::Cow;

use super::codec::{self, Codecs};
use super::documents::{Batch, Counts, LevelFault, Levels};
use super::flaw::{Flaw, flaw};
use super::levels::{Runs, from_bit_packed, level_width};
use super::page::{MAX_HEADER_BYTES, PageHeader, PageKind, parse_header};
use super::values::{Dictionary, Domain, ValueFault, Values, number};
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
        /// Bytes of the input that are done with.
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
    limits: Limits,
    chunk: TokenChunk,
    place: Place,
    lengths_only: bool,
    /// Bytes of the chunk consumed so far.
    offset: u64,
    counts: Counts,
    has_dictionary: bool,
    dictionary: Dictionary,
    codecs: Codecs,
    /// The current page, decompressed.
    body: Vec<u8>,
    batch: Batch,
    values: Vec<i32>,
}

/// Why a page could not be read.
enum Fault {
    /// What is wrong with its bytes, and in which row if known.
    Flaw(Flaw, Option<u64>),
    /// What is not known here.
    Unsupported(String),
    /// An error that needs no place: the sink's, or a limit.
    Error(Error),
}

impl From<Flaw> for Fault {
    fn from(flaw: Flaw) -> Self {
        Self::Flaw(flaw, None)
    }
}

impl From<LevelFault> for Fault {
    fn from(fault: LevelFault) -> Self {
        Self::Flaw(fault.flaw, fault.row)
    }
}

/// A data page with its levels found and its values still to be decoded.
struct DataPage<'a> {
    count: u64,
    rep: &'a [u8],
    def: &'a [u8],
    values: &'a [u8],
    encoding: i32,
    /// Rows, where the page says how many.
    rows: Option<u64>,
}

impl ChunkDecoder {
    /// A decoder that is not yet given a chunk.
    pub fn new(limits: Limits) -> Self {
        let shape = super::TokenShape { value_bytes: 4, bits: 32, signed: true, max_def: 1, list_def: 1 };
        Self {
            limits,
            chunk: TokenChunk { shape, codec: 0, encodings: 0, start: 0, len: 0, levels: 0, rows: 0 },
            place: Place::default(),
            lengths_only: false,
            offset: 0,
            counts: Counts::default(),
            has_dictionary: false,
            dictionary: Dictionary::default(),
            codecs: Codecs::default(),
            body: Vec::new(),
            batch: Batch::default(),
            values: Vec::new(),
        }
    }

    /// Begins a chunk; `place` (file, column, row group) is for messages.
    ///
    /// With `lengths_only` values are not decoded and the sink gets none.
    pub fn begin(&mut self, chunk: &TokenChunk, place: Place, lengths_only: bool) {
        self.chunk = *chunk;
        self.place = place;
        self.lengths_only = lengths_only;
        self.offset = 0;
        self.counts = Counts::default();
        self.has_dictionary = false;
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
                Err(Fault::Error(error)) => return Err(error),
                Err(Fault::Flaw(Flaw(what), row)) => {
                    let place = Place { row, ..self.place.clone() };
                    let at = self.chunk.start.saturating_add(self.offset);
                    return Err(Error::data(place, format!("page at byte {at}: {what}")));
                }
            }
        }
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
        let needed = compressed.max(uncompressed) as u64;
        if needed > self.limits.page_bytes {
            let purpose = format!("a page of {}", self.place);
            return Err(Fault::Error(Error::Memory { purpose, needed, available: self.limits.page_bytes }));
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
        match kind {
            PageKind::Other => {}
            PageKind::Dictionary { values, encoding } => self.dictionary_page(bytes, uncompressed, values, encoding)?,
            PageKind::DataV1 { .. } => {
                let mut body = std::mem::take(&mut self.body);
                let done = self.data_v1(bytes, uncompressed, kind, &mut body, sink);
                self.body = body;
                done?;
            }
            PageKind::DataV2 { .. } => {
                let mut body = std::mem::take(&mut self.body);
                let done = self.data_v2(bytes, uncompressed, kind, &mut body, sink);
                self.body = body;
                done?;
            }
        }
        Ok(Step::Page(whole))
    }

    fn dictionary_page(&mut self, bytes: &[u8], size: usize, entries: u64, encoding: i32) -> Result<(), Fault> {
        if self.has_dictionary || self.counts.levels > 0 {
            return Err(flaw!("expected one dictionary page before all data pages, found another").into());
        }
        if !matches!(encoding, number::PLAIN | number::PLAIN_DICTIONARY) {
            return Err(Fault::Unsupported(format!("a dictionary of encoding {encoding}")));
        }
        self.has_dictionary = true;
        if self.lengths_only {
            return Ok(());
        }
        let data = decompress(&mut self.codecs, self.chunk.codec, bytes, size, &mut self.body)?;
        Ok(self.dictionary.load(data, entries, &self.chunk.shape)?)
    }

    fn data_v1(
        &mut self,
        bytes: &[u8],
        size: usize,
        kind: PageKind,
        body: &mut Vec<u8>,
        sink: &mut dyn TokenSink,
    ) -> Result<(), Fault> {
        let PageKind::DataV1 { levels: count, encoding, def_encoding, rep_encoding } = kind else {
            return Ok(());
        };
        self.check_count(count, encoding)?;
        if count == 0 {
            return Ok(());
        }
        let data = decompress(&mut self.codecs, self.chunk.codec, bytes, size, body)?;
        let width = level_width(self.chunk.shape.max_def);
        let (rep, data) = levels_v1(data, rep_encoding, 1, count, "repetition levels")?;
        let (def, values) = levels_v1(data, def_encoding, width, count, "definition levels")?;
        self.deliver(DataPage { count, rep: &rep, def: &def, values, encoding, rows: None }, sink)
    }

    fn data_v2(
        &mut self,
        bytes: &[u8],
        size: usize,
        kind: PageKind,
        body: &mut Vec<u8>,
        sink: &mut dyn TokenSink,
    ) -> Result<(), Fault> {
        let PageKind::DataV2 { levels: count, rows, encoding, def_bytes, rep_bytes, is_compressed } = kind else {
            return Ok(());
        };
        self.check_count(count, encoding)?;
        let level_bytes = rep_bytes + def_bytes;
        let (Some(size), Some((levels, packed))) = (size.checked_sub(level_bytes), bytes.split_at_checked(level_bytes))
        else {
            let (most, found) = (size.min(bytes.len()), level_bytes);
            return Err(flaw!("expected at most {most} bytes of levels, found {found}").into());
        };
        let (rep, def) = levels.split_at(rep_bytes);
        let values = match (self.lengths_only, is_compressed) {
            (true, _) => &[],
            (false, true) => decompress(&mut self.codecs, self.chunk.codec, packed, size, body)?,
            (false, false) if packed.len() == size => packed,
            (false, false) => return Err(flaw!("expected {size} bytes of values, found {}", packed.len()).into()),
        };
        self.deliver(DataPage { count, rep, def, values, encoding, rows: Some(rows) }, sink)
    }

    /// Checks a data page's number of levels, and that its encoding is known.
    fn check_count(&self, count: u64, encoding: i32) -> Result<(), Fault> {
        let left = self.chunk.levels - self.counts.levels;
        if count > left {
            let all = self.chunk.levels;
            return Err(flaw!("expected {left} more levels of the column chunk's {all}, found {count}").into());
        }
        if !self.lengths_only && !Values::knows(encoding) {
            return Err(Fault::Unsupported(format!("values of encoding {encoding}")));
        }
        Ok(())
    }

    /// Hands a data page's documents to the sink, batch by batch.
    fn deliver(&mut self, page: DataPage<'_>, sink: &mut dyn TokenSink) -> Result<(), Fault> {
        let shape = self.chunk.shape;
        let rep = Runs::new(page.rep, 1, page.count);
        let def = Runs::new(page.def, level_width(shape.max_def), page.count);
        let mut levels = Levels::new(rep, def, page.count, &shape, self.chunk.rows);
        let rows_before = self.counts.rows;
        if page.rows.is_some() && !levels.is_empty() && !levels.begins_row()? {
            return Err(flaw!("expected a version 2 page to begin with a row, found the rest of one").into());
        }
        let mut values = None;
        while !levels.is_empty() {
            let row = self.counts.rows;
            let mut counts = self.counts;
            levels.next_batch(&mut counts, &mut self.batch)?;
            self.values.clear();
            if self.batch.tokens > 0 && !self.lengths_only {
                let values = match &mut values {
                    Some(values) => values,
                    none => none.insert(self.values_of(page.values, page.encoding)?),
                };
                let row = if self.batch.continued { row.saturating_sub(1) } else { row };
                match values.read(self.batch.tokens as usize, &self.dictionary, &mut self.values) {
                    Ok(()) => {}
                    Err(ValueFault::Flaw(flaw)) => return Err(flaw.into()),
                    Err(ValueFault::Range { index, raw }) => {
                        let row = row + self.batch.row_of(index as u64);
                        return Err(Fault::Flaw(Flaw(Domain::of(&shape).refusal(raw)), Some(row)));
                    }
                }
            }
            self.counts = counts;
            sink.page(self.batch.continued, &self.batch.lengths, &self.values).map_err(Fault::Error)?;
        }
        let rows = self.counts.rows - rows_before;
        if page.rows.is_some_and(|wanted| wanted != rows) {
            return Err(flaw!("expected {} rows in the page, found {rows}", page.rows.unwrap_or_default()).into());
        }
        match values {
            Some(values) => Ok(values.finish()?),
            None => Ok(()),
        }
    }

    fn values_of<'a>(&self, data: &'a [u8], encoding: i32) -> Result<Values<'a>, Fault> {
        if matches!(encoding, number::PLAIN_DICTIONARY | number::RLE_DICTIONARY) && !self.has_dictionary {
            return Err(flaw!("expected a dictionary page before a dictionary-encoded page, found none").into());
        }
        Ok(Values::new(data, encoding, &self.chunk.shape)?)
    }
}

/// What became of a page.
enum Step {
    /// It was read: bytes that it took.
    Page(usize),
    /// It is not whole: bytes that it needs.
    Want(usize),
}

/// The page's bytes, decompressed into `body` unless they are not compressed.
fn decompress<'a>(
    codecs: &mut Codecs,
    codec: u8,
    bytes: &'a [u8],
    size: usize,
    body: &'a mut Vec<u8>,
) -> Result<&'a [u8], Fault> {
    // Nothing is nothing in every codec: a dictionary of no entries, a page of nulls.
    if size == 0 {
        return Ok(&[]);
    }
    if codec::name(codec).is_none() {
        return Err(Fault::Unsupported(format!("compression codec {codec}")));
    }
    if codec == codec::number::NONE && bytes.len() == size {
        return Ok(bytes);
    }
    Ok(codecs.decompress(codec, bytes, size, body)?)
}

/// Splits off a version 1 page's levels: runs that follow their own length, or bits packed the old way.
fn levels_v1<'a>(
    data: &'a [u8],
    encoding: i32,
    width: u32,
    count: u64,
    name: &str,
) -> Result<(Cow<'a, [u8]>, &'a [u8]), Fault> {
    match encoding {
        number::RLE => {
            let Some((len, rest)) = data.split_first_chunk::<4>() else {
                return Err(flaw!("expected the length of the {name}, found {} bytes", data.len()).into());
            };
            let len = u32::from_le_bytes(*len) as usize;
            let split = rest.split_at_checked(len);
            let (levels, rest) = split.ok_or_else(|| flaw!("expected {len} bytes of {name}, found {}", rest.len()))?;
            Ok((Cow::Borrowed(levels), rest))
        }
        number::BIT_PACKED => {
            let (levels, len) = from_bit_packed(data, width, count)
                .ok_or_else(|| flaw!("expected {count} packed {name}, found {} bytes", data.len()))?;
            Ok((Cow::Owned(levels), data.get(len..).unwrap_or_default()))
        }
        other => Err(Fault::Unsupported(format!("{name} of encoding {other}"))),
    }
}

/// Decodes a whole chunk, asking `fill` for bytes as they are needed.
///
/// `fill(buffer, want)` appends the chunk's next bytes until `buffer` holds at least `want`, or fails. `buffer` may
/// hold the first bytes of the chunk already; it is left empty or with bytes beyond the last page.
pub fn decode_stream(
    decoder: &mut ChunkDecoder,
    chunk: &TokenChunk,
    place: Place,
    lengths_only: bool,
    fill: &mut dyn FnMut(&mut Vec<u8>, usize) -> Result<()>,
    buffer: &mut Vec<u8>,
    sink: &mut dyn TokenSink,
) -> Result<Outcome> {
    decoder.begin(chunk, place, lengths_only);
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
                buffer.drain(..consumed);
                fill(buffer, want)?;
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
