//! The same documents by way of the `parquet` crate: slower, and with the whole chunk in memory, but it comes to know
//! encodings and codecs that the fast path does not. The tests use it as a second opinion.
//!
//! One thing only the fast path knows: levels that are bit-packed the old way. The crate reads their bits in the wrong
//! order and would give other documents, so that they are refused here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ::parquet::basic::{Compression, CompressionCodec, Encoding, Repetition, Type as Physical};
use ::parquet::column::page::PageReader;
use ::parquet::column::reader::ColumnReaderImpl;
use ::parquet::data_type::{DataType, Int32Type, Int64Type};
use ::parquet::file::metadata::ColumnChunkMetaData;
use ::parquet::file::serialized_reader::SerializedPageReader;
use ::parquet::schema::types::{ColumnDescriptor, ColumnPath, Type};
use bytes::Bytes;

use super::decoder::{Delivered, Limits};
use super::documents::row_of;
use super::page::{PageKind, parse_header};
use super::sink::{Pull, Unwanted};
use super::values::{Domain, Token, ValueFault, number};
use super::{PageValues, TokenChunk, TokenShape, TokenSink, TokensMut};
use crate::error::{Error, Place, Result};

/// Rows that are read at a time.
const BATCH_ROWS: usize = 4096;

/// Decodes a chunk from all of its bytes.
///
/// What was `delivered` to `sink` before (see [`super::Unsupported`]) is not handed on again; for a whole chunk that
/// is [`Delivered::default`]. All values are decoded, but only those that the sink reads must be tokens.
pub fn decode(
    chunk: &TokenChunk,
    place: &Place,
    bytes: Bytes,
    delivered: Delivered,
    limits: Limits,
    sink: &mut dyn TokenSink,
) -> Result<()> {
    super::check_shape(chunk, place)?;
    if bytes.len() as u64 != chunk.len {
        let what = format!("expected {} bytes of the column chunk, found {}", chunk.len, bytes.len());
        return Err(Error::data(place.clone(), what));
    }
    check_pages(chunk, place, &bytes, limits)?;
    let mut documents = Documents {
        chunk,
        place,
        delivered,
        sink,
        rows: 0,
        tokens: 0,
        levels: 0,
        lengths: Vec::new(),
        values: Vec::new(),
    };
    // After a panic nothing is used but the message: the reader is dropped, and the sink's owner gets an error.
    let done = catch_unwind(AssertUnwindSafe(|| match chunk.shape.value_bytes {
        8 => documents.read::<Int64Type>(bytes, |value| *value),
        _ => documents.read::<Int32Type>(bytes, |value| i64::from(*value)),
    }));
    done.unwrap_or_else(|_| Err(Error::data(place.clone(), "expected pages of tokens, found bytes that are none")))
}

/// Checks every page's declared size against the limit, before a reader allocates by it.
fn check_pages(chunk: &TokenChunk, place: &Place, bytes: &[u8], limits: Limits) -> Result<()> {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let fail =
            |what: String| Error::data(place.clone(), format!("page at byte {}: {what}", chunk.start + at as u64));
        let (header, len) = parse_header(rest)
            .map_err(|flaw| fail(flaw.0))?
            .ok_or_else(|| fail("expected a page header, found the end of the column chunk".to_owned()))?;
        let levels = match header.kind {
            PageKind::DataV1 { def_encoding, rep_encoding, .. } if [def_encoding, rep_encoding] != [number::RLE; 2] => {
                return Err(fail("expected levels that are encoded as runs, found another encoding".to_owned()));
            }
            PageKind::DataV1 { levels, .. } | PageKind::DataV2 { levels, .. } => levels,
            PageKind::Dictionary { .. } | PageKind::Other => 0,
        };
        // The reader holds two levels of two bytes and a value of up to eight for each level.
        let needed = (header.compressed.max(header.uncompressed) as u64).max(levels * 12);
        if needed > limits.page_bytes {
            let purpose = format!("a page of {place}");
            return Err(Error::Memory { purpose, needed, available: limits.page_bytes });
        }
        at += len + header.compressed;
        if at > bytes.len() {
            let left = bytes.len() - (at - len - header.compressed);
            let what = format!("expected a page within the {left} bytes left of the column chunk, found a longer one");
            return Err(Error::data(place.clone(), what));
        }
    }
    Ok(())
}

/// Documents on their way from the reader to the sink.
struct Documents<'a> {
    chunk: &'a TokenChunk,
    place: &'a Place,
    delivered: Delivered,
    sink: &'a mut dyn TokenSink,
    rows: u64,
    tokens: u64,
    levels: u64,
    lengths: Vec<u64>,
    values: Vec<i64>,
}

impl Documents<'_> {
    fn read<T: DataType>(&mut self, bytes: Bytes, stored: impl Fn(&T::T) -> i64) -> Result<()> {
        let TokenChunk { levels, rows, .. } = *self.chunk;
        let place = self.place;
        let unreadable = |error: ::parquet::errors::ParquetError| {
            Error::data(place.clone(), format!("expected pages of tokens, found: {error}"))
        };
        if !bytes.is_empty() {
            let (column, metadata) = describe(self.chunk).map_err(unreadable)?;
            let pages =
                SerializedPageReader::new(Arc::new(bytes), &metadata, rows as usize, None).map_err(unreadable)?;
            let pages: Box<dyn PageReader> = Box::new(pages);
            let mut reader = ColumnReaderImpl::<T>::new(column, pages);
            let (mut defs, mut reps, mut values) = (Vec::new(), Vec::new(), Vec::new());
            loop {
                defs.clear();
                reps.clear();
                values.clear();
                let (records, _, count) = reader
                    .read_records(BATCH_ROWS, Some(&mut defs), Some(&mut reps), &mut values)
                    .map_err(unreadable)?;
                if records == 0 && count == 0 {
                    break;
                }
                self.batch(&defs, &reps, values.iter().map(&stored))?;
            }
        }
        for (name, wanted, found) in [("levels", levels, self.levels), ("rows", rows, self.rows)] {
            if wanted != found {
                let what = format!("expected {wanted} {name} in the column chunk, found {found}");
                return Err(Error::data(place.clone(), what));
            }
        }
        Ok(())
    }

    /// Hands a batch of whole rows on, less what the sink has got already.
    fn batch(&mut self, defs: &[i16], reps: &[i16], mut stored: impl Iterator<Item = i64>) -> Result<()> {
        let TokenShape { max_def, list_def, .. } = self.chunk.shape;
        let first = self.tokens.max(self.delivered.tokens);
        let row = self.rows;
        let wanted = self.sink.wants(first..first.saturating_add(defs.len() as u64));
        self.lengths.clear();
        self.values.clear();
        let mut continued = false;
        let mut open = false;
        for (def, rep) in defs.iter().zip(reps) {
            self.levels += 1;
            if *rep == 0 {
                self.rows += 1;
                open = *def == max_def;
                if self.rows > self.delivered.rows {
                    self.lengths.push(0);
                }
            }
            let fail = |what: String| Err(Error::data(self.place.clone().at_row(self.rows.saturating_sub(1)), what));
            if *def >= list_def && *def != max_def {
                return fail("expected tokens, found a null inside a list".to_owned());
            }
            if *rep != 0 && (!open || *def != max_def) {
                let what = "expected a list to begin, found levels that go on with one that has no elements";
                return fail(what.to_owned());
            }
            if *def != max_def {
                continue;
            }
            let Some(value) = stored.next() else {
                return fail("expected a value for each level, found too few".to_owned());
            };
            self.tokens += 1;
            if self.tokens <= self.delivered.tokens {
                continue;
            }
            if wanted {
                self.values.push(value);
            }
            match self.lengths.last_mut() {
                Some(last) => *last += 1,
                None => {
                    continued = true;
                    self.lengths.push(1);
                }
            }
        }
        if self.lengths.is_empty() {
            return Ok(());
        }
        let mut decoded = Decoded {
            domain: Domain::of(self.chunk),
            place: self.place,
            lengths: &self.lengths,
            row: row.max(self.delivered.rows) - u64::from(continued),
            values: &self.values,
            done: 0,
        };
        let mut unwanted = Unwanted;
        let source: &mut dyn Pull = if wanted { &mut decoded } else { &mut unwanted };
        let mut values = PageValues::new(source, self.lengths.iter().sum(), self.chunk.narrow);
        self.sink.documents(continued, &self.lengths, &mut values)?;
        values.finish().map(drop)
    }
}

/// Values that lie there decoded.
struct Decoded<'a> {
    domain: Domain,
    place: &'a Place,
    lengths: &'a [u64],
    /// The row of the first length.
    row: u64,
    values: &'a [i64],
    /// How many of them are done with.
    done: usize,
}

impl Decoded<'_> {
    fn put<T: Token>(&mut self, out: &mut [T]) -> Result<()> {
        let start = self.done;
        self.done += out.len();
        match self.domain.put(out, self.values[start..self.done].iter().copied()) {
            Ok(()) => Ok(()),
            Err(ValueFault::Flaw(flaw)) => Err(Error::data(self.place.clone(), flaw.0)),
            Err(ValueFault::Range { index, raw }) => {
                let row = self.row + row_of(self.lengths, (start + index) as u64);
                Err(Error::data(self.place.clone().at_row(row), self.domain.refusal(raw)))
            }
        }
    }
}

impl Pull for Decoded<'_> {
    fn pull(&mut self, skip: u64, out: TokensMut<'_>) -> Result<()> {
        self.done += skip as usize;
        match out {
            TokensMut::I32(out) => self.put(out),
            TokensMut::U16(out) => self.put(out),
        }
    }
}

/// The column as the reader wants it described.
fn describe(chunk: &TokenChunk) -> ::parquet::errors::Result<(Arc<ColumnDescriptor>, ColumnChunkMetaData)> {
    let physical = if chunk.shape.value_bytes == 8 { Physical::INT64 } else { Physical::INT32 };
    let leaf = Type::primitive_type_builder("tokens", physical).with_repetition(Repetition::REPEATED).build()?;
    let path = ColumnPath::new(vec!["tokens".to_owned()]);
    let column = Arc::new(ColumnDescriptor::new(Arc::new(leaf), chunk.shape.max_def, 1, path));
    let metadata = ColumnChunkMetaData::builder(Arc::clone(&column))
        .set_compression(compression(chunk.codec)?)
        .set_encodings(vec![Encoding::PLAIN])
        .set_num_values(i64::try_from(chunk.levels).unwrap_or(i64::MAX))
        .set_data_page_offset(0)
        .set_total_compressed_size(i64::try_from(chunk.len).unwrap_or(i64::MAX))
        .build()?;
    Ok((column, metadata))
}

fn compression(codec: u8) -> ::parquet::errors::Result<Compression> {
    let known = match codec {
        0 => CompressionCodec::UNCOMPRESSED,
        1 => CompressionCodec::SNAPPY,
        2 => CompressionCodec::GZIP,
        3 => CompressionCodec::LZO,
        4 => CompressionCodec::BROTLI,
        5 => CompressionCodec::LZ4,
        6 => CompressionCodec::ZSTD,
        7 => CompressionCodec::LZ4_RAW,
        other => return Err(::parquet::errors::ParquetError::General(format!("unknown compression codec {other}"))),
    };
    Ok(known.into())
}
