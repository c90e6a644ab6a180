//! What a chunk's decoder does with one page: the dictionary, and data pages of both versions.

use std::borrow::Cow;

use super::TokenSink;
use super::codec::{self, Codecs};
use super::decoder::ChunkDecoder;
use super::documents::{LevelFault, Levels};
use super::flaw::{Flaw, flaw};
use super::levels::{Runs, from_bit_packed, level_width};
use super::page::PageKind;
use super::values::{Domain, ValueFault, Values, number};
use crate::error::Error;

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
    values: &'a [u8],
    encoding: i32,
    /// Rows, where the page says how many.
    rows: Option<u64>,
}

impl ChunkDecoder {
    /// Reads the dictionary.
    pub(super) fn dictionary_page(
        &mut self,
        bytes: &[u8],
        size: usize,
        entries: u64,
        encoding: i32,
    ) -> Result<(), Fault> {
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

    /// Reads a version 1 page, whose levels are compressed with its values.
    pub(super) fn data_v1(
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
        if page.rows.is_some() {
            // Where levels end is said by a header that no checksum covers.
            levels.finish()?;
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
