//! What a chunk's decoder does with one page: the dictionary, and data pages of both versions.

use std::borrow::Cow;

use super::TokenChunk;
use super::codec::{self, Codecs};
use super::cpu::Cpu;
use super::decoder::{ChunkDecoder, in_page};
use super::dictionary::Dictionary;
use super::documents::{Batch, LevelFault, Levels, row_of};
use super::flaw::{Flaw, flaw};
use super::front::Front;
use super::levels::{Runs, from_bit_packed, level_width};
use super::page::{MAX_HEADER_BYTES, PageHeader, PageKind, parse_header};
use super::sink::{PageValues, Pull, TokenSink, TokensMut, Unwanted};
use super::values::{Domain, ValueFault, Values, number};
use crate::error::{Error, Place, Result as Done};

/// What is first read, and first decompressed, of a page of which only the levels are wanted: those of some thousand
/// documents.
const FIRST_BYTES: usize = 16 << 10;

/// Why a page could not be read.
pub(super) enum Fault {
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
    /// `None` if none is wanted.
    values: Option<&'a [u8]>,
    encoding: i32,
    /// Rows, where the page says how many.
    rows: Option<u64>,
}

impl ChunkDecoder {
    /// Whether the dictionary, a page of which is there, is to be read.
    pub(super) fn wants_dictionary(&mut self, sink: &mut dyn TokenSink) -> Result<bool, Fault> {
        if self.has_dictionary || self.counts.levels > 0 {
            return Err(flaw!("expected one dictionary page before all data pages, found another").into());
        }
        self.unwanted = !sink.wants(0..self.chunk.levels);
        self.has_dictionary = self.unwanted;
        Ok(!self.unwanted)
    }

    /// Reads the dictionary.
    pub(super) fn dictionary_page(
        &mut self,
        bytes: &[u8],
        size: usize,
        entries: u64,
        encoding: i32,
    ) -> Result<(), Fault> {
        if !matches!(encoding, number::PLAIN | number::PLAIN_DICTIONARY) {
            return Err(Fault::Unsupported(format!("a dictionary of encoding {encoding}")));
        }
        let data = decompress(&mut self.codecs, self.chunk.codec, bytes, size, &mut self.body)?;
        self.dictionary.load(data, entries, Domain::of(&self.chunk), self.chunk.narrow, self.cpu)?;
        self.has_dictionary = true;
        Ok(())
    }

    /// Decompresses the page at the front of `input`: bytes that it takes, and that it has once decompressed.
    pub(super) fn decompress_page(&mut self, input: &[u8]) -> Result<(usize, usize), Fault> {
        let short = || flaw!("expected a page, found {} bytes", input.len());
        let (header, header_len) = parse_header(&input[..input.len().min(MAX_HEADER_BYTES)])?.ok_or_else(short)?;
        let whole = header_len + header.compressed;
        let bytes = input.get(header_len..whole).ok_or_else(short)?;
        let (front, is_compressed) = match header.kind {
            PageKind::DataV2 { def_bytes, rep_bytes, is_compressed, .. } => (def_bytes + rep_bytes, is_compressed),
            PageKind::Other => (0, false),
            PageKind::Dictionary { .. } | PageKind::DataV1 { .. } => (0, true),
        };
        let (Some(packed), Some(size)) = (bytes.get(front..), header.uncompressed.checked_sub(front)) else {
            return Err(flaw!("expected levels within the page, found {front} bytes of them").into());
        };
        if size as u64 > self.limits.page_bytes {
            return Err(
                flaw!("expected a page of at most {} bytes, found one of {size}", self.limits.page_bytes).into()
            );
        }
        if is_compressed {
            decompress(&mut self.codecs, self.chunk.codec, packed, size, &mut self.body)?;
        }
        Ok((whole, header.uncompressed))
    }

    /// Checks a data page's number of levels, and that its encoding is known if any of its tokens is wanted; whether
    /// one is.
    pub(super) fn wants_page(&self, count: u64, encoding: i32, sink: &mut dyn TokenSink) -> Result<bool, Fault> {
        let left = self.chunk.levels - self.counts.levels;
        if count > left {
            let all = self.chunk.levels;
            return Err(flaw!("expected {left} more levels of the column chunk's {all}, found {count}").into());
        }
        let first = self.counts.tokens;
        let wanted = count > 0 && sink.wants(first..first + count);
        if wanted && self.unwanted {
            let what = "tokens were asked for of a chunk of which none was wanted".to_owned();
            return Err(Fault::Error(Error::Internal(what)));
        }
        if wanted && !Values::knows(encoding) {
            return Err(Fault::Unsupported(format!("values of encoding {encoding}")));
        }
        Ok(wanted)
    }

    /// Reads a version 1 page, whose levels are compressed with its values.
    pub(super) fn data_v1(
        &mut self,
        bytes: &[u8],
        size: usize,
        kind: PageKind,
        body: &mut Vec<u8>,
        sink: &mut dyn TokenSink,
    ) -> Result<(), Fault> {
        let data = decompress(&mut self.codecs, self.chunk.codec, bytes, size, body)?;
        self.split_v1(data, kind, true, sink)
    }

    /// Takes a version 1 page apart, of which `data` is all or, without values, the levels at least.
    fn split_v1(&mut self, data: &[u8], kind: PageKind, wanted: bool, sink: &mut dyn TokenSink) -> Result<(), Fault> {
        let PageKind::DataV1 { levels: count, encoding, def_encoding, rep_encoding } = kind else {
            return Ok(());
        };
        let width = level_width(self.chunk.shape.max_def);
        let (rep, data) = levels_v1(data, rep_encoding, 1, count, "repetition levels")?;
        let (def, values) = levels_v1(data, def_encoding, width, count, "definition levels")?;
        let values = wanted.then_some(values);
        self.deliver(DataPage { count, rep: &rep, def: &def, values, encoding, rows: None }, sink)
    }

    /// Reads a version 2 page, whose levels are not compressed.
    pub(super) fn data_v2(
        &mut self,
        bytes: &[u8],
        size: usize,
        kind: PageKind,
        body: &mut Vec<u8>,
        sink: &mut dyn TokenSink,
    ) -> Result<(), Fault> {
        let PageKind::DataV2 { levels: count, rows, encoding, def_bytes, rep_bytes, is_compressed, .. } = kind else {
            return Ok(());
        };
        let level_bytes = check_levels_v2(bytes.len(), size, rep_bytes, def_bytes)?;
        let (levels, packed) = bytes.split_at(level_bytes);
        let (rep, def) = levels.split_at(rep_bytes);
        let size = size - level_bytes;
        let values = match is_compressed {
            true => decompress(&mut self.codecs, self.chunk.codec, packed, size, body)?,
            false if packed.len() == size => packed,
            false => return Err(flaw!("expected {size} bytes of values, found {}", packed.len()).into()),
        };
        self.deliver(DataPage { count, rep, def, values: Some(values), encoding, rows: Some(rows) }, sink)
    }

    /// Reads the levels of a page of which no tokens are wanted, and of which `there` is the front or all: how many
    /// of its bytes are needed, if they are more than those.
    pub(super) fn levels_alone(
        &mut self,
        there: &[u8],
        header: &PageHeader,
        front: &mut Vec<u8>,
        sink: &mut dyn TokenSink,
    ) -> Result<Option<usize>, Fault> {
        let PageHeader { kind, compressed, uncompressed: size, .. } = *header;
        match kind {
            PageKind::DataV1 { levels: 0, .. } | PageKind::Dictionary { .. } | PageKind::Other => Ok(None),
            PageKind::DataV2 { levels: count, rows, encoding, def_bytes, rep_bytes, .. } => {
                let level_bytes = check_levels_v2(compressed, size, rep_bytes, def_bytes)?;
                let Some(levels) = there.get(..level_bytes) else { return Ok(Some(level_bytes)) };
                let (rep, def) = levels.split_at(rep_bytes);
                self.deliver(DataPage { count, rep, def, values: None, encoding, rows: Some(rows) }, sink)?;
                Ok(None)
            }
            PageKind::DataV1 { levels: count, def_encoding, rep_encoding, .. } => {
                let codec = self.chunk.codec;
                if codec::name(codec).is_none() {
                    return Err(Fault::Unsupported(format!("compression codec {codec}")));
                }
                let least = compressed.min(FIRST_BYTES);
                if there.len() < least {
                    return Ok(Some(least));
                }
                let width = level_width(self.chunk.shape.max_def);
                let sections = [(rep_encoding, 1), (def_encoding, width)];
                // These begin again at once; of others a block or so is decompressed in any case.
                let is_cheap = matches!(codec, codec::number::NONE | codec::number::SNAPPY);
                let mut wanted = size.min(if is_cheap { 64 } else { FIRST_BYTES });
                loop {
                    // What a page claims beyond that is no reason to take memory.
                    let sound = wanted <= codec::most_made(codec, compressed)
                        && (codec != codec::number::NONE || compressed == size);
                    front.resize(if sound { wanted } else { 0 }, 0);
                    match self.fronts.make(codec, there, size, front) {
                        Front::Made if sound => {}
                        Front::More if sound && there.len() < compressed => {
                            return Ok(Some(there.len().saturating_mul(4).clamp(least, compressed)));
                        }
                        // Damage, or a codec without a front.
                        _ if there.len() < compressed => return Ok(Some(compressed)),
                        _ => {
                            let data = decompress(&mut self.codecs, codec, there, size, front)?;
                            self.split_v1(data, kind, false, sink)?;
                            return Ok(None);
                        }
                    }
                    let needed = front_len(front, sections, count).min(size);
                    if needed <= wanted {
                        self.split_v1(front, kind, false, sink)?;
                        return Ok(None);
                    }
                    wanted = needed;
                }
            }
        }
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
        let mut values = page.values.map(|data| Body { data, encoding: page.encoding, reader: None, skipped: 0 });
        while !levels.is_empty() {
            let row = self.counts.rows;
            levels.next_batch(&mut self.counts, &mut self.batch)?;
            let batch = &self.batch;
            let mut unwanted = Unwanted;
            let mut tokens = values.as_mut().map(|body| Tokens {
                body,
                cpu: self.cpu,
                chunk: &self.chunk,
                place: &self.place,
                at: self.chunk.start.saturating_add(self.offset),
                dictionary: self.has_dictionary.then_some(&self.dictionary),
                batch,
                row: if batch.continued { row.saturating_sub(1) } else { row },
                done: 0,
            });
            let source: &mut dyn Pull = match &mut tokens {
                Some(tokens) => tokens,
                None => &mut unwanted,
            };
            let mut pulled = PageValues::new(source, batch.tokens, self.chunk.narrow);
            sink.documents(batch.continued, &batch.lengths, &mut pulled).map_err(Fault::Error)?;
            let skipped = pulled.finish().map_err(Fault::Error)?;
            if let Some(body) = &mut values {
                body.skipped += skipped;
            }
        }
        let rows = self.counts.rows - rows_before;
        if page.rows.is_some_and(|wanted| wanted != rows) {
            return Err(flaw!("expected {} rows in the page, found {rows}", page.rows.unwrap_or_default()).into());
        }
        if page.rows.is_some() {
            // Where levels end is said by a header that no checksum covers.
            levels.finish()?;
        }
        match values {
            Some(Body { reader: Some(values), skipped, .. }) => Ok(values.finish(skipped)?),
            _ => Ok(()),
        }
    }
}

/// The values of a page of which some are wanted.
struct Body<'a> {
    data: &'a [u8],
    encoding: i32,
    /// Made when the first value is read: there may be none.
    reader: Option<Values<'a>>,
    /// Values that were passed over, and that the reader does not know of yet.
    skipped: u64,
}

/// What of a page's values belongs to one batch of documents.
struct Tokens<'a, 'b> {
    body: &'a mut Body<'b>,
    cpu: Cpu,
    chunk: &'a TokenChunk,
    place: &'a Place,
    /// Where the page lies in the file.
    at: u64,
    /// `None` if there was no dictionary page.
    dictionary: Option<&'a Dictionary>,
    batch: &'a Batch,
    /// The row of the batch's first document.
    row: u64,
    /// Tokens of the batch that are done with.
    done: u64,
}

impl Tokens<'_, '_> {
    fn read(&mut self, out: TokensMut<'_>) -> Result<(), ValueFault> {
        let Body { data, encoding, reader, skipped } = &mut *self.body;
        let indexed = matches!(*encoding, number::PLAIN_DICTIONARY | number::RLE_DICTIONARY);
        let none = Dictionary::default();
        let dictionary = match self.dictionary {
            Some(dictionary) => dictionary,
            None if indexed => {
                return Err(flaw!("expected a dictionary page before a dictionary-encoded page, found none").into());
            }
            None => &none,
        };
        let reader = match reader {
            Some(reader) => reader,
            none => none.insert(Values::new(data, *encoding, self.chunk, self.cpu)?),
        };
        reader.skip(std::mem::take(skipped))?;
        match out {
            TokensMut::I32(out) => reader.read(dictionary, out),
            TokensMut::U16(out) => reader.read(dictionary, out),
        }
    }
}

impl Pull for Tokens<'_, '_> {
    fn pull(&mut self, skip: u64, out: TokensMut<'_>) -> Done<()> {
        self.body.skipped += skip;
        self.done += skip;
        let count = out.len() as u64;
        match self.read(out) {
            Ok(()) => {
                self.done += count;
                Ok(())
            }
            Err(ValueFault::Flaw(flaw)) => Err(in_page(self.place, self.at, flaw, None)),
            Err(ValueFault::Range { index, raw }) => {
                let row = self.row + row_of(&self.batch.lengths, self.done + index as u64);
                Err(in_page(self.place, self.at, Flaw(Domain::of(self.chunk).refusal(raw)), Some(row)))
            }
        }
    }
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

/// Checks that a version 2 page's levels lie within it: their bytes.
fn check_levels_v2(compressed: usize, size: usize, rep_bytes: usize, def_bytes: usize) -> Result<usize, Fault> {
    let (most, found) = (size.min(compressed), rep_bytes + def_bytes);
    if found > most {
        return Err(flaw!("expected at most {most} bytes of levels, found {found}").into());
    }
    Ok(found)
}

/// How many bytes of a version 1 page its levels take, as far as the front of the page tells.
///
/// Sections are given by their encoding and the width of a level.
fn front_len(front: &[u8], sections: [(i32, u32); 2], count: u64) -> usize {
    let mut end = 0_usize;
    for (encoding, width) in sections {
        if encoding == number::BIT_PACKED {
            let bytes = count.saturating_mul(u64::from(width)).div_ceil(8);
            end = end.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
            continue;
        }
        let Some(len) = front.get(end..).and_then(|rest| rest.first_chunk::<4>()) else {
            return end.saturating_add(4);
        };
        end = end.saturating_add(4).saturating_add(u32::from_le_bytes(*len) as usize);
    }
    end
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
