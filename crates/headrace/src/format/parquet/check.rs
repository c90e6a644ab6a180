//! Reading a chunk of any column from its first page to its last, only to tell whether that can be done.
//!
//! Pages are taken apart and checked here (sizes, checksums, counts), so that memory is bounded whatever they declare;
//! levels and values are decoded by the `parquet` crate. Not for tokens: they have a decoder of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ::parquet::basic::{ConvertedType, Encoding, LogicalType};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use ::parquet::data_type::{ByteArray, DataType};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::ColumnChunkMetaData;
use ::parquet::schema::types::ColumnDescriptor;
use bytes::Bytes;

use super::codec::{self, Codecs, number};
use super::decoder::Limits;
use super::flaw::{Checked, flaw};
use super::page::{MAX_HEADER_BYTES, PageHeader, PageKind, parse_header};
use crate::error::{Error, Place, Result};

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 1024;

/// Appends the chunk's next bytes until a buffer holds as many as wanted, or the chunk ends.
pub(crate) type Fill = Box<dyn FnMut(&mut Vec<u8>, usize) -> Result<()> + Send>;

/// Where a chunk's pages begin and how many bytes they take, as the footer says.
pub(crate) fn range(column: &ColumnChunkMetaData) -> (u64, u64) {
    let [data, dictionary, len] =
        [column.data_page_offset(), column.dictionary_page_offset().unwrap_or_default(), column.compressed_size()]
            .map(|number| u64::try_from(number).unwrap_or_default());
    // Offset 0 is the file's magic number: some writers mean by it that there is no such page.
    let start = [data, dictionary].into_iter().filter(|offset| *offset > 0).min().unwrap_or_default();
    (start, len)
}

/// Decodes all of a chunk, which has `rows` rows; `fill` gives its bytes from the first on.
pub(crate) fn check_chunk(
    column: &ColumnChunkMetaData,
    rows: u64,
    place: &Place,
    limits: Limits,
    fill: Fill,
) -> Result<()> {
    let levels = u64::try_from(column.num_values()).unwrap_or_default();
    let pages = Pages::new(column, place.clone(), limits, fill);
    let descriptor = column.column_descr_ptr();
    // After a panic nothing is used but the message: the reader and its pages are dropped.
    let read = catch_unwind(AssertUnwindSafe(|| {
        let text = is_text(&descriptor);
        match get_column_reader(Arc::clone(&descriptor), Box::new(pages)) {
            ColumnReader::BoolColumnReader(reader) => read_all(reader, &descriptor, |_| true),
            ColumnReader::Int32ColumnReader(reader) => read_all(reader, &descriptor, |_| true),
            ColumnReader::Int64ColumnReader(reader) => read_all(reader, &descriptor, |_| true),
            ColumnReader::Int96ColumnReader(reader) => read_all(reader, &descriptor, |_| true),
            ColumnReader::FloatColumnReader(reader) => read_all(reader, &descriptor, |_| true),
            ColumnReader::DoubleColumnReader(reader) => read_all(reader, &descriptor, |_| true),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => read_all(reader, &descriptor, |_| true),
            ColumnReader::ByteArrayColumnReader(reader) => {
                read_all(reader, &descriptor, |value: &ByteArray| !text || std::str::from_utf8(value.data()).is_ok())
            }
        }
    }));
    let fail = |what: String| Err(Error::data(place.clone(), what));
    let (found_rows, found_levels) = match read {
        Ok(Ok(counts)) => counts,
        Ok(Err(ParquetError::External(error))) => {
            return match error.downcast::<Error>() {
                Ok(own) => Err(*own),
                Err(other) => fail(format!("expected pages of values, found: {other}")),
            };
        }
        Ok(Err(error)) => return fail(format!("expected pages of values, found: {error}")),
        Err(_) => return fail("expected pages of values, found bytes that are none".to_owned()),
    };
    for (name, wanted, found) in [("rows", rows, found_rows), ("levels", levels, found_levels)] {
        if wanted != found {
            return fail(format!("expected {wanted} {name} in the column chunk, found {found}"));
        }
    }
    Ok(())
}

/// Whether a column's values must be UTF-8.
fn is_text(descriptor: &ColumnDescriptor) -> bool {
    let logical = descriptor.logical_type_ref();
    matches!(logical, Some(LogicalType::String)) || descriptor.converted_type() == ConvertedType::UTF8
}

/// Reads to the end: rows and levels.
fn read_all<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    descriptor: &ColumnDescriptor,
    is_sound: impl Fn(&T::T) -> bool,
) -> std::result::Result<(u64, u64), ParquetError> {
    let (mut defs, mut reps, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (mut rows, mut levels) = (0, 0);
    loop {
        defs.clear();
        reps.clear();
        values.clear();
        let (records, _, count) = reader.read_records(
            BATCH_ROWS,
            (descriptor.max_def_level() > 0).then_some(&mut defs),
            (descriptor.max_rep_level() > 0).then_some(&mut reps),
            &mut values,
        )?;
        if records == 0 && count == 0 {
            return Ok((rows, levels));
        }
        if let Some(place) = values.iter().position(|value| !is_sound(value)) {
            let what =
                format!("text that is not UTF-8 in rows {rows}..{}, value {place} of them", rows + records as u64);
            return Err(ParquetError::General(what));
        }
        rows += records as u64;
        levels += count as u64;
    }
}

/// A chunk's pages, one after another.
pub(crate) struct Pages {
    fill: Fill,
    place: Place,
    limits: Limits,
    /// `None` for one that is not known here.
    codec: Option<u8>,
    codecs: Codecs,
    /// Bytes that were read and not used.
    buffer: Vec<u8>,
    /// Where the buffer begins in the file.
    at: u64,
    /// Bytes of the chunk from there on.
    left: u64,
    levels_left: u64,
    /// Bytes of a value, of a column whose values have a fixed length.
    value_bytes: u64,
    /// The next page's header, if it was looked at, and its length.
    header: Option<(PageHeader, usize)>,
}

impl Pages {
    /// Those of a column chunk; `fill` gives its bytes from the first on.
    pub(crate) fn new(column: &ColumnChunkMetaData, place: Place, limits: Limits, fill: Fill) -> Self {
        let (start, len) = range(column);
        Self {
            fill,
            place,
            limits,
            codec: codec_number(column),
            codecs: Codecs::default(),
            buffer: Vec::new(),
            at: start,
            left: len,
            levels_left: u64::try_from(column.num_values()).unwrap_or_default(),
            value_bytes: u64::try_from(column.column_descr().type_length()).unwrap_or_default(),
            header: None,
        }
    }

    /// Where they lie.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Reads until the buffer holds `want` bytes.
    fn want(&mut self, want: usize) -> Result<()> {
        if self.buffer.len() < want {
            (self.fill)(&mut self.buffer, want)?;
            if self.buffer.len() < want {
                return Err(self.flawed(format!("expected {want} bytes, found {}", self.buffer.len())));
            }
        }
        Ok(())
    }

    fn flawed(&self, what: String) -> Error {
        Error::data(self.place.clone(), format!("page at byte {}: {what}", self.at))
    }

    /// The next header, without going on; `None` at the end of the chunk.
    fn header(&mut self) -> Result<Option<(PageHeader, usize)>> {
        if self.left == 0 || self.header.is_some() {
            return Ok(self.header);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let mut want = most.min(64);
        loop {
            self.want(want)?;
            let seen = &self.buffer[..self.buffer.len().min(most).min(MAX_HEADER_BYTES)];
            let len = seen.len();
            match parse_header(seen) {
                Ok(Some(header)) => {
                    self.header = Some(header);
                    return Ok(self.header);
                }
                Ok(None) if len == most.min(MAX_HEADER_BYTES) => {
                    return Err(self.flawed(format!("expected a page header, found none in {len} bytes")));
                }
                Ok(None) => want = (len * 2).min(most),
                Err(flaw) => return Err(self.flawed(flaw.0)),
            }
        }
    }

    fn next_page(&mut self) -> Result<Option<Page>> {
        while let Some((header, header_len)) = self.header()? {
            let whole = header_len + header.compressed;
            if whole as u64 > self.left {
                let left = self.left;
                return Err(self.flawed(format!("expected a page within {left} bytes, found one of {whole}")));
            }
            let levels = match header.kind {
                PageKind::DataV1 { levels, .. } | PageKind::DataV2 { levels, .. } => levels,
                PageKind::Dictionary { .. } | PageKind::Other => 0,
            };
            // The reader may hold two levels of two bytes and a value of up to eight for each level.
            let needed = (header.compressed.max(header.uncompressed) as u64).max(levels * 12);
            if needed > self.limits.page_bytes {
                let (purpose, available) = (format!("a page of {}", self.place), self.limits.page_bytes);
                return Err(Error::Memory { purpose, needed, available });
            }
            self.want(whole)?;
            let page = self.page(header, header_len, whole).map_err(|flaw| self.flawed(flaw.0))?;
            self.buffer.drain(..whole);
            self.at += whole as u64;
            self.left -= whole as u64;
            self.levels_left -= levels;
            self.header = None;
            if page.is_some() {
                return Ok(page);
            }
        }
        Ok(None)
    }

    /// The page at the front of the buffer; `None` if it is of a kind that holds no values.
    fn page(&mut self, header: PageHeader, header_len: usize, whole: usize) -> Checked<Option<Page>> {
        let PageHeader { kind, uncompressed, crc, .. } = header;
        let bytes = &self.buffer[header_len..whole];
        if let Some(wanted) = crc {
            let found = crc32fast::hash(bytes);
            if wanted != found {
                return Err(flaw!("expected the checksum {wanted:08x}, found {found:08x}"));
            }
        }
        let codec = self.codec;
        let mut unpack = |bytes: &[u8], size: usize, is_compressed: bool| -> Checked<Vec<u8>> {
            let codec = if is_compressed { codec } else { Some(number::NONE) };
            let codec = codec.filter(|codec| codec::name(*codec).is_some());
            let Some(codec) = codec else {
                return Err(flaw!("expected a codec that can be read here, found another"));
            };
            let mut out = Vec::new();
            // Nothing is nothing in every codec.
            if size > 0 {
                self.codecs.decompress(codec, bytes, size, &mut out)?;
            }
            Ok(out)
        };
        let enough = |levels: u64| {
            if levels > self.levels_left {
                return Err(flaw!("expected at most {} more levels, found {levels}", self.levels_left));
            }
            Ok(levels as u32)
        };
        let page = match kind {
            PageKind::Other => return Ok(None),
            PageKind::Dictionary { values, encoding } => {
                // By this number memory is taken; only values of no length can be more than there are bytes.
                if values > uncompressed as u64 && !(self.value_bytes == 0 && values <= 1) {
                    return Err(flaw!("expected at most {uncompressed} dictionary entries, found {values}"));
                }
                let buf = Bytes::from(unpack(bytes, uncompressed, true)?);
                Page::DictionaryPage { buf, num_values: values as u32, encoding: known(encoding)?, is_sorted: false }
            }
            PageKind::DataV1 { levels, encoding, def_encoding, rep_encoding } => Page::DataPage {
                num_values: enough(levels)?,
                buf: Bytes::from(unpack(bytes, uncompressed, true)?),
                encoding: known(encoding)?,
                def_level_encoding: known(def_encoding)?,
                rep_level_encoding: known(rep_encoding)?,
                statistics: None,
            },
            PageKind::DataV2 { levels, nulls, rows, encoding, def_bytes, rep_bytes, is_compressed } => {
                let num_values = enough(levels)?;
                let level_bytes = def_bytes + rep_bytes;
                let (Some(size), Some((front, values))) =
                    (uncompressed.checked_sub(level_bytes), bytes.split_at_checked(level_bytes))
                else {
                    return Err(flaw!("expected levels within the page, found {level_bytes} bytes of them"));
                };
                let mut buf = front.to_vec();
                buf.append(&mut unpack(values, size, is_compressed)?);
                Page::DataPageV2 {
                    buf: Bytes::from(buf),
                    num_values,
                    encoding: known(encoding)?,
                    num_nulls: nulls as u32,
                    num_rows: rows as u32,
                    def_levels_byte_len: def_bytes as u32,
                    rep_levels_byte_len: rep_bytes as u32,
                    is_compressed,
                    statistics: None,
                }
            }
        };
        Ok(Some(page))
    }
}

fn external(error: Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl Iterator for Pages {
    type Item = std::result::Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> std::result::Result<Option<Page>, ParquetError> {
        self.next_page().map_err(external)
    }

    fn peek_next_page(&mut self) -> std::result::Result<Option<PageMetadata>, ParquetError> {
        let header = self.header().map_err(external)?;
        Ok(header.map(|(header, _)| match header.kind {
            PageKind::DataV1 { levels, .. } => {
                PageMetadata { num_rows: None, num_levels: Some(levels as usize), is_dict: false }
            }
            PageKind::DataV2 { levels, rows, .. } => {
                PageMetadata { num_rows: Some(rows as usize), num_levels: Some(levels as usize), is_dict: false }
            }
            kind => {
                let is_dict = matches!(kind, PageKind::Dictionary { .. });
                PageMetadata { num_rows: None, num_levels: None, is_dict }
            }
        }))
    }

    fn skip_next_page(&mut self) -> std::result::Result<(), ParquetError> {
        self.get_next_page().map(drop)
    }
}

/// An encoding by Parquet's number.
fn known(encoding: i32) -> Checked<Encoding> {
    #[allow(deprecated, reason = "old files hold it")]
    Ok(match encoding {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        other => return Err(flaw!("expected a known encoding, found number {other}")),
    })
}

fn codec_number(column: &ColumnChunkMetaData) -> Option<u8> {
    let codec = column.compression_codec() as u8;
    codec::name(codec).map(|_| codec)
}
